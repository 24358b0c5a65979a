"""The log of refusals: who was told no, where and with which code, a line a second at most of each kind.

It repeats nothing of what was asked for. How often each was refused in all is counted in `metrics`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import structlog
from msgspec import Struct

from realtime.hub.observers import Caller, Observer

EVERY_S = 1.0


class Timer(Protocol):
    def cancel(self) -> None: ...


class Unsaid(Struct):
    """Refusals of one kind since its last line."""

    times: int = 0
    last: Caller | None = None


class RefusalLog(Observer):
    def __init__(self, call_later: Callable[[float, Callable[[], None]], Timer] | None = None) -> None:
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("midstream.refusals")
        self._call_later = call_later or (
            lambda delay, call: asyncio.get_running_loop().call_later(delay, call)
        )
        self._unsaid: dict[tuple[str, str], Unsaid] = {}  # by code and endpoint: few

    def refused(self, code: str, caller: Caller) -> None:
        kind = code, caller.endpoint
        if kind in self._unsaid:
            self._unsaid[kind].times += 1
            self._unsaid[kind].last = caller
        else:
            self._say(kind, 1, caller)

    def _say(self, kind: tuple[str, str], times: int, caller: Caller) -> None:
        code, endpoint = kind
        self._log.warning(
            "refused",
            code=code,
            endpoint=endpoint,
            times=times,
            tenant=caller.tenant,
            key=caller.key,
            address=caller.address,
        )
        self._unsaid[kind] = Unsaid()
        self._call_later(EVERY_S, lambda: self._catch_up(kind))

    def _catch_up(self, kind: tuple[str, str]) -> None:
        unsaid = self._unsaid.pop(kind)
        if unsaid.last is not None:
            self._say(kind, unsaid.times, unsaid.last)
