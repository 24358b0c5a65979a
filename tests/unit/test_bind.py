"""The address that a server listens at."""

from __future__ import annotations

import asyncio
import socket

from realtime.bind import bind, welcome


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


def test_a_server_without_keys_says_so_in_a_line() -> None:
    with bind("127.0.0.1", 0) as listening:
        open_to_all, locked = (welcome(listening, "toy", keyless=keyless) for keyless in (True, False))
    (line,) = set(open_to_all.splitlines()) - set(locked.splitlines())
    assert line == "It has no keys: whoever reaches it may use it, as an admin. See --keys-file."
