"""A stream's place on its connection: it brings events to the core, and wakes who waits for them.

The connection holds channels, and a channel does not know the object that the user holds: when that is
dropped, it goes, and the stream is cancelled.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from midstream.errors import MidstreamError, from_code
from midstream.protocol import Cancel, Event, Frame, StreamEvent
from midstream.stream import StreamCore

if TYPE_CHECKING:
    from midstream.connection import Connection

E = TypeVar("E", bound=Event)


class Channel:
    """What the connection knows of a stream, and the stream of its connection."""

    def __init__(self, connection: Connection, request_id: str, core: StreamCore) -> None:
        self.request_id = request_id
        self.core = core
        self._connection = connection
        self._failure: Callable[[], MidstreamError] | None = None
        self._cancelled = False
        self._news = asyncio.Event()

    def send(self, frame: Frame) -> None:
        self._connection.send(frame)

    async def request(self, frame: Frame, answer: type[E]) -> E:
        """Send a frame about this stream and wait for its answer."""
        if self.core.final is not None:
            raise from_code("request_finished", "the stream has ended", self.request_id)
        return await self._connection.request(frame, answer, self.request_id)

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
            self._connection.loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        if self.core.final is None and not self.lost and not self._cancelled:
            self._cancelled = True
            self._connection.send(Cancel(request_id=self.request_id))
