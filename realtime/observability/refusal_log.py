"""The log of refusals: who was told no, where and with which code, a line a second at most of each kind.

Whoever has themselves refused without end hides nobody else's: a line names some of all whom it is of. It
repeats nothing of what was asked for. How often each was refused in all is counted in `metrics`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import structlog
from msgspec import Struct, field

from realtime.hub.observers import Caller, Observer

EVERY_S = 1.0
MOST_OTHERS = 8  # that a line names, beside whoever was the last


class Timer(Protocol):
    def cancel(self) -> None: ...


class Refused(NamedTuple):
    """Somebody, as they are told apart: one who has a whole network is one."""

    tenant: str
    key: str | None
    address: str


class Unsaid(Struct):
    """Refusals of one kind since its last line."""

    times: int = 0
    last: Caller | None = None
    of: dict[Refused, int] = field(default_factory=dict)  # how many, of the first that were refused


class RefusalLog(Observer):
    def __init__(
        self,
        network_of: Callable[[str], str] = str,
        call_later: Callable[[float, Callable[[], None]], Timer] | None = None,
    ) -> None:
        """`network_of` says of an address whose it is."""
        self._network_of = network_of
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("midstream.refusals")
        self._call_later = call_later or (
            lambda delay, call: asyncio.get_running_loop().call_later(delay, call)
        )
        self._unsaid: dict[tuple[str, str], Unsaid] = {}  # by code and endpoint: few

    def refused(self, code: str, caller: Caller) -> None:
        kind = code, caller.endpoint
        if kind in self._unsaid:
            self._note(self._unsaid[kind], caller)
        else:
            self._say(kind, 1, caller)

    def _note(self, unsaid: Unsaid, caller: Caller) -> None:
        unsaid.times += 1
        unsaid.last = caller
        refused = self._whom(caller)
        if refused in unsaid.of or len(unsaid.of) <= MOST_OTHERS:
            unsaid.of[refused] = unsaid.of.get(refused, 0) + 1

    def _whom(self, caller: Caller) -> Refused:
        return Refused(caller.tenant, caller.key, self._network_of(caller.address))

    def _say(self, kind: tuple[str, str], times: int, caller: Caller, **others: Any) -> None:
        code, endpoint = kind
        self._log.warning(
            "refused",
            code=code,
            endpoint=endpoint,
            times=times,
            tenant=caller.tenant,
            key=caller.key,
            address=caller.address,
            **others,
        )
        self._unsaid[kind] = Unsaid()
        self._call_later(EVERY_S, lambda: self._catch_up(kind))

    def _catch_up(self, kind: tuple[str, str]) -> None:
        unsaid = self._unsaid.pop(kind)
        if unsaid.last is None:
            return
        unsaid.of.pop(self._whom(unsaid.last), None)
        others = [{**refused._asdict(), "times": times} for refused, times in unsaid.of.items()]
        self._say(kind, unsaid.times, unsaid.last, **({"others": others[:MOST_OTHERS]} if others else {}))
