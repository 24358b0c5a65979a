"""One WebSocket with many streams on it: frames out in order, events in, each to the stream that it is about.

The only module that touches a socket. One task reads and one writes. The reader never waits for anybody: a
stream with explicit credit can only be sent what was granted, so an unread stream cannot delay its
neighbours; with automatic credit the server takes what this reader has read as taken, and it waits in
memory.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar, cast

import msgspec
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from midstream.channel import Channel
from midstream.errors import (
    ABNORMAL_CLOSURE,
    ConnectionLost,
    MidstreamError,
    ProtocolError,
    connection_closed,
    from_code,
    from_event,
)
from midstream.protocol import (
    MSGPACK_SUBPROTOCOL,
    VERSION,
    Error,
    Event,
    Final,
    Frame,
    GoingAway,
    Pong,
    Ready,
    ServerEvent,
    StreamEvent,
)

E = TypeVar("E", bound=Event)
log = logging.getLogger("midstream")

NORMAL_CLOSURE, PROTOCOL_VIOLATION = 1000, 1002  # RFC 6455, 7.4.1


class Pending(NamedTuple):
    """A frame that waits for its answer: an event of this kind with the frame's ref, or an error."""

    request_id: str | None
    answer: type[Event]
    future: asyncio.Future[Event]


class Connection:
    """An open WebSocket. Sending never blocks: only `open`, `close` and `request` wait for something."""

    def __init__(self, socket: ClientConnection) -> None:
        self.ready: Ready
        self.draining = False
        self.loop = asyncio.get_running_loop()
        self._socket = socket
        self._packed = socket.subprotocol == MSGPACK_SUBPROTOCOL
        codec: Any = msgspec.msgpack if self._packed else msgspec.json
        self._encode: Callable[[Frame], bytes] = codec.Encoder().encode
        self._decode: Callable[[bytes], ServerEvent] = codec.Decoder(ServerEvent).decode
        self._channels: dict[str, Channel] = {}
        self._pending: dict[str, Pending] = {}
        self._refs = itertools.count()
        self._outgoing: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._lost: Callable[[], MidstreamError] | None = None
        self._close_code = NORMAL_CLOSURE
        self._tasks: list[asyncio.Task[None]] = []

    async def open(self) -> None:
        """Wait for the server's first word, and go to work."""
        first = await self._receive()
        if isinstance(first, Error):
            raise from_event(first)
        if not isinstance(first, Ready) or first.protocol != VERSION:
            raise ProtocolError(f"expected `ready` of protocol {VERSION}, got {first}")
        self.ready = first
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._write())]

    async def close(self) -> None:
        """Send what is still to be sent, then close."""
        # By way of the loop, as a dropped stream's cancel goes: what was dropped before is cancelled first.
        self.loop.call_soon(self._outgoing.put_nowait, None)
        await asyncio.wait(self._tasks)

    def add(self, channel: Channel) -> None:
        """Make a place for a stream's events, before its `start` is sent."""
        if self._lost is not None:
            raise self._lost()
        if channel.request_id in self._channels:
            message = f"{channel.request_id!r} is running on this connection already"
            raise from_code("request_conflict", message, channel.request_id)
        self._channels[channel.request_id] = channel

    def send(self, frame: Frame) -> None:
        """Put a frame in line for sending."""
        if self._lost is not None:
            raise self._lost()
        self._outgoing.put_nowait(self._encode(frame))

    async def request(self, frame: Frame, answer: type[E], request_id: str | None = None) -> E:
        """Send a frame and wait for its answer. Raises what went wrong, if it did."""
        frame.ref = str(next(self._refs))
        future: asyncio.Future[Event] = self.loop.create_future()
        self._pending[frame.ref] = Pending(request_id, answer, future)
        try:
            self.send(frame)
            return cast(E, await future)
        finally:
            del self._pending[frame.ref]

    # -- the two tasks ---------------------------------------------------------------------------------

    async def _write(self) -> None:
        try:
            while (data := await self._outgoing.get()) is not None:
                await self._socket.send(data, text=not self._packed)
            await self._socket.close(self._close_code)
        except ConnectionClosed:
            pass  # the reader sees it too, and tells everybody

    async def _read(self) -> None:
        lost: Callable[[], MidstreamError] = _internal_failure
        try:
            while True:
                self._dispatch(await self._receive())
        except ConnectionLost as error:
            lost = _again(error)
        except ProtocolError as error:
            lost = _violation(error)
            self._close_code = PROTOCOL_VIOLATION
        finally:
            self._lose(lost)
            self._outgoing.put_nowait(None)  # closing is the writer's last act

    async def _receive(self) -> ServerEvent:
        try:
            return self._decode(await self._socket.recv(decode=False))
        except ConnectionClosed as closed:
            close = closed.rcvd or closed.sent
            code, reason = (close.code, close.reason) if close else (ABNORMAL_CLOSURE, "")
            raise connection_closed(code, reason) from closed
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ProtocolError(f"an event that cannot be read: {error}") from error

    # -- where events go -------------------------------------------------------------------------------

    def _dispatch(self, event: ServerEvent) -> None:
        match event:
            case StreamEvent():
                if channel := self._channels.get(event.request_id):
                    channel.feed(event)
                self._answer(event.ref, event)
                if isinstance(event, Final):
                    self._end(event)
            case Error():
                self._refuse(event)
            case Pong():
                self._answer(event.ref, event)
            case GoingAway():
                self.draining = True

    def _answer(self, ref: str | None, event: Event) -> None:
        pending = self._pending.get(ref) if ref is not None else None
        # A frame with `at` is answered twice: the `rewound` that it caused is not yet what it waits for.
        if pending is not None and isinstance(event, pending.answer) and not pending.future.done():
            pending.future.set_result(event)

    def _refuse(self, event: Error) -> None:
        pending = self._pending.get(event.ref) if event.ref is not None else None
        self._refuse_start(event, (pending and pending.request_id) or event.request_id)
        if pending is None:
            # A grant that crossed the stream's end, or a word about the connection before it closes.
            log.debug("the server reports %s: %s", event.code, event.message)
        elif not pending.future.done():
            pending.future.set_exception(from_event(event))

    def _refuse_start(self, event: Error, request_id: str | None) -> None:
        channel = self._channels.get(request_id) if request_id is not None else None
        if channel is not None and not channel.core.started:
            del self._channels[channel.request_id]
            channel.fail(lambda: from_event(event))

    def _end(self, final: Final) -> None:
        """Nothing follows a final: whoever still waits for the stream has his answer now."""
        self._channels.pop(final.request_id, None)
        for pending in self._pending.values():
            if pending.request_id != final.request_id or pending.future.done():
                continue
            if pending.answer is Final:
                pending.future.set_result(final)
            else:
                message = "the stream ended before the frame took effect"
                pending.future.set_exception(from_code("request_finished", message, final.request_id))

    def _lose(self, lost: Callable[[], MidstreamError]) -> None:
        self._lost = lost
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(lost())
        for channel in self._channels.values():
            channel.fail(lost)
        self._channels.clear()


# Each who waits is given an exception of his own: one shared by several tasks would mix up their tracebacks.


def _again(lost: ConnectionLost) -> Callable[[], MidstreamError]:
    return lambda: ConnectionLost(str(lost), code=lost.code, retryable=lost.retryable)


def _violation(error: ProtocolError) -> Callable[[], MidstreamError]:
    return lambda: ConnectionLost(str(error), code=PROTOCOL_VIOLATION, retryable=False)


def _internal_failure() -> MidstreamError:
    return ConnectionLost("the connection's reader was stopped", code=None, retryable=False)
