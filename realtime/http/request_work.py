"""The work of HTTP requests on the event loop: a caller's is done piece after piece, within the caller's
budget, and others have their turn between the pieces.

A caller is a tenant at an address, however many connections and requests that has. It knows callers and
seconds, and not what a request asks for.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from realtime.http.guard import caller_of
from realtime.http.sse import watched_for_disconnect
from realtime.hub.observers import Caller
from realtime.pieces import Pieces
from realtime.refusal import Refusal
from realtime.transport.awaited_connections import network_of
from realtime.work_budget import WorkBudget

SHARE = 0.3  # of the event loop's time: a caller over HTTP may be an application, with users of its own
FEW = 1_000  # callers that are remembered without a look at who of them has paid
MOST_WAITING = 256  # brief requests of a caller, each of which has a connection meanwhile

T = TypeVar("T")


class CallerWork:
    """Of one caller."""

    def __init__(self) -> None:
        self._budget = WorkBudget(time.monotonic(), SHARE)
        self._turn = asyncio.Lock()
        self.waiting = 0  # brief requests

    async def do(self, piece: Callable[[], T], price_s: float = 0.0) -> T:
        """Do a piece of work when it is its turn. `price_s` is for what it has others do, beside its own
        time."""
        async with self._turn:
            # Of one that was given up while it paid, or that took effect later.
            if debt_s := self._budget.debt_s(time.monotonic()):
                await asyncio.sleep(debt_s)
            began_s = time.thread_time()
            try:
                return piece()
            finally:
                await self.pay(time.thread_time() - began_s + price_s)

    async def finish(self, work: Pieces[T]) -> T:
        """Do all of it, piece by piece."""
        while True:
            ended = await self.do(partial(_go_on, work))
            if ended is not None:
                return ended[0]

    def owe(self, work_s: float) -> None:
        """For what was done: it is paid for before more is."""
        self._budget.pay(work_s, time.monotonic())

    async def pay(self, work_s: float) -> None:
        """For what was done: returns when others have had their turn."""
        wait_s = self._budget.pay(work_s, time.monotonic())
        if wait_s is not None:
            await asyncio.sleep(wait_s)

    @property
    def idle(self) -> bool:
        return not (self._turn.locked() or self.waiting) and self._budget.is_unspent(time.monotonic())


def _go_on(work: Pieces[T]) -> tuple[T] | None:
    try:
        next(work)
    except StopIteration as done:
        return (done.value,)
    return None


class RequestWork:
    """Of all callers. Whoever has paid for all is forgotten."""

    def __init__(self) -> None:
        self._callers: dict[tuple[str, str], CallerWork] = {}
        self._many = FEW

    def __len__(self) -> int:
        return len(self._callers)

    def of(self, caller: Caller) -> CallerWork:
        key = caller.tenant, network_of(caller.address)
        if key not in self._callers:
            self._forget_idle()
            self._callers[key] = CallerWork()
        return self._callers[key]

    async def response(self, request: Request, make: Callable[[], Response]) -> Response:
        """What is made when it is the caller's turn; to nobody, who is gone before, nothing is."""
        response = Response()
        async with watched_for_disconnect(request.receive):
            response = await self.of(caller_of(request)).do(make)
        return response  # noqa: RET504

    async def brief_response(self, request: Request, pieces: Pieces[Response]) -> Response:
        """The same, of what counts as no open connection: a caller may have so many wait, and no more."""
        response, work = Response(), self.of(caller_of(request))
        if work.waiting >= MOST_WAITING:
            raise Refusal(
                "rate_limited",
                f"{MOST_WAITING} requests of yours wait for their turn: send this again when some are "
                "answered.",
                retry_after_ms=1000,
            )
        work.waiting += 1
        try:
            async with watched_for_disconnect(request.receive):
                response = await work.finish(pieces)
        finally:
            work.waiting -= 1
        return response

    def _forget_idle(self) -> None:
        if len(self._callers) >= self._many:
            self._callers = {key: work for key, work in self._callers.items() if not work.idle}
            self._many = max(FEW, 2 * len(self._callers))
