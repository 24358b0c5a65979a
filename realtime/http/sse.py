"""Server-sent events (SSE): a response that goes on for as long as its source has something to say.

It knows pace and silence: a heartbeat where nothing was said for a while, a deadline for a reader that takes
nothing, and that whoever goes away is noticed at once. What the bytes mean is the source's business.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Protocol

from msgspec import Struct
from starlette.types import Receive, Send

from realtime.hub.observers import DisconnectCause
from realtime.refusal import Refusal

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache, no-transform",
    "X-Accel-Buffering": "no",  # nginx would collect events until a buffer is full
}
HEARTBEAT = b":\n\n"
EVENT_END = b"\n\n"  # and in no event: its data is JSON on one line
# At most at once: who reads this in `stalled_s`, with as much that waits in the transport, reads on.
PIECE_BYTES = 8 * 1024
TOO_SLOW = Refusal(
    "overloaded", "You read nothing for too long, and this has ended here: try again.", retry_after_ms=1000
)


class SseTimeouts(Struct, frozen=True):
    heartbeat_s: float = 15.0  # of silence
    stalled_s: float = 15.0  # how long a reader may take nothing; the transport cuts it off somewhat later


class Source(Protocol):
    @property
    def over(self) -> bool: ...

    async def wait_for_news(self) -> None: ...

    async def take(self) -> bytes:
        """All that may be said now. Whoever gives it up has lost what was taken."""

    def accepted(self) -> None:
        """What was taken has gone out."""

    def leave(self, cause: DisconnectCause = "closed") -> None:
        """Nobody reads on."""

    def too_slow_event(self) -> bytes:
        """What to say last to a reader that was too slow."""


def format_event(data: bytes, event_id: int | str | None = None) -> bytes:
    """`event_id` is what an EventSource that comes again says that it had last."""
    said = b"" if event_id is None else b"id: %b\n" % str(event_id).encode()
    return b"%bdata: %b\n\n" % (said, data)


@asynccontextmanager
async def watched_for_disconnect(
    receive: Receive, leave: Callable[[], None] = lambda: None
) -> AsyncIterator[None]:
    """As soon as the client has gone away `leave` is called, and what is done meanwhile is given up; `leave`
    is called at the end in any case."""
    serving = asyncio.current_task()
    assert serving is not None

    async def give_up_when_gone() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        leave()
        serving.cancel()

    watching = asyncio.get_running_loop().create_task(give_up_when_gone())
    try:
        yield
    except asyncio.CancelledError:
        if not watching.done() or serving.uncancel():
            raise
    finally:
        watching.cancel()
        leave()


async def stream_events(source: Source, send: Send, headers: dict[str, str], timeouts: SseTimeouts) -> None:
    pairs = [(name.lower().encode(), value.encode()) for name, value in (HEADERS | headers).items()]
    await send({"type": "http.response.start", "status": 200, "headers": pairs})
    last, whole, body = b"", True, await source.take()
    try:
        while True:
            for piece in _pieces(body):
                async with asyncio.timeout(timeouts.stalled_s):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                whole = piece.endswith(EVENT_END)
            source.accepted()
            if source.over:
                break
            body = await _next(source, timeouts.heartbeat_s)
    except TimeoutError:
        source.leave("slow")
        last = (b"" if whole else EVENT_END) + source.too_slow_event()
    await send({"type": "http.response.body", "body": last, "more_body": False})


def _pieces(body: bytes) -> Iterator[bytes]:
    """Whole events, as many as fit; one that does not fit by itself is cut."""
    at = 0
    while at < len(body):
        end = body.rfind(EVENT_END, at, at + PIECE_BYTES)
        end = at + PIECE_BYTES if end < 0 else end + len(EVENT_END)
        yield body[at:end]
        at = end


async def _next(source: Source, heartbeat_s: float) -> bytes:
    heartbeat_at = asyncio.get_running_loop().time() + heartbeat_s
    while True:
        try:
            async with asyncio.timeout_at(heartbeat_at):
                await source.wait_for_news()
        except TimeoutError:
            return HEARTBEAT
        if (said := await source.take()) or source.over:
            return said
