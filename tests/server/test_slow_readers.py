"""Readers that read nothing, a hundred at once: they are cut off, and nothing of them stays in the house."""

from __future__ import annotations

import asyncio
import json
import select
import socket
from collections.abc import Callable

from websockets.frames import Opcode

from tests.server.asgi_app_server import masked, upgrade
from tests.server.server_process import PATIENCE_S, Served

READERS = 100


async def connected(server: Served) -> socket.socket:
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(sock, (server.host, server.port))
    await loop.sock_sendall(sock, upgrade("/v1/realtime"))
    return sock


async def start_much(sock: socket.socket, name: str) -> None:
    """A stream with far more to say than all the buffers on the way can hold."""
    params = {"max_tokens": 6000, "ignore_eos": True, "logprobs": 20}
    frame = {"type": "start", "request_id": name, "prompt": "Hello", "credit": {"limit": 6000}}
    loop = asyncio.get_running_loop()
    while b"\r\n\r\n" not in await loop.sock_recv(sock, 4096):
        pass  # the answer to the handshake
    data = json.dumps(frame | {"params": params, "return_tokens": True}).encode()
    await loop.sock_sendall(sock, masked(Opcode.TEXT, data))


def until_all_are_reset(readers: list[socket.socket]) -> None:
    """Without reading a byte: an end that waits behind what was sent would not show."""
    waiting = select.poll()
    for sock in readers:
        waiting.register(sock, 0)
    left = len(readers)
    while left:
        found = waiting.poll(PATIENCE_S * 1000)
        assert found, f"{left} readers are still connected"
        for number, _ in found:
            waiting.unregister(number)
        left -= len(found)


async def test_a_hundred_that_read_nothing_are_cut_off_and_leave_nothing_behind(
    serve: Callable[..., Served],
) -> None:
    server = serve("--send-timeout-s", "1")
    readers = [await connected(server) for _ in range(READERS)]
    for number, sock in enumerate(readers):
        await start_much(sock, f"unread-{number}")
    await asyncio.to_thread(until_all_are_reset, readers)
    left = await server.until_idle()
    assert left['midstream_streams_finished_total{finish_reason="cancelled"}'] == READERS
    for sock in readers:
        sock.close()
    server.tell()
    assert server.ended() == 0
    assert "Traceback" not in server.log()
