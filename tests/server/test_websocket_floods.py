"""Peers that send too much too fast: they are read slowly, or closed, and their floods are kept nowhere."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import socket
import tracemalloc
from collections.abc import Callable, Iterator

import pytest
from websockets.frames import Opcode

from realtime.transport.websocket_protocol import WebSocketLimits
from tests.server.asgi_app_server import Events, RawPeer, Receive, Scope, Send, masked, raw_peer, serving

pytestmark = pytest.mark.asyncio

FLOOD = 500_000  # frames
BOUND = 4 << 20  # bytes: what a flood of many times that may take at most


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


async def pour(peer: RawPeer, data: bytes) -> None:
    """Send as much as the server will have."""
    with contextlib.suppress(ConnectionError):
        await peer.send(data)


async def test_frames_beyond_the_pace_are_read_later_and_none_is_lost() -> None:
    async with serving(echo, share=1e-3) as server, raw_peer(server) as peer:
        sending = asyncio.create_task(peer.send(b"".join(masked(Opcode.TEXT, b"%d" % n) for n in range(500))))
        for n in range(500):
            assert await peer.read_frame() == (Opcode.TEXT, b"%d" % n)
        await sending


async def test_while_a_flood_waits_the_peer_is_written_to_all_the_same() -> None:
    events = Events()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await receive()
        events.add(dict(await receive()))
        await send({"type": "websocket.send", "text": "I hear you"})
        while (await receive())["type"] != "websocket.disconnect":
            pass

    async with serving(app, share=1e-9) as server, raw_peer(server) as peer:
        await peer.send(masked(Opcode.TEXT, b"many") * 1000)
        assert (await events.next())["text"] == "many"
        assert await peer.read_frame() == (Opcode.TEXT, b"I hear you")


@pytest.mark.parametrize(
    ("frame", "first", "code"),
    [
        pytest.param(
            masked(Opcode.CONT, b"", fin=False), masked(Opcode.TEXT, b"", fin=False), 1008, id="fragments"
        ),
        pytest.param(masked(Opcode.PING, b""), b"", 1008, id="pings"),
        pytest.param(masked(Opcode.PING, bytes(125)), b"", 1008, id="large pings"),
        pytest.param(b"\x81\x00", b"", 1002, id="not masked"),
        pytest.param(b"\xf1\x80\x00\x00\x00\x00", b"", 1002, id="reserved bits"),
        pytest.param(b"\x09\x80\x00\x00\x00\x00", b"", 1002, id="pings in fragments"),
    ],
)
async def test_a_flood_of_what_nobody_needs_is_closed_and_takes_no_memory(
    frame: bytes, first: bytes, code: int
) -> None:
    flood = first + frame * min(FLOOD, (8 << 20) // len(frame))
    async with serving(echo) as server, raw_peer(server) as peer:
        tracemalloc.start()
        sending = asyncio.create_task(pour(peer, flood))
        opcode, data = await peer.read_frame()
        while opcode == Opcode.PONG:
            opcode, data = await peer.read_frame()
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert (opcode, int.from_bytes(data[:2], "big")) == (Opcode.CLOSE, code)
        peer.socket.close()
        await asyncio.wait([sending])
    assert most < BOUND


async def test_pongs_that_answer_nothing_are_read_at_the_pace_and_kept_nowhere() -> None:
    async with serving(echo) as server, raw_peer(server) as peer:
        flood = masked(Opcode.PONG, b"of what?") * 50_000 + masked(Opcode.TEXT, b"behind them")
        tracemalloc.start()
        await peer.send(flood)
        assert await peer.read_frame() == (Opcode.TEXT, b"behind them")
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert most < BOUND


async def test_a_peer_that_goes_on_and_on_behind_a_close_is_cut_off() -> None:
    events = Events()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 1008})
        events.add("closed")

    limits = WebSocketLimits(close_timeout_s=3600)
    async with serving(app, limits) as server, raw_peer(server) as peer:
        await events.next()
        await pour(peer, masked(Opcode.BINARY, bytes(4096)) * 10_000)
        with contextlib.suppress(ConnectionError):  # by a reset, where bytes of ours were not read yet
            await peer.read_rest()


async def test_of_a_payers_messages_that_never_end_few_are_held_on_however_many_connections() -> None:
    limits = WebSocketLimits(close_timeout_s=2, most_held=1)
    message = masked(Opcode.BINARY, bytes(190_000))
    async with (
        serving(echo, limits, ws_max_size=200_000) as server,
        raw_peer(server) as one,
        raw_peer(server) as other,
    ):
        heard = {asyncio.create_task(peer.read_frame()): peer for peer in (one, other)}
        sending = [asyncio.create_task(pour(peer, message[:-1])) for peer in (one, other)]
        (first,), _ = await asyncio.wait(heard, return_when=asyncio.FIRST_COMPLETED)
        opcode, data = first.result()
        assert (opcode, int.from_bytes(data[:2], "big")) == (Opcode.CLOSE, 1013)
        heard.pop(first).socket.close()
        await asyncio.wait(sending)
        ((echoed, peer),) = heard.items()
        await peer.send(message[-1:])
        assert await echoed == (Opcode.BINARY, bytes(190_000))


LARGE = 1_000_000


@contextlib.contextmanager
def uncollected() -> Iterator[Callable[[], int]]:
    """How many bytes are taken by what has come since and did not go by itself."""
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        gc.enable()


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize(
    "left",
    [
        pytest.param(masked(Opcode.TEXT, b"a" * LARGE, fin=False), id="half a message"),
        pytest.param(masked(Opcode.TEXT, b"a" * LARGE), id="a message that nobody takes"),
    ],
)
async def test_what_a_peer_leaves_behind_does_not_wait_until_garbage_is_looked_for(
    left: bytes, closes: bool
) -> None:
    """That is minutes later, and a peer comes again at once: half a message of each was 14 MiB a second.
    Nor does it wait for the end of who has said that it closes."""
    gone, has_come = Events(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await has_come.wait()
        while closes and (await receive())["type"] != "websocket.disconnect":
            pass
        gone.add("gone")

    with uncollected() as taken:
        async with serving(app) as server, raw_peer(server) as peer:
            await peer.send(left + masked(Opcode.PING, b"has it come?"))
            assert (await peer.read_frame())[0] == Opcode.PONG
            assert taken() > LARGE
            has_come.set()
            if closes:
                await peer.send(masked(Opcode.CLOSE, (1000).to_bytes(2)))
            await gone.next()
            await peer.read_close()
            assert taken() < LARGE // 2


WHOLE = masked(Opcode.TEXT, b"a" * LARGE)


@pytest.mark.parametrize(
    ("last", "news"),
    [
        pytest.param(WHOLE, ["taken"], id="taken, and its peer stays"),
        pytest.param(WHOLE, ["taken", "gone"], id="taken, and its peer is gone"),
        pytest.param(WHOLE[:-1], ["gone"], id="half of one"),
        pytest.param(b"\xc1" + WHOLE[1:], ["gone"], id="of an extension"),
        pytest.param(b"\x89" + WHOLE[1:], ["gone"], id="too long a ping"),
        pytest.param(b"\x80" + WHOLE[1:], ["gone"], id="the rest of no message"),
    ],
)
async def test_the_last_frame_that_came_is_kept_by_nobody(last: bytes, news: list[str]) -> None:
    """Neither for as long as its connection lives, where it is on no account, nor behind that until garbage
    is looked for."""
    told = Events()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while (message := await receive())["type"] == "websocket.receive":
            message.clear()
            told.add("taken")
        told.add("gone")

    with uncollected() as taken:
        async with serving(app) as server, raw_peer(server) as peer:
            await peer.send(last)
            for expected in news:
                if expected == "gone":
                    peer.socket.shutdown(socket.SHUT_WR)
                assert await told.next() == expected
            assert taken() < LARGE // 2
