"""The transport against slow, silent and hostile peers, and the `WebSocketPeer` by which an app meets
them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import pytest
from websockets.asyncio.client import connect
from websockets.frames import Opcode

from realtime.transport.asgi_websocket_extension import PEER, PeerGone, WebSocketPeer
from realtime.transport.websocket_protocol import WebSocketLimits
from tests.server.asgi_app_server import (
    App,
    Events,
    RawPeer,
    Receive,
    Scope,
    Send,
    Server,
    masked,
    raw_peer,
    raw_socket,
    serving,
    upgrade,
)

pytestmark = pytest.mark.asyncio

MEGABYTE = bytes(1 << 20)


def with_peer(events: Events, use: Callable[[WebSocketPeer], Awaitable[None]]) -> App:
    """An app that accepts, makes some use of its peer, and notes all that it receives to the disconnect."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        await use(scope["extensions"][PEER])
        while True:
            events.add(message := await receive())
            if message["type"] == "websocket.disconnect":
                return

    return app


async def nothing(peer: WebSocketPeer) -> None:
    return


def fill(peer: WebSocketPeer) -> int:
    """Write until what the peer does not read fills every buffer on the way; how many messages that took."""
    written = 0
    while peer.writable:
        peer.write([MEGABYTE], text=False)
        written += 1
    return written


async def read_messages(peer: RawPeer, count: int) -> None:
    for _ in range(count):
        assert (await peer.read_frame())[0] == Opcode.BINARY


# -- the peer as an app uses it ----------------------------------------------------------------------


@pytest.mark.parametrize("text", [True, False])
async def test_many_messages_in_one_write_arrive_in_order_each_for_itself(text: bool) -> None:
    messages = [b"m" * size for size in (0, 1, 125, 126, 65_535, 65_536)] + [b"%d" % n for n in range(500)]

    async def use(peer: WebSocketPeer) -> None:
        peer.write(iter(messages), text=text)

    async with serving(with_peer(Events(), use)) as server, connect(server.url) as client:
        for message in messages:
            assert await client.recv() == (message.decode() if text else message)


async def test_a_ping_behind_messages_comes_back_with_its_payload() -> None:
    events, pongs = Events(), Events()

    async def use(peer: WebSocketPeer) -> None:
        peer.on_pong = pongs.add
        peer.write([b"one", b"two"], text=True, ping=b"2")
        peer.ping(b"again")

    async with serving(with_peer(events, use)) as server, connect(server.url):
        assert [await pongs.next(), await pongs.next()] == [b"2", b"again"]


async def test_a_client_that_receives_nothing_stops_acknowledging_until_it_goes_on() -> None:
    events = Events()

    async def use(peer: WebSocketPeer) -> None:
        def acknowledged(payload: bytes) -> None:
            events.add(payload)
            if payload == b"8":
                peer.write([b"more"], text=True, ping=b"9")

        peer.on_pong = acknowledged
        peer.write([b"token"] * 8, text=True, ping=b"8")

    async with serving(with_peer(events, use)) as server, connect(server.url, max_queue=(4, 1)) as client:
        assert await events.next() == b"8"
        await client.send("busy with something else")
        assert (await events.next())["text"].startswith("busy")
        for _ in range(8):
            await client.recv()
        assert await events.next() == b"9"


async def test_a_pong_that_answers_nothing_reaches_the_app_which_must_judge_it() -> None:
    events = Events()

    async def use(peer: WebSocketPeer) -> None:
        peer.on_pong = events.add
        peer.write([b"token"] * 50, text=True, ping=b"50")

    async with serving(with_peer(events, use)) as server, raw_peer(server) as peer:
        await peer.frame(Opcode.PONG, b"51")
        assert await events.next() == b"51"


async def test_a_ping_carries_125_bytes_at_most() -> None:
    errors = Events()

    async def use(peer: WebSocketPeer) -> None:
        try:
            peer.ping(bytes(126))
        except ValueError as error:
            errors.add(error)

    async with serving(with_peer(Events(), use)) as server, connect(server.url):
        assert "125" in str(await errors.next())


