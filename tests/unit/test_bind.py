"""The address that a server listens at."""

from __future__ import annotations

import asyncio
import socket

from realtime.bind import bind


async def test_what_is_said_on_its_connections_leaves_at_once() -> None:
    """And not when the peer has acknowledged what was said before it, which may take 40 ms."""
    at_once: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        bare = writer.get_extra_info("socket")
        at_once.set_result(bare.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listening = bind("127.0.0.1", 0)
    async with await asyncio.start_server(accept, sock=listening):
        _, writer = await asyncio.open_connection(*listening.getsockname())
        assert await at_once
        writer.close()
        await writer.wait_closed()
