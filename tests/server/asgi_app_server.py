"""A server around a tiny app, and a client that does by hand, or leaves undone, what a real one would do."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from websockets.frames import Frame, Opcode

from realtime.transport import http_protocol
from realtime.transport.http_protocol import HttpLimits
from realtime.transport.websocket_handshake import Message
from realtime.transport.websocket_protocol import WebSocketLimits, protocol_class
from realtime.work_budget import SHARE
from realtime.work_ledger import WorkLedger

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]


class Server:
    def __init__(
        self,
        app: App,
        limits: WebSocketLimits,
        http_limits: HttpLimits,
        refused: Callable[[int, str], None],
        share: float,
        listening: socket.socket | None,
        **settings: Any,
    ) -> None:
        self._socket = listening or socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.url = f"ws://127.0.0.1:{self.port}/"
        ledger = WorkLedger(share)
        self.http = http_protocol.protocol_class(http_limits, refused, ledger)
        config = uvicorn.Config(
            app,
            http=self.http,
            ws=protocol_class(limits, ledger=ledger),
            lifespan="off",
            log_config=None,
            **settings,
        )
        self._server = uvicorn.Server(config)
        self.state = self._server.server_state
        self._task = asyncio.create_task(self._server.serve([self._socket]))

    async def stop(self) -> None:
        self._server.should_exit = True
        await self._task


@asynccontextmanager
async def serving(
    app: App,
    limits: WebSocketLimits | None = None,
    *,
    http_limits: HttpLimits | None = None,
    refused: Callable[[int, str], None] = lambda status, address: None,
    share: float = SHARE,
    listening: socket.socket | None = None,
    **settings: Any,
) -> AsyncIterator[Server]:
    server = Server(
        app,
        limits or WebSocketLimits(close_timeout_s=2),
        http_limits or HttpLimits(),
        refused,
        share,
        listening,
        **settings,
    )
    try:
        yield server
    finally:
        await server.stop()


class RawPeer:
    """A bare socket: it reads when told to, answers no ping, and masks whatever it is given."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self._loop = asyncio.get_running_loop()

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.socket, data)

    async def frame(self, opcode: Opcode, data: bytes, *, fin: bool = True) -> None:
        await self.send(masked(opcode, data, fin=fin))

    async def read(self, size: int) -> bytes:
        data = bytearray()
        while len(data) < size:
            part = await asyncio.wait_for(self._loop.sock_recv(self.socket, size - len(data)), 10)
            assert part, f"the connection ended after {len(data)} of {size} bytes"
            data += part
        return bytes(data)

    async def read_frame(self) -> tuple[int, bytes]:
        head, length = await self.read(2)
        if length >= 126:
            length = int.from_bytes(await self.read(2 if length == 126 else 8), "big")
        return head & 0x0F, await self.read(length)

    async def read_close(self) -> int:
        """The code of the close frame that comes next, whatever it says besides."""
        opcode, data = await self.read_frame()
        assert opcode == Opcode.CLOSE
        return int.from_bytes(data[:2], "big")

    async def read_rest(self) -> bytes:
        data = b""
        while part := await asyncio.wait_for(self._loop.sock_recv(self.socket, 65536), 10):
            data += part
        return data

    async def read_response(self) -> bytes:
        data = b""
        while not data.endswith(b"\r\n\r\n"):
            data += await self.read(1)
        return data


def masked(opcode: Opcode, data: bytes, *, fin: bool = True) -> bytes:
    return Frame(opcode, data, fin).serialize(mask=True)


def upgrade(path: str = "/", *headers: str) -> bytes:
    lines = [
        f"GET {path} HTTP/1.1",
        "Host: localhost",
        "Upgrade: websocket",
        "Connection: Upgrade",
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==",
        "Sec-WebSocket-Version: 13",
        *headers,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


@asynccontextmanager
async def raw_socket(server: Server) -> AsyncIterator[RawPeer]:
    with socket.socket() as sock:
        # Small, so that few bytes fill all the buffers between a server and a peer that never reads.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", server.port))
        yield RawPeer(sock)


@asynccontextmanager
async def raw_peer(server: Server) -> AsyncIterator[RawPeer]:
    """A raw socket behind an opening handshake that succeeded."""
    async with raw_socket(server) as peer:
        await peer.send(upgrade())
        assert (await peer.read_response()).startswith(b"HTTP/1.1 101 ")
        yield peer


class Events:
    """What an app saw, for a test to wait for."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[Any] = asyncio.Queue()

    def add(self, event: Any) -> None:
        self._queue.put_nowait(event)

    async def next(self) -> Any:
        return await asyncio.wait_for(self._queue.get(), 10)

    @property
    def none(self) -> bool:
        return self._queue.empty()
