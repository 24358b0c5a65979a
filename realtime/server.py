"""The uvicorn server as Midstream runs it, and its graceful shutdown: nothing new starts, what runs may
finish."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import Any, cast

import uvicorn

from midstream.protocol import GoingAway
from realtime.app import Endpoints
from realtime.fleet.fleet import Fleet
from realtime.hub.hub import Hub
from realtime.transport.acceptor import Acceptor
from realtime.transport.flow_control import cut_off
from realtime.transport.http_protocol import TimedHttpProtocol
from realtime.websocket.connection import Connection

log = logging.getLogger("midstream")

CANCEL_S = 2.0  # behind the grace: an engine that answers cancels with its next step
CLOSE_S = 5.0  # for WebSockets, and for answers over HTTP
LOOK_S = 0.25  # between two looks who else may go, of a server that hands over
CUT_OFF_S = 1.0  # of those, for what a connection that was cut off leaves to be done


class Server(uvicorn.Server):
    """uvicorn, but that the first signal begins an orderly end, and only the second ends it at once."""

    def __init__(
        self,
        config: uvicorn.Config,
        ending: Callable[[], Coroutine[Any, Any, None]],
        accepting: Callable[[], None],
        *,
        accepts_to_the_end: bool = True,
    ) -> None:
        """`accepting`: says that it serves. Whoever hears that may tell it to end: it ends in good order."""
        super().__init__(config)
        self._accepting = accepting
        self._accepts_to_the_end = accepts_to_the_end
        self._loop = asyncio.get_running_loop()
        self._ending = ending
        self._end: asyncio.Task[None] | None = None
        self._acceptors: list[Acceptor] = []

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn does, but that whoever was told of SIGTERM while a model was loaded is never told again:
        behind the server a signal ends the process. There is no moment in between in which nobody is told."""
        signal.signal(signal.SIGTERM, self.handle_exit)
        interrupted = signal.signal(signal.SIGINT, self.handle_exit)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, interrupted)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for number in reversed(self._captured_signals):  # a second one
            signal.raise_signal(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])  # which would accept by itself, and log each time that it cannot
        self._acceptors = [Acceptor(listening, self._new_protocol) for listening in sockets or []]
        self._accepting()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._stop_accepting()
        cutting_off = self._loop.call_later(CLOSE_S - CUT_OFF_S, self._cut_off)
        await super().shutdown(sockets)
        cutting_off.cancel()

    async def until_answered(self) -> None:
        """No answer over HTTP is under way: a peer may be slower than the stream that ended for it."""
        for connection in list(self.server_state.connections):
            if isinstance(connection, TimedHttpProtocol):
                await connection.until_answered()

    def _stop_accepting(self) -> None:
        for acceptor in self._acceptors:
            acceptor.close()
        self._acceptors.clear()

    def _cut_off(self) -> None:
        """Whoever takes nothing of an answer: uvicorn would cancel what makes it, and log a failure."""
        for connection in list(self.server_state.connections):
            cut_off(cast(Any, connection).transport)

    def _new_protocol(self) -> asyncio.Protocol:
        protocol_class = cast(Any, self.config.http_protocol_class)
        protocol: asyncio.Protocol = protocol_class(
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return protocol

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._loop.call_soon_threadsafe(self._asked_to_end, sig, frame)

    def _asked_to_end(self, sig: int, frame: FrameType | None) -> None:
        if self._end is None:
            if not self._accepts_to_the_end:
                self._stop_accepting()
            self._end = self._loop.create_task(self._ending())
            self._end.add_done_callback(self._ended)
        else:
            super().handle_exit(sig, frame)

    def _ended(self, end: asyncio.Task[None]) -> None:
        self.should_exit = True
        end.result()


async def let_finish(
    hub: Hub,
    fleet: Fleet,
    endpoints: Endpoints,
    grace_s: float,
    *,
    until_answered: Callable[[], Awaitable[None]],
    hands_over: bool,
) -> None:
    """Start nothing new, let what runs finish within the grace, then close; nobody is waited for any longer
    than for the grace and a moment. `until_answered` waits for answers over HTTP. `hands_over`: what other
    gateways can adopt is theirs at once, and so are its readers."""
    hub.draining = True
    log.info("going away: %d streams have %g s to finish", len(hub.streams), grace_s)
    for connection in list(endpoints.open.values()):
        connection.send_event(GoingAway(deadline_ms=int(grace_s * 1000)))
    if hands_over:
        await _let_go(hub, endpoints)
    finish = partial(_until_all_is_said, hub, endpoints, until_answered)
    if not await _within(grace_s, _letting_go(hub, endpoints, finish) if hands_over else finish()):
        hub.take_nothing_over()
        if hands_over:
            await hub.hand_over(also_read=True)
        hub.cancel_all()
        # What is still looked for, or waits to be tokenized, is no engine's to cancel.
        if not await _within(CANCEL_S, hub.wait_until_empty()) and hub.streams:
            log.error("the engine has cancelled nothing for %g s: it is ended", CANCEL_S)
            fleet.give_up()
    await _close(list(endpoints.open.values()))


async def _let_go(hub: Hub, endpoints: Endpoints) -> None:
    """Whoever has no stream here that ends with this server, and what nobody reads."""
    staying = (connection for connection in endpoints.open.values() if not connection.gone)
    going = [connection for connection in staying if connection.may_go]
    for connection in going:  # what is said there now, and not answered, is said again elsewhere
        connection.leave()
    await hub.hand_over(also_read=False)
    await _close(going)


async def _letting_go(hub: Hub, endpoints: Endpoints, finish: Callable[[], Awaitable[None]]) -> None:
    """Meanwhile those go that stayed for a stream which has ended since, or which an engine has by now."""
    finished = asyncio.Event()

    async def let_go() -> None:
        while not await _within(LOOK_S, finished.wait()):
            await _let_go(hub, endpoints)

    async with asyncio.TaskGroup() as both:
        both.create_task(let_go())
        await finish()
        finished.set()


async def _until_all_is_said(
    hub: Hub, endpoints: Endpoints, until_answered: Callable[[], Awaitable[None]]
) -> None:
    """No stream is left, and whoever reads has been given what ended."""
    await hub.wait_until_empty()
    for connection in list(endpoints.open.values()):
        await connection.until_all_is_said()
    await until_answered()


async def _close(connections: list[Connection]) -> None:
    closing = asyncio.gather(
        *(connection.close_for_good() for connection in connections), return_exceptions=True
    )
    if not await _within(CLOSE_S, closing):
        log.warning("not every connection could be closed within %g s", CLOSE_S)


async def _within(most_s: float, what: Awaitable[object]) -> bool:
    """Whether it came to its end in time; else it is cancelled."""
    try:
        await asyncio.wait_for(what, most_s)
    except TimeoutError:
        return False
    return True
