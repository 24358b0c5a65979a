"""The accumulation of choices while they are written: their text, from a stream's events, and for an answer
that is told whole the log probabilities, as its dialect encodes them.

Pure. It keeps what stands: what is rewound is cut away. It knows the protocol's events and no dialect.
"""

from __future__ import annotations

from midstream.protocol import Final, Rewound, Snapshot, Token
from realtime.http.openai.logprobs import EncodedLogprob
from realtime.refusal import Refusal
from realtime.stream.memory import CHARACTER_BYTES
from realtime.stream.outbox import OutgoingEvent


class Choice:
    def __init__(self, index: int, *, logprobs: bool) -> None:
        self.index = index
        self.text = ""
        self.logprobs: list[EncodedLogprob] = []
        self._logprob_bytes = 0
        self.final: Final | None = None
        self.begun = False  # whether a token came: its prompt is computed
        self.shows_logprobs = logprobs

    def receive(self, event: OutgoingEvent) -> None:
        match event:
            case Token(delta=delta):
                self.begun = True
                self.text += delta
            case Rewound(index=index, text_length=length):
                self.text = self.text[:length]
                self._logprob_bytes -= sum(one.bytes for one in self.logprobs[index:])
                del self.logprobs[index:]
            case Snapshot(text=text, index=index):
                self._begin_anew(text, index)
            case Final():
                self.begun, self.final = True, event

    def keep(self, logprobs: list[EncodedLogprob]) -> None:
        """Of what was received last."""
        self.logprobs += logprobs
        self._logprob_bytes += sum(one.bytes for one in logprobs)

    @property
    def bytes(self) -> int:
        """About how much memory it takes."""
        return CHARACTER_BYTES * len(self.text) + self._logprob_bytes

    def _begin_anew(self, text: str, tokens: int) -> None:
        """It was begun by an earlier request of the same id, of whose events not all are kept."""
        if self.shows_logprobs and tokens:
            raise Refusal("request_expired", "The log probabilities of what was sent before are forgotten.")
        self.begun, self.text = tokens > 0, text
