"""The loop of tools in one stream: the calls that wait for an approval, and for their results, and results
that wait for others.

Where a stream pauses at its calls, a turn's results go into it together, in the order of the calls and when
the turn has ended: so a model is told. Where it goes on meanwhile, each goes in by itself. It knows calls and
messages, and neither tokens nor the engine. An approval is of a call as it stands: one that is changed waits
for another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from midstream import protocol
from midstream.protocol import Beside, Message, SnapshotCall, ToolCallDone
from realtime.refusal import Refusal
from realtime.stream.spanned_text import Call, SpannedText
from realtime.stream.weights import SLOT_BYTES, text_bytes, weight


class ResultInject(protocol.Inject, kw_only=True, tag="result_inject"):
    """What a call's result puts into its stream, with those that wait for it; or nothing, where it waits."""

    result: protocol.ToolResult


class ToolLoop:
    def __init__(self, start: protocol.Start, spans: SpannedText | None) -> None:
        """`spans`: the reader of the stream's calls, if it may have any."""
        self._together = start.on_tool_call == "pause"
        self.holds_at_eos = start.on_tool_call != "finish" and spans is not None  # its end may not be the end
        self._spans = spans
        if spans is not None:  # a fork's are the other's
            one_call = spans.one_call or not start.parallel_tool_calls
            spans.one_call = start.on_tool_call == "finish" and one_call
        self._approvals = start.approvals
        names = () if isinstance(start.approvals, bool) else start.approvals
        self._names_bytes = sum(SLOT_BYTES + text_bytes(name) for name in names)
        self._results: dict[str, protocol.ToolResult] = {}  # that wait, by call
        self._weights: dict[str, int] = {}  # of each, when it came: a result may have very many parts
        self._results_bytes = 0
        self.turn_has_ended = False  # with calls, and nothing has come since, whoever has paused it too
        self._due: ResultInject | None = None  # results that are all there before the turn has ended
        self._due_bytes = 0
        self.left = False  # whether some waited when calls were taken back, perhaps those of the others

    @property
    def bytes(self) -> int:
        return self._names_bytes + self._results_bytes + self._due_bytes

    @property
    def missing(self) -> list[Call]:
        """The calls that have no result in the stream."""
        return [call for call in self.calls if call.end is not None and call.answered is None]

    @property
    def calls(self) -> list[Call]:
        return [] if self._spans is None else self._spans.calls

    def find(self, call_id: str) -> Call:
        """A call that has no result."""
        call = next((call for call in self.calls if call.call_id == call_id), None)
        if call is None:
            raise Refusal("invalid_params", f'There is no call "{call_id}" in this stream.')
        if call.answered is not None:
            raise Refusal("invalid_params", f'Call "{call_id}" has its result: rewind to before that.')
        return call

    def approve(self, call_id: str) -> Call:
        call = self.find(call_id)
        if call.end is None:
            raise Refusal("invalid_params", f'Call "{call_id}" is not whole: it cannot be approved yet.')
        assert self._spans is not None, "it has calls"
        self._spans.approve(call)
        return call

    def waits_for_approval(self, call: Call) -> bool:
        approvals = self._approvals
        asked = approvals if isinstance(approvals, bool) else call.name in approvals
        return asked and call.end is not None and not call.approved

    def tell_approvals(self, events: Iterable[Beside | SnapshotCall]) -> None:
        """Which of the calls that these tell of wait for one."""
        told = [event for event in events if isinstance(event, ToolCallDone | SnapshotCall)]
        if not (self._approvals and told):
            return
        known = {event.call_id for event in told}
        calls = (call for call in self.calls if call.call_id in known)
        waiting = {call.call_id for call in calls if self.waits_for_approval(call)}
        for event in told:
            event.approval = event.end is not None and event.call_id in waiting

    def told_with(self, result: protocol.ToolResult, missing: Sequence[Call]) -> list[Message]:
        """What is to be told to the model once this is taken; where it waits for others it is made tokens by
        itself, since one that fits no context is refused before any waits for it. `missing`: the calls that
        have no result when its turn comes. Raises Refusal."""
        asked = self._asked(result, missing)
        results = self._results | {result.call_id: result}
        are_all = all(call.call_id in results for call in missing)
        told = missing if self._together and are_all else [asked]
        return [_message(call, results[call.call_id]) for call in told]

    def _asked(self, result: protocol.ToolResult, missing: Sequence[Call]) -> Call:
        if (result.content is None) == (result.error is None):
            raise Refusal("invalid_frame", "A tool_result has either `content` or `error`.")
        asked = next((call for call in missing if call.call_id == result.call_id), None)
        if asked is None:
            raise Refusal(
                "invalid_params",
                f'Request {result.request_id} waits for no result of a call "{result.call_id}"'
                + (f": it does for {_listed(missing)}." if missing else "."),
            )
        if result.content is not None and self.waits_for_approval(asked):
            raise Refusal(
                "invalid_params",
                f'Call "{asked.call_id}" waits for an approve, or an `error`.',
            )
        return asked

    def take(self, inject: ResultInject, missing: Sequence[Call], *, ended: bool) -> ResultInject:
        """Take a result in, in place of one for this call that waits; returns what is put in now: nothing,
        where there is to be more of the model's turn, or there are calls that came while it was tokenized.
        Raises Refusal where its own is no more."""
        result = inject.result
        self._asked(result, missing)
        self.drop(result.call_id)
        self.left = False
        self._results[result.call_id] = result
        self._weights[result.call_id] = weight(result)
        self._results_bytes += self._weights[result.call_id]
        inject = replace(inject, result=replace(result, content=None, error=None))  # it is counted here
        if not self._together:
            return inject
        is_all = _are_of(inject.messages, missing)
        if is_all and ended:
            return inject
        self._set_due(inject if is_all else None)
        return replace(inject, messages=None, tokens=[], resume=False)

    def has_result(self, call_id: str) -> bool:
        """That waits."""
        return call_id in self._results

    @property
    def has_due(self) -> bool:
        return self._due is not None

    def take_left(self, missing: Sequence[Call]) -> protocol.ToolResult | None:
        """The turn has ended: of results that waited for others, and are all that is needed now, the last."""
        results = [self._results[call.call_id] for call in missing if call.call_id in self._results]
        if not (self.left and missing) or len(results) < len(missing):
            return None
        self.left = False
        return results[-1]

    def take_due(self, missing: Sequence[Call]) -> ResultInject | None:
        """The turn has ended: results that came before, if they are still of all these that have none."""
        due = self._due
        self._set_due(None)
        return due if due is not None and _are_of(due.messages, missing) else None

    def settle(self) -> bool:
        """Calls have been answered, or are no more what they were: nothing of theirs waits any longer.
        Whether any result did."""
        if not self._results:
            return False
        missing = {call.call_id for call in self.missing}
        settled = self._results.keys() - missing
        for call_id in settled:
            self.drop(call_id)
        return bool(settled)

    def go_back(self) -> None:
        """Not all of the output stands any more."""
        self.turn_has_ended = False
        self.settle()
        self.leave()

    def leave(self) -> None:
        """Whoever was telling them again does so no more; or they are not those of all calls any more."""
        self.left = bool(self._results)

    def drop(self, call_id: str) -> None:
        """What waits of it, if anything does."""
        if self._results.pop(call_id, None) is not None:
            self._results_bytes -= self._weights.pop(call_id)
            self._set_due(None)

    def _set_due(self, due: ResultInject | None) -> None:
        self._due, self._due_bytes = due, 0 if due is None else weight(due)


def _are_of(messages: Sequence[Message] | None, calls: Sequence[Call]) -> bool:
    """Whether these are the results of all these calls, and of no others."""
    return [message.tool_call_id for message in messages or ()] == [call.call_id for call in calls]


def _message(call: Call, result: protocol.ToolResult) -> Message:
    content = json.dumps({"error": result.error}) if result.content is None else result.content
    return Message(role="tool", content=content, name=call.name, tool_call_id=call.call_id)


def _listed(calls: Sequence[Call]) -> str:
    return ", ".join(f'"{call.call_id}"' for call in calls[:8])
