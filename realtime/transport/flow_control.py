"""The flow control of one connection: what waits in either direction, and for how long.

It knows sizes, bounds and deadlines: messages that the app has not read yet, bytes that the peer has not
taken yet, and whether anything is heard from the peer at all. It knows nothing of WebSocket frames, and
neither direction ever waits for the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import socket
import struct
import sys
import termios
from collections import deque
from collections.abc import Callable

from realtime.transport.websocket_framing import DataMessage
from realtime.transport.websocket_handshake import Message


class ReceiveQueue:
    """Messages on their way to the app. While too much waits, nothing more is read from the socket."""

    def __init__(self, transport: asyncio.Transport, *, max_messages: int, max_bytes: int) -> None:
        self._transport = transport
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._waiting: deque[tuple[Message | DataMessage, int]] = deque()
        self._waiting_bytes = 0
        self._disconnect: Message | None = None
        self._news = asyncio.Event()
        self._reading = True
        self._held = False

    @property
    def waiting_bytes(self) -> int:
        return self._waiting_bytes

    @property
    def reading(self) -> bool:
        return self._reading

    @property
    def ended(self) -> bool:
        return self._disconnect is not None

    def put(self, message: Message | DataMessage, size: int) -> None:
        self._waiting.append((message, size))
        self._waiting_bytes += size
        self._news.set()
        self._set_reading()

    def end(self, code: int, reason: str = "", *, by_peer: bool = False) -> None:
        """Nothing follows what waits now. The first end is the one that counts."""
        if self._disconnect is None:
            said = {"code": code, "reason": reason, "by_peer": by_peer}
            self._disconnect = {"type": "websocket.disconnect", **said}
            self._news.set()
            self._set_reading()

    def forget(self) -> None:
        """What waits: nobody takes it any more."""
        self._waiting.clear()
        self._waiting_bytes = 0

    def hold(self) -> None:
        """Read nothing for a while: what the peer sends meanwhile waits at its own end."""
        self._held = True
        self._set_reading()

    def release(self) -> None:
        self._held = False
        self._set_reading()

    async def get(self) -> Message | DataMessage:
        """The next message; once all are taken, the disconnect, as often as it is asked for."""
        while not self._waiting and self._disconnect is None:
            self._news.clear()
            await self._news.wait()
        if self._waiting:
            return self._take()
        assert self._disconnect is not None
        return self._disconnect

    def _take(self) -> Message | DataMessage:
        message, size = self._waiting.popleft()
        self._waiting_bytes -= size
        self._set_reading()
        return message

    def _set_reading(self) -> None:
        # After the end we read on, to throw away: the peer's close frame and its end of stream lie behind.
        full = len(self._waiting) >= self._max_messages or self._waiting_bytes >= self._max_bytes
        reading = not (self._held or (full and not self.ended))
        if reading == self._reading or self._transport.is_closing():
            return
        self._reading = reading
        if reading:
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()


class SendBuffer:
    """Bytes on their way to the peer. One that takes nothing of them for `timeout_s` is cut off."""

    def __init__(self, transport: asyncio.Transport, *, high_water_bytes: int, timeout_s: float) -> None:
        transport.set_write_buffer_limits(high=high_water_bytes)
        self._transport = transport
        self._timeout_s = timeout_s
        self._written = 0
        self._released = asyncio.Event()
        self._released.set()
        self._ended = False
        self.writable = True
        self.gave_up = False  # whether the peer was cut off, since it took nothing
        self._deadline: asyncio.TimerHandle | None = None

    def write(self, data: bytes) -> None:
        """Nothing, once the peer is known to have gone: asyncio would log each write that it throws away."""
        if not self._transport.is_closing():
            self._written += len(data)
            self._transport.write(data)

    def hold_nothing(self) -> None:
        """From now on it has room only where all of it has left."""
        if not self._transport.is_closing():
            self._transport.set_write_buffer_limits(high=0)

    def pause(self) -> None:
        if not self._ended:
            self.writable = False
            self._released.clear()
            self._watch()

    def resume(self) -> None:
        self.writable = not self._ended
        self._stop_watching()
        self._released.set()

    def end(self) -> None:
        """Nobody need wait any longer: what is still in the buffer has the close timeout to leave it."""
        self._ended = True
        self.resume()

    async def released(self) -> None:
        """Wait until the buffer has room, or this has ended."""
        while not self._released.is_set():
            await self._released.wait()

    def _watch(self) -> None:
        taken = self._taken
        self._deadline = _later(self._timeout_s, lambda: self._judge(taken))

    @property
    def _taken(self) -> int:
        """What was taken, not what is left: a busy writer may refill the buffer faster than it drains. And by
        the peer, not by our kernel, which takes so much at once that a slow one reads on it for long."""
        return self._written - self._transport.get_write_buffer_size() - unacknowledged(self._transport)

    def _judge(self, taken_before: int) -> None:
        if self._taken > taken_before:
            self._watch()
        else:
            self.gave_up = True
            cut_off(self._transport)

    def _stop_watching(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def unacknowledged(transport: asyncio.BaseTransport) -> int:
    """Bytes of what our kernel has that the peer's has not yet; 0 where none says so."""
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError, AttributeError):  # closed already, or no socket
        return int.from_bytes(fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)), sys.byteorder)
    return 0


def _later(delay_s: float, then: Callable[[], None]) -> asyncio.TimerHandle:
    return asyncio.get_running_loop().call_later(delay_s, then)


def cut_off(transport: asyncio.WriteTransport) -> None:
    """Abort, by a reset: the kernel would keep what it has for a peer that reads nothing, minutes long."""
    sock = transport.get_extra_info("socket")
    with contextlib.suppress(OSError):  # closed already
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def end_output(transport: asyncio.WriteTransport) -> None:
    """Say that nothing follows. A peer that is gone is heard of otherwise."""
    with contextlib.suppress(OSError):
        transport.write_eof()
