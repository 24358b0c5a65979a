"""A connection that has ended is gone at once: what waits until garbage is looked for stands for minutes, and
a flood of those is memory that nobody counts, and a long look."""

from __future__ import annotations

import asyncio
import gc
import tracemalloc
from collections import Counter
from typing import Any

import pytest
from websockets.frames import Opcode

from realtime.access.connection_limits import OpenConnection
from realtime.http.held_bodies import BODY, HeldBody
from realtime.http.long_lived_routes import OPEN
from realtime.http.openai.endpoints import CompletionResponse
from realtime.http.sse import SseTimeouts
from realtime.tenants.allowance import Holder
from realtime.transport.http_protocol import TimedHttpProtocol
from realtime.transport.websocket_protocol import WebSocketProtocol
from tests.server.asgi_app_server import Events, Receive, Scope, Send, masked, raw_socket, serving, upgrade

pytestmark = pytest.mark.asyncio

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
CLOSE = masked(Opcode.CLOSE, (1000).to_bytes(2))


async def app(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})
        return
    await receive()
    if scope["path"] == "/no":
        await send({"type": "websocket.close"})
        return
    await send({"type": "websocket.accept"})
    while (await receive())["type"] != "websocket.disconnect":
        pass


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([b"GET / HTTP/1.1\r\nHo"], id="half a request"),
        pytest.param([GET], id="an answer"),
        pytest.param([GET, GET], id="two answers"),
        pytest.param([b"nonsense\r\n\r\n"], id="no request"),
        pytest.param([upgrade()], id="a websocket that is dropped"),
        pytest.param([upgrade(), CLOSE], id="a websocket that is closed"),
        pytest.param([upgrade(), masked(Opcode.TEXT, b"\xff")], id="a websocket that failed"),
        pytest.param([upgrade(), masked(Opcode.TEXT, b"a") + CLOSE[:3]], id="half a frame"),
        pytest.param([upgrade("/no")], id="a websocket that is refused"),
        pytest.param([upgrade().replace(b"Version: 13", b"Version: 12")], id="no handshake"),
    ],
)
async def test_of_a_connection_that_ended_nothing_waits_until_garbage_is_looked_for(
    said: list[bytes],
) -> None:
    gc.collect()
    gc.disable()
    try:
        async with serving(app) as server:
            async with raw_socket(server) as peer:
                for part in said:
                    await peer.send(part)
                    if part.endswith(b"\r\n\r\n"):
                        await peer.read_response()
            async with asyncio.timeout(10):
                while _kept():  # noqa: ASYNC110 - each turn may end it
                    await asyncio.sleep(0)
    finally:
        gc.enable()


def _kept() -> list[object]:
    return [one for one in gc.get_objects() if issubclass(type(one), TimedHttpProtocol | WebSocketProtocol)]


class Whole:
    """What an answer of megabytes is made of."""

    async def begin(self) -> None:
        pass

    async def body(self) -> list[bytes]:
        return [bytes(100) for _ in range(50_000)]

    async def revoke(self) -> None:
        pass

    def leave(self, cause: str = "closed") -> None:
        pass


async def test_of_a_whole_answer_that_nobody_reads_on_nothing_waits_until_garbage_is_looked_for() -> None:
    ended = Events()

    async def completion(scope: Scope, receive: Receive, send: Send) -> None:
        scope[BODY] = HeldBody(Counter(), "t", 0)
        scope[OPEN] = OpenConnection("here", Holder())
        source: Any = Whole()
        await CompletionResponse(source, {}, SseTimeouts(), {}, stream=False)(scope, receive, send)
        ended.add("it")

    gc.collect()
    gc.disable()
    try:
        async with serving(completion) as server:
            async with raw_socket(server) as peer:
                tracemalloc.start()
                await peer.send(GET)
                await peer.read_response()
                assert tracemalloc.get_traced_memory()[0] > 2_000_000
            await ended.next()
            assert tracemalloc.get_traced_memory()[0] < 100_000
    finally:
        tracemalloc.stop()
        gc.enable()
