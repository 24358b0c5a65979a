"""The work of HTTP requests on the event loop: a caller's is done piece after piece, when it is their turn,
and for whoever is gone by then nothing is done.

It knows requests and who makes them, and not what is asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import Response

from realtime.http.guard import caller_of
from realtime.http.sse import watched_for_disconnect
from realtime.hub.observers import Caller
from realtime.pieces import Pieces
from realtime.refusal import Refusal
from realtime.transport.awaited_connections import network_of
from realtime.work_ledger import PayerWork, WorkLedger

MOST_WAITING = 256  # brief requests of a payer, each of which has a connection meanwhile


class RequestWork:
    def __init__(self, ledger: WorkLedger | None = None) -> None:
        self._ledger = WorkLedger() if ledger is None else ledger
        self._waiting = Counter[tuple[PayerWork, bool]]()  # brief requests, and those that stop something

    def of(self, caller: Caller) -> PayerWork:
        """A tenant pays for all its keys. Without a key an address does, for whatever comes from there."""
        return self._ledger.of(
            network_of(caller.address) if caller.key is None else ("tenant", caller.tenant)
        )

    async def response(self, request: Request, make: Callable[[], Response]) -> Response:
        """What is made when it is the caller's turn; to nobody, who is gone before, nothing is."""
        response = Response()
        async with watched_for_disconnect(request.receive):
            response = await self.of(caller_of(request)).do(make)
        return response  # noqa: RET504

    async def brief_response(
        self, request: Request, pieces: Pieces[Response], *, is_stop: bool = False
    ) -> Response:
        """The same, of what counts as no open connection."""
        response, work = Response(), self.of(caller_of(request))
        with self.waiting(work, is_stop=is_stop):
            async with watched_for_disconnect(request.receive):
                response = await work.finish(pieces)
        return response

    @contextmanager
    def waiting(self, work: PayerWork, *, is_stop: bool = False) -> Iterator[None]:
        """A brief request waits, for its turn or for an answer: a payer may have so many do so, and no
        more. What stops something waits beside as many of its kind, whatever else was asked."""
        kind = work, is_stop
        if self._waiting[kind] >= MOST_WAITING:
            raise Refusal(
                "rate_limited",
                f"{MOST_WAITING} requests of yours wait to be answered: send this again when some are.",
                retry_after_ms=1000,
            )
        self._waiting[kind] += 1
        try:
            yield
        finally:
            self._waiting[kind] -= 1
            if not self._waiting[kind]:
                del self._waiting[kind]
