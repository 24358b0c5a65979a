"""The accumulation of choices while they are written: text and log probabilities, from a stream's events.

Pure. It keeps what stands: what is rewound is cut away. It knows the protocol's events and no dialect.
"""

from __future__ import annotations

from midstream.protocol import Final, Rewound, Snapshot, Token, TokenLogprob
from realtime.refusal import Refusal
from realtime.stream.outbox import OutgoingEvent


class Choice:
    def __init__(self, index: int, *, logprobs: bool) -> None:
        self.index = index
        self.text = ""
        self.logprobs: list[TokenLogprob] = []
        self.final: Final | None = None
        self.begun = False  # whether a token came: its prompt is computed
        self.shows_logprobs = logprobs

    def receive(self, event: OutgoingEvent) -> None:
        match event:
            case Token(delta=delta, logprobs=logprobs):
                self.begun = True
                self.text += delta
                self.logprobs += logprobs or []
            case Rewound(index=index, text_length=length):
                self.text = self.text[:length]
                del self.logprobs[index:]
            case Snapshot(text=text, index=index):
                self._begin_anew(text, index)
            case Final():
                self.begun, self.final = True, event

    def _begin_anew(self, text: str, tokens: int) -> None:
        """It was begun by an earlier request of the same id, of whose events not all are kept."""
        if self.shows_logprobs and tokens:
            raise Refusal("request_expired", "The log probabilities of what was sent before are forgotten.")
        self.begun, self.text = tokens > 0, text