async def test_a_text_that_may_have_to_wait_is_given_as_it_came() -> None:
    events = Events()

    async def use(peer: WebSocketPeer) -> None:
        peer.gives_utf8 = True

    async with serving(with_peer(events, use)) as server, connect(server.url) as client:
        for said in ("x\U0001f600", b"x"):
            await client.send(said)
        assert await events.next() == {"type": "websocket.receive", "utf8": "x\U0001f600".encode()}
        assert await events.next() == {"type": "websocket.receive", "bytes": b"x"}


async def test_nothing_can_be_written_before_the_websocket_is_accepted() -> None:
    errors = Events()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            scope["extensions"][PEER].write([b"too soon"], text=True)
        except RuntimeError as error:
            errors.add(error)

    async with serving(app) as server, raw_socket(server) as peer:
        await peer.send(upgrade())
        assert (await peer.read_response()).startswith(b"HTTP/1.1 500 ")
        assert "accepted" in str(await errors.next())


async def test_a_peer_that_falls_behind_is_not_writable_until_it_has_caught_up() -> None:
    events, told = Events(), Events()

    async def use(peer: WebSocketPeer) -> None:
        peer.on_writable = lambda: told.add("writable")
        told.add(fill(peer))
        await peer.drain()
        told.add(peer.writable)

    async with serving(with_peer(events, use)) as server, raw_peer(server) as peer:
        await read_messages(peer, await told.next())
        assert await told.next() == "writable"
        assert await told.next() is True


async def test_an_ordinary_send_waits_for_a_peer_that_has_fallen_behind() -> None:
    told = Events()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        peer: WebSocketPeer = scope["extensions"][PEER]
        told.add(fill(peer))
        await send({"type": "websocket.send", "text": "at last"})
        told.add(peer.writable)

    async with serving(app) as server, raw_peer(server) as peer:
        await read_messages(peer, await told.next())
        assert await peer.read_frame() == (Opcode.TEXT, b"at last")
        assert await told.next() is True


async def test_whoever_drains_hears_that_the_peer_is_gone() -> None:
    told = Events()

    async def use(peer: WebSocketPeer) -> None:
        fill(peer)
        told.add("full")
        try:
            await peer.drain()
        except PeerGone as gone:
            told.add(gone)
            peer.write([b"into the void"], text=True)

    events = Events()
    async with serving(with_peer(events, use)) as server:
        async with raw_peer(server):
            assert await told.next() == "full"
        assert isinstance(await told.next(), PeerGone)
        assert (await events.next())["code"] == 1006


async def test_an_abort_ends_the_connection_without_a_close_frame() -> None:
    events = Events()

    async def use(peer: WebSocketPeer) -> None:
        peer.abort()

    async with serving(with_peer(events, use)) as server, raw_peer(server) as peer:
        with pytest.raises(ConnectionResetError):
            await peer.read_rest()
        assert (await events.next())["code"] == 1006


# -- deadlines ---------------------------------------------------------------------------------------


async def test_a_peer_that_takes_nothing_is_cut_off() -> None:
    events = Events()

    async def use(peer: WebSocketPeer) -> None:
        fill(peer)

    async with (
        serving(with_peer(events, use), WebSocketLimits(send_timeout_s=0.05)) as server,
        raw_peer(server),
    ):
        assert (await events.next())["code"] == 1006


async def test_a_peer_that_does_not_answer_a_close_is_cut_off() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close"})

    async with serving(app, WebSocketLimits(close_timeout_s=0.05)) as server, raw_peer(server) as peer:
        assert await peer.read_close() == 1000
        with pytest.raises(ConnectionResetError):
            await peer.read_rest()


# -- control goes on ---------------------------------------------------------------------------------


async def test_a_ping_is_answered_while_the_app_is_busy() -> None:
    done = asyncio.Event()

    async def use(peer: WebSocketPeer) -> None:
        await done.wait()

    async with serving(with_peer(Events(), use)) as server, connect(server.url) as client:
        await client.send("for later")
        await (await client.ping())
        done.set()


async def test_frames_are_read_while_the_peer_takes_none() -> None:
    events = Events()

    async def use(peer: WebSocketPeer) -> None:
        fill(peer)

    async with serving(with_peer(events, use)) as server, raw_peer(server) as peer:
        await peer.frame(Opcode.TEXT, b"cancel")
        assert (await events.next())["text"] == "cancel"


