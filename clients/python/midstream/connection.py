"""One WebSocket connection, from the server's `ready` to its end: frames out in order, events in.

The only module that touches a socket. One task reads and one writes. The reader never waits for anybody: a
stream with explicit credit can only be sent what was granted, so an unread stream cannot delay its
neighbours; with automatic credit the server takes what this reader has read as taken, and it waits in
memory. What an event means, and whether another connection follows this one, is not known here.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from typing import Any, get_args

import msgspec
from msgspec import UNSET, Struct, UnsetType
from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

from midstream.errors import (
    ABNORMAL_CLOSURE,
    UNREADABLE,
    ConnectionLost,
    MidstreamError,
    ProtocolError,
    connection_closed,
    from_code,
    from_event,
    silence_timed_out,
)
from midstream.protocol import (
    MSGPACK_SUBPROTOCOL,
    VERSION,
    Error,
    Event,
    Frame,
    Ready,
    ServerEvent,
    StreamEvent,
)

log = logging.getLogger("midstream")

NORMAL_CLOSURE, GOING_AWAY, PROTOCOL_VIOLATION = 1000, 1001, 1002  # RFC 6455, 7.4.1
# The limits that are heeded here. What a client says by itself, as to grant credit, is a shorter message.
_LEAST = {"max_message_bytes": 1000, "max_grace_ms": 0}
_KINDS = frozenset(kind.__struct_config__.tag for kind in get_args(ServerEvent))


class Socket(ClientConnection):
    """It knows whether anything has come. Any byte is a sign of life: what answers a ping waits behind all
    that is on its way, as a whole output where a line is slow."""

    heard = True

    def data_received(self, data: bytes) -> None:
        self.heard = True
        super().data_received(data)


class _AnyEvent(Struct):
    """An event of whatever kind."""

    type: str
    request_id: str | None = None
    seq: int | UnsetType = UNSET


class Connection:
    """An open WebSocket. Sending never blocks."""

    def __init__(self, socket: Socket) -> None:
        self.ready: Ready
        self._socket = socket
        self._binary = socket.subprotocol == MSGPACK_SUBPROTOCOL
        codec: Any = msgspec.msgpack if self._binary else msgspec.json
        self._encode: Callable[[Frame], bytes] = codec.Encoder().encode
        self._decode: Callable[[bytes], Event] = codec.Decoder(ServerEvent).decode
        self._decode_any: Callable[[bytes], _AnyEvent] = codec.Decoder(_AnyEvent).decode
        self._send_queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._close_code = NORMAL_CLOSURE
        self._writer: asyncio.Task[None]

    async def receive_ready(self) -> None:
        """Wait for the server's first event."""
        first = await self._receive()
        if isinstance(first, Error):
            raise from_event(first)
        if not isinstance(first, Ready) or first.protocol != VERSION:
            raise ProtocolError(f"expected `ready` of protocol {VERSION}, got {first}")
        for name, least in _LEAST.items():
            limit = first.limits.get(name, least)
            if not isinstance(limit, int) or limit < least:
                raise ProtocolError(f"expected `{name}` of {least} or more, got {limit!r:.100}")
        self.ready = first

    def send(self, frame: Frame) -> None:
        """Queue a frame. Raises TooLarge for one that the server would end the connection for."""
        data = self._encode(frame)
        most = self.ready.limits.get("max_message_bytes", math.inf)
        if len(data) > most:
            message = f"it would be a message of {len(data)} bytes, and the server takes {most} at most"
            raise from_code("too_large", message, getattr(frame, "request_id", None))
        self._send_queue.put_nowait(data)

    def close(self, code: int | None = None) -> None:
        """Send what is queued, then close."""
        self._close_code = code or self._close_code
        self._send_queue.put_nowait(None)

    async def run(self, receive: Callable[[Event], None]) -> ConnectionLost:
        """Send what is queued and give every event to `receive`, until the connection ends. Returns why."""
        self._writer = asyncio.create_task(self._write())
        listening = asyncio.create_task(self._listen())
        try:
            while True:
                _give(await self._receive(), receive)
        except ConnectionLost as lost:
            return listening.result() if listening.done() else lost
        except ProtocolError as error:
            self._close_code = PROTOCOL_VIOLATION
            return ConnectionLost(str(error), code=PROTOCOL_VIOLATION, retryable=False)
        finally:
            listening.cancel()
            self.close()  # closing is the writer's last act

    async def wait_closed(self) -> None:
        """Wait until both sides have closed."""
        await asyncio.wait([self._writer])

    async def _listen(self) -> ConnectionLost:
        """Until nothing has come twice in the time between two pings: nobody is there."""
        interval_s, silent = self._socket.ping_interval or math.inf, 0
        while silent < 2:
            self._socket.heard = False
            await asyncio.sleep(interval_s)
            silent = 0 if self._socket.heard else silent + 1
        self._socket.transport.abort()
        return silence_timed_out(2 * interval_s)

    async def _write(self) -> None:
        try:
            while (data := await self._send_queue.get()) is not None:
                await self._until_taken(self._socket.send(data, text=not self._binary))
            await self._until_taken(self._socket.close(self._close_code))
        except ConnectionClosed:
            pass  # the reader sees it too, and says so

    async def _until_taken(self, sending: Coroutine[Any, Any, None]) -> None:
        """Pings wait behind what the peer has not taken: where it takes nothing, none of them tells that it
        is gone."""
        task, left = asyncio.create_task(sending), math.inf
        while not (await asyncio.wait([task], timeout=self._socket.ping_interval))[0]:
            before, left = left, self._socket.transport.get_write_buffer_size()
            if left >= before:
                self._socket.transport.abort()
        await task

    async def _receive(self) -> Event:
        try:
            data = await self._socket.recv(decode=False)
        except ConnectionClosed as closed:
            close = closed.rcvd or closed.sent
            code, reason = (close.code, close.reason) if close else (ABNORMAL_CLOSURE, "")
            raise connection_closed(code, reason) from closed
        try:
            return self._decode(data)
        except UNREADABLE as error:
            unknown = self._unknown(data)
            if unknown is None:
                raise ProtocolError(f"an event that cannot be read: {error}") from error
            return unknown

    def _unknown(self, data: bytes) -> Event | None:
        """An event of a kind that is not known here, as of a newer server: it is passed over, and counts
        among those of its stream."""
        try:
            event = self._decode_any(data)
        except UNREADABLE:
            return None
        if event.type in _KINDS:
            return None
        return StreamEvent(request_id=event.request_id, seq=event.seq) if event.request_id else Event()


def _give(event: Event, receive: Callable[[Event], None]) -> None:
    """A value beyond all bounds throws what it will: like an event out of turn, it ends the connection."""
    try:
        receive(event)
    except MidstreamError:
        raise
    except Exception as error:
        log.debug("an event that makes no sense: %.200s", event, exc_info=error)
        raise ProtocolError(f"an event that makes no sense ({error!r}): {str(event)[:100]}") from error
