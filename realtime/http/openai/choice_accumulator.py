"""The accumulation of choices while they are written: their text, reasoning and calls, from a stream's
events, and for an answer that is told whole the log probabilities, as its dialect encodes them.

Pure. It keeps what stands: what is rewound is cut away. It knows the protocol's events and no dialect.
"""

from __future__ import annotations

from bisect import bisect_left

from msgspec.structs import replace

from midstream.protocol import (
    Final,
    Reasoning,
    Rewound,
    Snapshot,
    SnapshotCall,
    Token,
    ToolArguments,
    ToolCall,
    ToolCallDone,
)
from realtime.http.openai.logprobs import EncodedLogprob, Places
from realtime.refusal import Refusal
from realtime.stream.outbox import OutgoingEvent
from realtime.stream.weights import text_bytes

CALL_BYTES = 400  # of what a call has beside its arguments


class Choice:
    def __init__(self, index: int, *, logprobs: bool) -> None:
        self.index = index
        self.text = ""
        self.reasoning = ""
        self.calls: list[SnapshotCall] = []
        self._call_bytes: list[int] = []  # what each of them weighs
        self.logprobs: list[EncodedLogprob] = []
        self.places = Places()  # of the tokens that are told in chunks
        self._logprob_tokens: list[int] = []  # which they are of: an adjust may leave some without
        self._logprob_bytes = 0
        self.final: Final | None = None
        self.begun = False  # whether a token came: its prompt is computed
        self.shows_logprobs = logprobs

    def receive(self, event: OutgoingEvent) -> None:
        match event:
            case Token(delta=delta):
                self.begun = True
                self.text += delta
            case Reasoning(delta=delta):
                self.reasoning += delta
            case ToolCall(index=index, call_id=call_id, name=name):
                self.calls.append(SnapshotCall(index=index, call_id=call_id, name=name, arguments=""))
                self._call_bytes.append(_weight(self.calls[-1]))
            case ToolArguments(delta=delta):
                self.calls[-1].arguments += delta
                self._call_bytes[-1] = _weight(self.calls[-1])
            case ToolCallDone(end=end):
                self.calls[-1].end = end
            case Rewound(index=index, text_length=length):
                self.text = self.text[:length]
                self._rewind_beside(event)
                self.places.rewind()
                stand = bisect_left(self._logprob_tokens, index)
                self._logprob_bytes -= sum(one.size for one in self.logprobs[stand:])
                del self.logprobs[stand:], self._logprob_tokens[stand:]
            case Snapshot(text=text, index=index):
                self._begin_anew(text, index)
                self.reasoning, self.calls = event.reasoning, list(map(replace, event.tool_calls))
                self._call_bytes = list(map(_weight, self.calls))
            case Final():
                self.begun, self.final = True, event

    def keep(self, logprobs: list[EncodedLogprob], index: int) -> None:
        """Of the tokens from `index` on, which were received last."""
        self.logprobs += logprobs
        self._logprob_tokens += range(index, index + len(logprobs))
        self._logprob_bytes += sum(one.size for one in logprobs)

    @property
    def bytes(self) -> int:
        """About how much memory it takes, once it was told."""
        texts = text_bytes(self.text) + text_bytes(self.reasoning)
        return texts + sum(self._call_bytes) + self._logprob_bytes

    @property
    def whole_calls(self) -> list[SnapshotCall]:
        return [call for call in self.calls if call.end is not None]

    def _rewind_beside(self, event: Rewound) -> None:
        self.reasoning = self.reasoning[: event.reasoning_length]
        del self.calls[event.tool_calls :], self._call_bytes[event.tool_calls :]
        if self.calls:
            last = self.calls[-1]
            shortened = len(last.arguments) > event.arguments_length
            last.arguments = last.arguments[: event.arguments_length]
            if shortened or (last.end is not None and last.end > event.index):
                last.end = None
            self._call_bytes[-1] = _weight(last)

    def _begin_anew(self, text: str, tokens: int) -> None:
        """It was begun by an earlier request of the same id, of whose events not all are kept."""
        if self.shows_logprobs and tokens:
            raise Refusal("request_expired", "The log probabilities of what was sent before are forgotten.")
        self.begun, self.text = tokens > 0, text


def _weight(call: SnapshotCall) -> int:
    return CALL_BYTES + text_bytes(call.arguments)
