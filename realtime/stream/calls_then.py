"""The calls of one stream as they will stand when all that was asked of it has taken effect. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from engine import api
from midstream import protocol
from realtime.stream.pending_commands import PendingCommand
from realtime.stream.spanned_text import Call


def calls_then(calls: Sequence[Call], asked: Iterable[PendingCommand], index: int) -> list[Call]:
    """Those that will be whole. `calls`: all that are now, before output token `index`. Of a result on its
    way nobody knows how much later it will stand: it counts as in where it may be, as none goes in twice."""
    then = _CallsThen(calls, index)
    for pending in asked:
        frame = pending.frame
        match pending.command, frame:
            case (api.Truncate(index=to), _) | (_, protocol.Inject(at=int() as to)):
                then.go_back(to)
            case (None | api.Append(behind=int()), protocol.Amend(call_id=amended)):
                then.amend(amended)
            case _, protocol.Approve(call_id=approved):
                then.approved.add(approved)
        if isinstance(frame, protocol.Inject):
            for message in frame.messages or ():
                then.answer(message.tool_call_id)
    return then.calls


class _CallsThen:
    """What goes back is looked at where it is asked for: a frame costs no look at all calls, for there may be
    very many of both. The output never grows here, so what does not stand once never does again."""

    def __init__(self, calls: Sequence[Call], index: int) -> None:
        self.approved = set[str]()
        self._calls = calls
        self._index = index  # of the output, no more than so much stands
        self._places = {call.call_id: at for at, call in enumerate(calls)}
        self._count = len(calls)  # no more of the calls stand than the first so many
        self._answered: dict[str | None, int] = {
            call.call_id: call.answered for call in calls if call.answered is not None
        }

    @property
    def calls(self) -> list[Call]:
        return [
            replace(
                call,
                approved=call.approved or call.call_id in self.approved,
                answered=self._answered_at(call.call_id),
            )
            for call in self._calls[: self._count]
            if self._stands(call)
        ]

    def go_back(self, index: int) -> None:
        self._index = min(self._index, index)

    def amend(self, call_id: str) -> None:
        """Whole or not: it is to be closed again, and what stood behind it is void."""
        at = self._places.get(call_id)
        if at is not None and at < self._count and self._calls[at].index <= self._index:
            self._count = at
            self.go_back(self._calls[at].index)

    def answer(self, call_id: str | None) -> None:
        if self._place(call_id) is not None and self._answered_at(call_id) is None:
            self._answered[call_id] = self._index

    def _place(self, call_id: str | None) -> int | None:
        """Of a call that stands."""
        at = None if call_id is None else self._places.get(call_id)
        return at if at is not None and at < self._count and self._stands(self._calls[at]) else None

    def _stands(self, call: Call) -> bool:
        return call.end is not None and call.end <= self._index

    def _answered_at(self, call_id: str | None) -> int | None:
        """The output token before which its result stands, unless the output has gone back behind that."""
        at = self._answered.get(call_id)
        return at if at is not None and at <= self._index else None
