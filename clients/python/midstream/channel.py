"""A stream's place in the exchange: it brings events to the core, and wakes who waits for them.

The exchange holds channels, and a channel does not know the object that the user holds: when that is
dropped, it goes, and the stream is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from midstream.backoff import Backoff
from midstream.errors import MidstreamError, from_code
from midstream.protocol import Cancel, Event, Frame, Grant, Start, StreamEvent
from midstream.stream_core import StreamCore

if TYPE_CHECKING:
    from midstream.session import Exchange

E = TypeVar("E", bound=Event)


class Channel:
    """What the exchange knows of a stream, and the stream of the exchange.

    `start` is the frame that started it, if it was started here; `kept` says that the user has named what
    becomes of it when its connection ends.
    """

    def __init__(
        self, exchange: Exchange, request_id: str, core: StreamCore, start: Start | None, *, kept: bool
    ) -> None:
        self.request_id = request_id
        self.core = core
        self.start = start
        self.kept = kept
        self.unwanted = False
        self.away: str | None = None  # the ref of the frame that brings it to a new connection, until it has
        self.retold = False  # whether that came with a snapshot
        self.backoff = Backoff(0)
        self._exchange = exchange
        self._failure: Callable[[], MidstreamError] | None = None
        self._news = asyncio.Event()

    @property
    def reached(self) -> bool:
        """Whether what is said about it is heard now."""
        return self._exchange.connected and self.away is None

    def send(self, frame: Grant) -> None:
        self._exchange.send(frame)

    async def request(self, frame: Frame, answer: type[E]) -> E:
        """Send a frame about this stream and wait for its answer."""
        if self.core.final is not None:
            raise from_code("request_finished", "the stream has ended", self.request_id)
        return await self._exchange.request(frame, answer)

    def feed(self, event: StreamEvent) -> None:
        self.core.on(event)
        self._news.set()

    def fail(self, failure: Callable[[], MidstreamError]) -> None:
        """No more events will come."""
        self._failure = failure
        self._news.set()

    @property
    def lost(self) -> bool:
        """Whether no more events will come, though the stream had not ended."""
        return self._failure is not None

    def check(self) -> None:
        """Raise why no more events will come, if none will."""
        if self._failure is not None:
            raise self._failure()

    async def news(self) -> None:
        """Wait for the next event, or the end of events."""
        self._news.clear()
        await self._news.wait()

    def abandon(self) -> None:
        """Nobody wants this stream any more: cancel it. From any thread: finalizers run anywhere."""
        with suppress(RuntimeError):  # the loop is closed, and the connection with it
            self._exchange.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.core.final is None and not self.lost and not self.unwanted:
            self.unwanted = True
            self._exchange.send(Cancel(request_id=self.request_id))
