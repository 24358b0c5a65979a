"""Reconnecting: one connection after another, to the same server or to the next, and when to give up.

Knows when another try is worth while and for how long; the only place that waits between tries. What is sent
on a connection is the session's.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import Literal

from midstream.backoff import Backoff
from midstream.connection import GOING_AWAY, NORMAL_CLOSURE, Connection
from midstream.dial import Dialer
from midstream.errors import ConnectionLost, MidstreamError, RequestError, connection_closed
from midstream.protocol import Event, Ping, Pong, Token
from midstream.session import Session

ClientState = Literal["open", "reconnecting", "closed"]


class Reconnecting:
    """An outage begins when a connection is lost, and ends when the server has answered on another."""

    def __init__(
        self,
        dialer: Dialer,
        connection: Connection,
        reconnect_s: float,
        on_state: Callable[[ClientState], object] | None,
    ) -> None:
        self.connection = connection  # the newest
        self.session = Session(reconnect_s, self._leave)
        self._dialer = dialer
        self._reconnect_s = reconnect_s
        self._on_state = on_state
        self._reported: ClientState = "open"
        self._closing = False
        self._recovery: asyncio.Future[Event] | None = None  # the answer that ends the outage
        self._backoff = Backoff(0)
        self._last_error: ConnectionLost | RequestError  # of the tries in this outage
        self._replaced: list[str] = []  # the server's sessions of this outage, which it may still hold open
        self._since = self.session.loop.time()  # of the newest connection
        self._moved = False  # whether a stream has moved on over that
        self.session.connect(connection)
        self._task = asyncio.create_task(self._run())

    @property
    def state(self) -> ClientState:
        if self._task.done() or self._closing:
            return "closed"
        return "reconnecting" if self._in_outage or not self.session.connected else "open"

    @property
    def _in_outage(self) -> bool:
        return self._recovery is not None and not self._recovery.done()

    async def close(self) -> None:
        """Send what is still to be sent, then close."""
        self.session.check_loop()
        self._closing = True
        self.session.cancel_streams()
        if self.session.connected:
            # By way of the loop, as a dropped stream's cancel goes: what was dropped before goes first.
            self.session.loop.call_soon(self.connection.close)
        else:
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _run(self) -> None:
        """Run one connection after another. Whatever ends that, everybody is told."""
        lost = ConnectionLost("the connection's reader was stopped", code=None, retryable=False)
        try:
            lost = await self.connection.run(self._receive)
            while lost.retryable and self._reconnect_s > 0 and not self._closing:
                self.session.disconnect()
                self.connection = await self._reconnect(lost)
                self._since, self._moved = self.session.loop.time(), False
                self.session.connect(self.connection, self._replaced, self._backoff.deadline)
                lost = await self.connection.run(self._receive)
        except ConnectionLost as given_up:
            lost = given_up
        finally:
            if self._closing and not self.session.connected:
                lost = connection_closed(NORMAL_CLOSURE, "")
            self.session.fail(lambda: ConnectionLost(str(lost), code=lost.code, retryable=lost.retryable))
            self._closing = True
            self._report_state()
        await self.connection.wait_closed()

    def _receive(self, event: Event) -> None:
        self._moved = self._moved or isinstance(event, Token)
        self.session.receive(event)

    def _leave(self) -> None:
        """The server goes away, and nothing holds us there."""
        self.connection.close(GOING_AWAY)

    # -- an outage -------------------------------------------------------------------------------------

    async def _reconnect(self, lost: ConnectionLost) -> Connection:
        """The next connection. Raises ConnectionLost where there is none to be had in time."""
        if not self._in_outage:
            self._begin_outage()
        self._replaced.append(self.connection.ready.session_id)
        self._report_state()
        self._last_error = lost
        try:
            async with asyncio.timeout_at(self._backoff.deadline):
                return await self._redial()
        except TimeoutError:
            last: MidstreamError = self._last_error
        except MidstreamError as error:
            last = error
        again = "it could not be made again" + ("" if last is lost else f": {last}")
        raise ConnectionLost(f"{lost}; {again}", code=lost.code, retryable=getattr(last, "retryable", False))

    def _begin_outage(self) -> None:
        now = self.session.loop.time()
        lasted_s = math.inf if self._moved else now - self._since
        self._backoff.begin_anew(now + self._reconnect_s, lasted_s)
        self._replaced = []
        # Sent last on each new connection. Once it is answered, all that was sent before has been received.
        self._recovery = self.session.send_request(Ping(), Pong)
        self._recovery.add_done_callback(self._end_outage)

    async def _redial(self) -> Connection:
        """Try until it succeeds. Raises what there is no use or no time in trying against."""
        while True:
            now, jitter = self.session.loop.time(), random.random()
            wait_s = self._backoff.wait_s(now, jitter, _retry_after_s(self._last_error))
            if wait_s is None:
                raise self._last_error
            await asyncio.sleep(wait_s)
            try:
                return await self._dialer.dial()
            except (ConnectionLost, RequestError) as error:
                if not error.retryable:
                    raise
                self._last_error = error

    def _end_outage(self, recovery: asyncio.Future[Event]) -> None:
        recovery.exception()  # if it is one, everybody has been told
        self._report_state()

    def _report_state(self) -> None:
        """Call `on_state` where the state has changed. By way of the loop: its faults are not ours."""
        if self.state != self._reported:
            self._reported = self.state
            if self._on_state is not None:
                self.session.loop.call_soon(self._on_state, self._reported)


def _retry_after_s(error: ConnectionLost | RequestError) -> float:
    return (error.retry_after_ms or 0) / 1000 if isinstance(error, RequestError) else 0.0
