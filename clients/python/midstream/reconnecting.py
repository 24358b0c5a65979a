"""A line to a server that outlasts its connections: where one is lost, it dials anew.

Knows when it is worth while and for how long; the only place that waits between tries. What is said on a
connection is the exchange's.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Literal

from midstream.backoff import Backoff
from midstream.connection import NORMAL_CLOSURE, Connection
from midstream.dial import Dial
from midstream.errors import ConnectionLost, MidstreamError, RequestError, connection_closed
from midstream.protocol import Event, Ping, Pong
from midstream.session import Exchange

LineState = Literal["open", "reconnecting", "closed"]


class Line:
    """An outage begins when a connection is lost, and ends when the server has answered on another."""

    def __init__(
        self,
        dial: Dial,
        connection: Connection,
        reconnect_s: float,
        tell: Callable[[LineState], object] | None,
    ) -> None:
        self.connection = connection  # the newest
        self.exchange = Exchange()
        self._dial = dial
        self._reconnect_s = reconnect_s
        self._tell = tell
        self._told: LineState = "open"
        self._closing = False
        self._back: asyncio.Future[Event] | None = None  # the answer that ends the outage
        self._backoff = Backoff(0)
        self._why: ConnectionLost | RequestError  # the last try was in vain
        self._replaced: list[str] = []  # sessions of this outage that the server may still hold open
        self.exchange.connect(connection)
        self._task = asyncio.create_task(self._keep())

    @property
    def state(self) -> LineState:
        if self._task.done() or self._closing:
            return "closed"
        return "reconnecting" if self._out or not self.exchange.connected else "open"

    @property
    def _out(self) -> bool:
        return self._back is not None and not self._back.done()

    async def close(self) -> None:
        """Send what is still to be sent, then close."""
        self._closing = True
        self.exchange.part()
        if self.exchange.connected:
            # By way of the loop, as a dropped stream's cancel goes: what was dropped before goes first.
            self.exchange.loop.call_soon(self.connection.finish)
        else:
            self._task.cancel()
        await asyncio.wait([self._task])

    async def _keep(self) -> None:
        """Carry one connection after another. Whatever ends that, everybody is told."""
        lost = ConnectionLost("the connection's reader was stopped", code=None, retryable=False)
        try:
            lost = await self.connection.carry(self.exchange.take)
            while lost.retryable and self._reconnect_s > 0 and not self._closing:
                self.exchange.disconnect()
                self.connection = await self._another(lost)
                self.exchange.connect(self.connection, self._replaced, self._backoff.deadline)
                lost = await self.connection.carry(self.exchange.take)
        except ConnectionLost as given_up:
            lost = given_up
        finally:
            if self._closing and not self.exchange.connected:
                lost = connection_closed(NORMAL_CLOSURE, "")
            self.exchange.lose(lambda: ConnectionLost(str(lost), code=lost.code, retryable=lost.retryable))
            self._closing = True
            self._look()
        await self.connection.closed()

    # -- an outage -------------------------------------------------------------------------------------

    async def _another(self, lost: ConnectionLost) -> Connection:
        """The next connection. Raises ConnectionLost where there is none to be had in time."""
        if not self._out:
            self._begin_outage()
        self._replaced.append(self.connection.ready.session_id)
        self._look()
        self._why = lost
        try:
            async with asyncio.timeout_at(self._backoff.deadline):
                return await self._redial()
        except TimeoutError:
            last: MidstreamError = self._why
        except MidstreamError as error:
            last = error
        again = "it could not be made again" + ("" if last is lost else f": {last}")
        raise ConnectionLost(f"{lost}; {again}", code=lost.code, retryable=getattr(last, "retryable", False))

    def _begin_outage(self) -> None:
        self._backoff = Backoff(self.exchange.loop.time() + self._reconnect_s)
        self._replaced = []
        # Said last on each new connection. Once it is answered, all that was said before has been heard.
        self._back = self.exchange.ask(Ping(), Pong)
        self._back.add_done_callback(self._on_back)

    async def _redial(self) -> Connection:
        """Try until it succeeds. Raises what there is no use or no time in trying against."""
        while True:
            now, chance = self.exchange.loop.time(), random.random()
            wait_s = self._backoff.wait_s(now, chance, _retry_after_s(self._why))
            if wait_s is None:
                raise self._why
            await asyncio.sleep(wait_s)
            try:
                return await self._dial.open()
            except (ConnectionLost, RequestError) as error:
                if not error.retryable:
                    raise
                self._why = error

    def _on_back(self, back: asyncio.Future[Event]) -> None:
        back.exception()  # if it is one, everybody has been told
        self._look()

    def _look(self) -> None:
        """Tell of the line's state where it has changed. By way of the loop: its faults are not ours."""
        if self.state != self._told:
            self._told = self.state
            if self._tell is not None:
                self.exchange.loop.call_soon(self._tell, self._told)


def _retry_after_s(error: ConnectionLost | RequestError) -> float:
    return (error.retry_after_ms or 0) / 1000 if isinstance(error, RequestError) else 0.0
