"""The arguments of calls as a stream's listener is told them: as they come, or in whole tokens of JSON.

What is held back follows from the text of the call that is written last: so wherever the output goes back to,
its listener has been told as much as one who has heard nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from msgspec.structs import replace

from midstream.protocol import Beside, SnapshotCall, ToolArguments, ToolCall, ToolCallDone
from realtime.stream.spanned_text import SpannedText
from realtime.tools.parts import Lengths
from realtime.tools.whole_json import WholeTokens, whole_length


class ToldArguments:
    """`spans`: None where nobody speaks of calls. `whole`: in whole tokens."""

    def __init__(self, spans: SpannedText | None, *, whole: bool) -> None:
        self._spans = spans if whole else None
        self._tokens = WholeTokens()
        self.go_back()

    def tell(self, events: Sequence[Beside]) -> Sequence[Beside]:
        """Of what is known, what is told."""
        return events if self._spans is None else tuple(self._told(events))

    def _told(self, events: Iterable[Beside]) -> Iterator[Beside]:
        for event in events:
            match event:
                case ToolArguments(delta=delta):
                    if said := self._tokens.take(delta):
                        yield replace(event, delta=said)
                    continue
                case ToolCall():
                    self._tokens = WholeTokens()
                case ToolCallDone(request_id=request_id, end=end, call_id=call_id):
                    if rest := self._tokens.take_rest():  # they are a number
                        yield ToolArguments(
                            request_id=request_id, index=end, count=0, call_id=call_id, delta=rest
                        )
            yield event

    def go_back(self) -> None:
        """Not all of the output stands any more."""
        if self._spans is not None:
            is_open, calls = self._spans.lengths.open, self._spans.calls
            self._tokens = WholeTokens("".join(calls[-1].arguments) if is_open else "")

    def of_rewound(self, lengths: Lengths) -> Lengths:
        """Of what stands now, what the listener keeps."""
        return lengths._replace(arguments=lengths.arguments - self._tokens.held)

    def of_snapshot(self, lengths: Lengths, calls: Sequence[SnapshotCall]) -> Lengths:
        """Of what stood then, what the listener is told: of calls that are not whole perhaps less."""
        if self._spans is None:
            return lengths
        for call in calls:
            if call.end is None:
                call.arguments = call.arguments[: whole_length(call.arguments)]
        return lengths._replace(arguments=len(calls[-1].arguments)) if lengths.open else lengths