async def test_a_peer_that_pings_and_takes_no_answer_gets_only_the_last_of_them() -> None:
    events, told = Events(), Events()

    async def use(peer: WebSocketPeer) -> None:
        told.add(fill(peer))

    async with serving(with_peer(events, use)) as server, raw_peer(server) as peer:
        written = await told.next()
        await peer.send(b"".join(masked(Opcode.PING, b"%d" % n) for n in range(1000)))
        await peer.frame(Opcode.TEXT, b"behind the pings")
        assert (await events.next())["text"] == "behind the pings"
        await read_messages(peer, written)
        assert await peer.read_frame() == (Opcode.PONG, b"999")


async def test_a_flood_that_the_app_reads_slowly_arrives_whole_and_in_order() -> None:
    goes_on, events = asyncio.Event(), Events()

    async def use(peer: WebSocketPeer) -> None:
        await goes_on.wait()

    async with serving(with_peer(events, use), ws_max_queue=4) as server, raw_peer(server) as peer:
        flood = [n.to_bytes(8, "big") + bytes(1 << 18) for n in range(64)]
        sending = asyncio.create_task(peer.send(b"".join(masked(Opcode.BINARY, part) for part in flood)))
        goes_on.set()
        for part in flood:
            assert (await events.next())["bytes"] == part
        await sending


# -- what breaks the protocol ------------------------------------------------------------------------


BIG = masked(Opcode.TEXT, bytes(1025))
BIG_IN_PARTS = masked(Opcode.TEXT, bytes(600), fin=False) + masked(Opcode.CONT, bytes(600))
SPLIT_BADLY = masked(Opcode.TEXT, b"\xc3", fin=False) + masked(Opcode.CONT, b"(")
SPLIT = masked(Opcode.TEXT, b"x", fin=False) + masked(Opcode.CONT, b"", fin=False) * 3


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        pytest.param(BIG, 1009, id="too big"),
        pytest.param(BIG_IN_PARTS, 1009, id="too big in parts"),
        pytest.param(masked(Opcode.TEXT, b"\xff"), 1007, id="not UTF-8"),
        pytest.param(SPLIT_BADLY, 1007, id="not UTF-8 across fragments"),
        pytest.param(SPLIT + masked(Opcode.CONT, b""), 1008, id="too many fragments"),
        pytest.param(masked(Opcode.CONT, b"of what?"), 1002, id="continues nothing"),
        pytest.param(b"\x81\x01x", 1002, id="not masked"),
        pytest.param(b"\x83\x80\x00\x00\x00\x00", 1002, id="no such opcode"),
        pytest.param(b"\xc1\x80\x00\x00\x00\x00", 1002, id="compressed"),
        pytest.param(masked(Opcode.CLOSE, b"\x03\xed"), 1002, id="close code that is never sent"),
    ],
)
async def test_a_breach_of_the_protocol_closes_with_its_code_and_the_app_hears_it(
    sent: bytes, code: int
) -> None:
    events = Events()
    app = with_peer(events, nothing)
    limits = WebSocketLimits(max_fragments=4, close_timeout_s=2)
    async with serving(app, limits, ws_max_size=1024) as server, raw_peer(server) as peer:
        await peer.frame(Opcode.TEXT, b"whole")
        await peer.send(sent + masked(Opcode.TEXT, b"never heard"))
        assert await peer.read_close() == code
        assert await peer.read_rest() == b""
        assert (await events.next())["text"] == "whole"
        assert (await events.next())["code"] == code


async def test_as_many_fragments_as_allowed_make_a_message() -> None:
    events = Events()
    limits = WebSocketLimits(max_fragments=5, close_timeout_s=2)
    async with serving(with_peer(events, nothing), limits) as server, raw_peer(server) as peer:
        for _ in range(2):
            await peer.send(SPLIT + masked(Opcode.CONT, b"y"))
            assert (await events.next())["text"] == "xy"


