"""The work of HTTP requests on the event loop: a caller's is done piece after piece, when it is their turn,
and for whoever is gone by then nothing is done.

It knows requests and who makes them, and not what is asked for.
"""

from __future__ import annotations

from asyncio import Lock
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from realtime.http.guard import caller_of
from realtime.http.sse import watched_for_disconnect
from realtime.hub.observers import Caller
from realtime.pieces import Pieces
from realtime.refusal import Refusal
from realtime.transport.awaited_connections import network_of
from realtime.work_ledger import PayerWork, WorkLedger

MOST_WAITING = 256  # brief requests of a payer, each of which has a connection meanwhile
MOST_UNREAD = 8 << 20  # bytes of their answers that have yet to leave, but for those that have ...
SMALL = 16 << 10


class UnreadAnswer(Response):
    """One that its payer has us hold until it has left, which is as slow as whoever reads."""

    def __init__(self, answer: Response, unread: Counter[PayerWork], work: PayerWork) -> None:
        super().__init__()
        self._answer = answer
        self._unread = unread
        self._work = work

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = len(self._answer.body)
        self._unread[self._work] += size
        try:
            await self._answer(scope, receive, send)
        finally:
            self._unread[self._work] -= size
            if not self._unread[self._work]:
                del self._unread[self._work]


class RequestWork:
    def __init__(self, ledger: WorkLedger | None = None) -> None:
        self._ledger = WorkLedger() if ledger is None else ledger
        self._waiting = Counter[tuple[PayerWork, bool]]()  # brief requests, and those that stop something
        self._unread = Counter[PayerWork]()  # bytes
        self._lines = WeakKeyDictionary[PayerWork, Lock]()

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

    async def brief_response(self, request: Request, pieces: Pieces[Response]) -> Response:
        """The same, of what counts as no open connection, and is made piece by piece: a payer's one after the
        other, since each is large when it is half made."""
        response, work = Response(), self.of(caller_of(request))
        with self.waiting(work):
            async with watched_for_disconnect(request.receive), self._lines.setdefault(work, Lock()):
                response = await work.finish(pieces)
        return response if len(response.body) <= SMALL else self._until_it_has_left(response, work)

    def _until_it_has_left(self, answer: Response, work: PayerWork) -> Response:
        if self._unread[work] + len(answer.body) > MOST_UNREAD:
            raise Refusal(
                "rate_limited",
                f"{MOST_UNREAD >> 20} MiB of answers of yours wait to be read: read some, and ask again.",
                retry_after_ms=1000,
            )
        return UnreadAnswer(answer, self._unread, work)

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
