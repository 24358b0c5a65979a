"""The calls of one stream as they will stand when all that was asked of it has taken effect. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import takewhile

from msgspec.structs import replace

from engine import api
from midstream import protocol
from realtime.stream.pending_commands import PendingCommand
from realtime.stream.spanned_text import Call


def calls_then(whole: Sequence[Call], asked: Iterable[PendingCommand], index: int) -> list[Call]:
    """`whole`: those that are now, before output token `index`. Of a result that is on its way nobody knows
    how much later it will stand: it counts as in where it may be, since none goes in twice."""
    calls = list(whole)
    for pending in asked:
        frame = pending.frame
        match pending.command, frame:
            case (api.Truncate(index=to), _) | (_, protocol.Inject(at=int() as to)):
                if to < index:
                    index, calls = to, _until(to, calls)
            case (None | api.Append(behind=int()), protocol.Amend(call_id=amended)):
                before = list(takewhile(lambda call: call.call_id != amended, calls))
                if len(before) < len(calls):
                    index = min(index, calls[len(before)].index)
                    calls = _until(index, before)
            case _, protocol.Approve(call_id=approved):
                calls = [replace(one, approved=True) if one.call_id == approved else one for one in calls]
        if isinstance(frame, protocol.Inject):
            told = {message.tool_call_id for message in frame.messages or ()}
            calls = [
                replace(one, answered=index) if one.answered is None and one.call_id in told else one
                for one in calls
            ]
    return calls


def _until(index: int, calls: Iterable[Call]) -> list[Call]:
    """Where the output goes back to this token."""
    return [
        replace(call, answered=None) if call.answered is not None and call.answered > index else call
        for call in calls
        if call.end is not None and call.end <= index
    ]