async def test_the_reason_for_a_close_arrives_though_the_peer_is_still_sending() -> None:
    app = with_peer(Events(), nothing)
    async with serving(app, ws_max_size=1024) as server, raw_peer(server) as peer:
        await peer.frame(Opcode.BINARY, bytes(8 << 20))
        assert await peer.read_close() == 1009
        assert await peer.read_rest() == b""


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        pytest.param(upgrade("/", "Sec-WebSocket-Version: 12"), b"400", id="two versions"),
        pytest.param(upgrade().replace(b"Sec-WebSocket-Key", b"X-Key"), b"400", id="no key"),
        pytest.param(upgrade().replace(b"GET", b"POST"), b"405", id="not a GET"),
        pytest.param(upgrade("/", "Content-Length: 2") + b"hi", b"400", id="a body"),
        pytest.param(upgrade("/" + "x" * 9000), b"414", id="a long path"),
        pytest.param(upgrade("http://elsewhere/v1/realtime"), b"400", id="no path"),
    ],
)
async def test_a_request_that_is_no_handshake_is_refused(request_bytes: bytes, status: bytes) -> None:
    async with serving(with_peer(Events(), nothing)) as server, raw_socket(server) as peer:
        await peer.send(request_bytes)
        assert (await peer.read_rest()).startswith(b"HTTP/1.1 " + status)


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_client_that_does_not_wait_for_the_answer_is_dropped(at_once: bool) -> None:
    """Also where what it sends too soon comes in one packet with its request: nobody would answer it."""
    events = Events()

    async def hesitates(scope: Scope, receive: Receive, send: Send) -> None:
        events.add(await receive())
        events.add(await receive())

    async with serving(hesitates) as server, raw_socket(server) as peer:
        soon = masked(Opcode.TEXT, b"too soon")
        await peer.send(upgrade() + soon if at_once else upgrade())
        assert (await events.next())["type"] == "websocket.connect"
        if not at_once:
            await peer.send(soon)
        assert (await events.next())["code"] == 1006


async def test_a_client_that_goes_during_the_handshake_is_noticed() -> None:
    events = Events()

    async def hesitates(scope: Scope, receive: Receive, send: Send) -> None:
        events.add(await receive())
        events.add(await receive())
        try:
            await send({"type": "websocket.accept"})
        except OSError as gone:
            events.add(gone)

    async with serving(hesitates) as server:
        await _knock_and_go(server, events)
        assert (await events.next())["code"] == 1006
        assert isinstance(await events.next(), PeerGone)


async def _knock_and_go(server: Server, events: Events) -> None:
    async with raw_socket(server) as peer:
        await peer.send(upgrade())
        assert (await events.next())["type"] == "websocket.connect"


# -- ends that do not come ---------------------------------------------------------------------------


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close"})


async def until_there_are(count: int, server: Server) -> None:
    async with asyncio.timeout(10):
        while len(server.state.connections) != count:  # noqa: ASYNC110 - a plain set, that tells nobody
            await asyncio.sleep(0)


async def say_goodbye(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})


@pytest.mark.parametrize(
    ("app", "request_"),
    [
        (refuse, upgrade()),
        (refuse, upgrade().replace(b"Version: 13", b"Version: 12")),
        (say_goodbye, upgrade()),
    ],
    ids=["refused by the app", "no valid handshake", "closed"],
)
@pytest.mark.parametrize(
    "limits",
    [
        WebSocketLimits(close_timeout_s=3600, closing_limit=2),
        WebSocketLimits(close_timeout_s=3600, closing_limit_per_address=2),
    ],
    ids=["of all", "of an address"],
)
async def test_of_too_many_that_stay_behind_their_end_the_oldest_is_cut_off(
    app: App, request_: bytes, limits: WebSocketLimits
) -> None:
    async with serving(app, limits) as server, AsyncExitStack() as open_:
        peers = []
        for _ in range(4):
            peers.append(peer := await open_.enter_async_context(raw_socket(server)))
            await peer.send(request_)
            await peer.read_response()
        await until_there_are(2, server)
        left = {connection.transport.get_extra_info("peername") for connection in server.state.connections}
        assert left == {peer.socket.getsockname() for peer in peers[2:]}
        for peer in peers:
            peer.socket.close()


async def test_whoever_is_lost_before_the_app_has_answered_is_waited_for_no_longer() -> None:
    asked, goes_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        asked.set()
        await goes_on.wait()
        try:
            await send({"type": "websocket.close"})
        finally:
            done.set()

    async with serving(slow, WebSocketLimits(close_timeout_s=3600)) as server:
        async with raw_socket(server) as peer:
            await peer.send(upgrade())
            await asked.wait()
            [connection] = server.state.connections
        await until_there_are(0, server)
        goes_on.set()
        await asyncio.wait_for(done.wait(), 10)
        assert connection not in connection.closing  # type: ignore[union-attr]
