"""Connections that end at any byte and in any manner, by the hundred: afterwards nothing of them is left.

MIDSTREAM_STORM is how many; MIDSTREAM_SEED repeats one that failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import socket
import struct

import pytest
from websockets.frames import Opcode

from realtime.transport.http_protocol import HttpLimits
from realtime.transport.websocket_protocol import WebSocketLimits
from tests.server.asgi_app_server import (
    RawPeer,
    Receive,
    Scope,
    Send,
    Server,
    masked,
    raw_socket,
    serving,
    upgrade,
)

pytestmark = pytest.mark.asyncio

CONNECTIONS = int(os.environ.get("MIDSTREAM_STORM", "300"))
SEED = int(os.environ.get("MIDSTREAM_SEED", "20260101"))
AT_ONCE = 50

SAID = [
    masked(Opcode.TEXT, b"hello"),
    masked(Opcode.BINARY, bytes(3000)),
    masked(Opcode.PING, b"there?"),
    masked(Opcode.TEXT, b"part", fin=False) + masked(Opcode.CONT, b"of it"),
    masked(Opcode.CLOSE, b"\x03\xe8"),
    masked(Opcode.TEXT, b"close"),  # the app closes then, perhaps at the same moment
    b"\x81\x05naked",
]


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    """Echo; close when told to. Over HTTP: the whole request, and a large answer."""
    if scope["type"] == "http":
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": bytes(300_000)})
        return
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        if message.get("text") == "close":
            await send({"type": "websocket.close"})
        else:
            await send({**message, "type": "websocket.send"})


def script(rng: random.Random) -> bytes:
    """What a peer says, up to the byte at which it ends."""
    if rng.random() < 0.3:
        whole = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n" + bytes(100)
    else:
        whole = upgrade() + b"".join(rng.choices(SAID, k=rng.randint(0, 8)))
    return whole[: rng.randint(0, len(whole))] if rng.random() < 0.7 else whole


async def one(server: Server, rng: random.Random) -> None:
    async with raw_socket(server) as peer:
        with contextlib.suppress(ConnectionError):
            await say(peer, script(rng), rng)
            await END[rng.choice(list(END))](peer)


async def say(peer: RawPeer, data: bytes, rng: random.Random) -> None:
    """In pieces, the handshake by itself: who does not wait for its answer is dropped."""
    head, found, rest = data.partition(b"\r\n\r\n")
    await peer.send(head + found)
    if found and rest and head.startswith(b"GET") and rng.random() < 0.8:
        await peer.read_response()
    while rest:
        cut = rng.randint(1, len(rest))
        await peer.send(rest[:cut])
        rest = rest[cut:]
        await asyncio.sleep(0)


async def reset(peer: RawPeer) -> None:
    peer.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    peer.socket.close()


async def leave(peer: RawPeer) -> None:
    peer.socket.close()


async def say_no_more_and_read(peer: RawPeer) -> None:
    shut(peer.socket, socket.SHUT_WR)
    await peer.read_rest()


async def hear_no_more_and_leave(peer: RawPeer) -> None:
    shut(peer.socket, socket.SHUT_RD)


def shut(sock: socket.socket, half: int) -> None:
    with contextlib.suppress(OSError):  # the server has reset it already
        sock.shutdown(half)


END = {
    "reset": reset,
    "leave": leave,
    "half-close": say_no_more_and_read,
    "deaf": hear_no_more_and_leave,
}


async def test_after_a_storm_the_server_is_as_it_was(caplog: pytest.LogCaptureFixture) -> None:
    rng = random.Random(SEED)
    turns = asyncio.Semaphore(AT_ONCE)

    async def in_turn(seed: int) -> None:
        async with turns:
            await one(server, random.Random(seed))

    limits, http = (
        WebSocketLimits(close_timeout_s=3600),
        HttpLimits(handshake_timeout_s=3600, close_timeout_s=3600),
    )
    async with serving(app, limits, http_limits=http, timeout_keep_alive=3600) as server:
        await asyncio.gather(*(in_turn(rng.getrandbits(64)) for _ in range(CONNECTIONS)))
        await until_idle(server)
        assert (len(server.state.connections), len(server.state.tasks), len(server.http.pending)) == (
            0,
            0,
            0,
        )
        left = {task.get_name() for task in asyncio.all_tasks()} - {"lifespan"}
        assert len(left) == 2, left  # the test's and the server's
    assert "Traceback" not in caplog.text


async def until_idle(server: Server) -> None:
    """Every peer has ended its side, so that all of it ends without a deadline."""
    async with asyncio.timeout(60):
        while server.state.connections or server.state.tasks:  # noqa: ASYNC110 - plain sets, that tell nobody
            await asyncio.sleep(0)
