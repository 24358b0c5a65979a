"""The door for sockets: what goes through a pipe, behind a `Join` with the token, over TCP or a path, in the
clear or by TLS.

It knows connections and bytes, and bounds what strangers take of them.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
import ssl
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from engine import api
from engine.listening import limits
from engine.listening.gateway import NO_MESSAGE, Gateway
from engine.listening.listener import DoorError, Listener

log = logging.getLogger("engine")


class SocketDoor:
    def __init__(self, bound: socket.socket, tls: ssl.SSLContext | None = None) -> None:
        self.tls = tls
        self._bound = bound
        self._file = self._file_now()
        self._server: asyncio.Server | None = None
        self._connections = set[SocketConnection]()
        self._strangers = dict[SocketConnection, None]()  # the oldest first

    @property
    def address(self) -> str:
        name = self._bound.getsockname()
        if self._bound.family == socket.AF_UNIX:
            return f"unix:{name}"
        return ("tls:" if self.tls else "") + host_and_port(name)

    def _file_now(self) -> tuple[int, int] | None:
        """Which one is at its path, where it has one."""
        if self._bound.family != socket.AF_UNIX:
            return None
        with suppress(OSError):
            stat = Path(self._bound.getsockname()).stat()
            return stat.st_ino, stat.st_mtime_ns
        return None

    async def open(self, listener: Listener) -> None:
        try:
            if self._file_now() != self._file:  # nobody would ever come to ours
                raise OSError(errno.EADDRINUSE, "")
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(_tell)
            # As many as the backlog says are taken in a turn, and of each it is told that nothing is left.
            self._server = await loop.create_server(
                lambda: SocketConnection(self, listener), sock=self._bound, backlog=1
            )
            self._bound.listen(limits.MOST_STRANGERS)
        except OSError as error:  # who was bound there, too, listens already
            self._bound.close()
            raise DoorError(os.strerror(error.errno or 0)) from None

    async def close(self) -> None:
        assert self._server is not None
        self._server.close()
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)  # in which they hear of it

    def meet(self, stranger: SocketConnection) -> None:
        self._connections.add(stranger)
        self._strangers[stranger] = None
        if len(self._strangers) > limits.MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            oldest.refuse(f"{limits.MOST_STRANGERS} have connected since, and it has said nothing yet")
            self.know(oldest)

    def know(self, connection: SocketConnection) -> None:
        """It is a stranger no more, or no more there."""
        self._strangers.pop(connection, None)

    def forget(self, connection: SocketConnection) -> None:
        self.know(connection)
        self._connections.discard(connection)


class SocketConnection(asyncio.Protocol):
    """One connection, from its first byte to its end."""

    def __init__(self, door: SocketDoor, listener: Listener) -> None:
        self._door = door
        self._listener = listener
        self._gateway = Gateway(listener, self)
        self._may_join = False
        self._messages = api.Messages()
        self._plain: asyncio.Transport | None = None
        self._transport: asyncio.Transport | None = None  # what is said goes through it, encrypted or not
        self._encrypting: asyncio.Task[None] | None = None
        self._early = b""  # read while nothing could be written yet
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._plain = transport
        _ask_now_and_then(transport.get_extra_info("socket"))
        self._late = asyncio.get_running_loop().call_later(limits.JOIN_S, self._too_late)
        if self._door.tls is None:
            self._transport = transport
        else:
            # By asyncio's server nobody would be heard of before they have shaken hands.
            transport.pause_reading()
            self._encrypting = asyncio.create_task(self._encrypt(transport, self._door.tls))
        self._door.meet(self)

    def data_received(self, data: bytes) -> None:
        """Who has not heard Hello has only one thing to say, and says it once."""
        if self._transport is None:
            self._early += data
            return
        for message in self._messages.of(data, None if self._gateway.joined else limits.LARGEST_JOIN):
            if self._may_join:
                self._gateway.take(message)
            else:
                self._join(message)
            if self._is_closing:
                return
        if self._messages.too_large:
            self.refuse(NO_MESSAGE)

    def connection_lost(self, exc: Exception | None) -> None:
        self._in_time()
        self._door.forget(self)
        self._gateway.gone()

    def write(self, message: bytes) -> None:
        if self._transport is not None and not self._is_closing:
            self._transport.write(api.framed(message))

    @property
    def whence(self) -> str:
        name = None if self._plain is None else self._plain.get_extra_info("peername")
        return f" from {host_and_port(name)}" if name else ""

    @property
    def unsent(self) -> int:
        both = {self._plain, self._transport}
        return sum(each.get_write_buffer_size() for each in both if each is not None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._encrypting is not None:
            self._encrypting.cancel()
        if self._plain is not None:
            self._plain.abort()

    def refuse(self, why: str) -> None:
        self._gateway.refuse(why)
        if self._transport is None:
            self.abort()  # there is nothing yet that it could be told by

    @property
    def _is_closing(self) -> bool:
        return self._transport is not None and self._transport.is_closing()

    async def _encrypt(self, plain: asyncio.Transport, tls: ssl.SSLContext) -> None:
        """What is written and read from now on. Who does not shake hands hears nothing."""
        try:
            self._transport = await asyncio.get_running_loop().start_tls(
                plain,
                self,
                tls,
                server_side=True,
                ssl_handshake_timeout=limits.JOIN_S,
                ssl_shutdown_timeout=limits.GOODBYE_S,
            )
        except OSError as error:
            self._listener.note_refusal(self.whence, str(error) or "it hung up before it had shaken hands")
        finally:
            self._encrypting = None
            if self._transport is None:
                plain.abort()
                self.connection_lost(None)
        self.data_received(self._early)

    def _join(self, message: bytes) -> None:
        try:
            token = msgspec.msgpack.decode(message, type=api.Join).token
        except (msgspec.MsgspecError, ValueError, RecursionError):  # of what is no text, or nested too deeply
            self.refuse(NO_MESSAGE)
            return
        self._may_join = self._gateway.join(token)
        if self._may_join:
            self._door.know(self)
            self._in_time()

    def _in_time(self) -> None:
        if self._late is not None:
            self._late.cancel()

    def _too_late(self) -> None:
        self.refuse(f"nothing was said for {limits.JOIN_S:g} s")


def _tell(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """What the system lacks for somebody who connects is a line; asyncio tries again in a second."""
    error = context.get("exception")
    if isinstance(error, OSError) and "socket" in context:
        log.warning("whoever connects now has to wait: %s (see `ulimit -n`)", error.strerror)
    else:
        loop.default_exception_handler(context)


def host_and_port(name: tuple[str, int]) -> str:
    host, port = name[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ask_now_and_then(connected: socket.socket) -> None:
    """Whether whoever says nothing is still there."""
    if connected.family == socket.AF_UNIX:
        return
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", limits.IDLE_S),
        ("TCP_KEEPINTVL", limits.BETWEEN_S),
        ("TCP_KEEPCNT", limits.QUESTIONS),
    ):
        if hasattr(socket, name):
            connected.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(limits.UNTAKEN_S * 1000))
