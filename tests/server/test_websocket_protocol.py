"""The transport as an ordinary ASGI websocket server: what any app and any well-meant client rely on."""

from __future__ import annotations

import asyncio
import errno
import logging

import pytest
from starlette.applications import Starlette
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Opcode
from websockets.typing import Subprotocol

from tests.server.asgi_app_server import (
    App,
    Events,
    Receive,
    Scope,
    Send,
    raw_peer,
    raw_socket,
    serving,
    upgrade,
)

pytestmark = pytest.mark.asyncio


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.accept"})
    while (message := await receive())["type"] == "websocket.receive":
        await send({**message, "type": "websocket.send"})


def listening(events: Events) -> App:
    """An app that accepts and notes all that it receives, to the disconnect."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        while True:
            events.add(message := await receive())
            if message["type"] == "websocket.disconnect":
                return

    return app


@pytest.mark.parametrize("message", ["", "grüß dich", b"", b"\x00\xff", "x" * 126, b"y" * 70_000])
async def test_text_and_bytes_are_echoed_as_they_were(message: str | bytes) -> None:
    async with serving(echo) as server, connect(server.url) as client:
        await client.send(message)
        assert await client.recv() == message


async def test_a_fragmented_message_arrives_as_one() -> None:
    async with serving(echo) as server, connect(server.url) as client:
        await client.send(["Mid", "", "stream"])
        assert await client.recv() == "Midstream"


async def test_a_character_may_be_split_between_fragments_and_a_ping_stand_between_them() -> None:
    async with serving(echo) as server, raw_peer(server) as peer:
        await peer.frame(Opcode.TEXT, b"\xc3", fin=False)
        await peer.frame(Opcode.PING, b"now")
        await peer.frame(Opcode.CONT, b"\xbc")
        assert await peer.read_frame() == (Opcode.PONG, b"now")
        assert await peer.read_frame() == (Opcode.TEXT, "ü".encode())


async def test_compression_is_not_negotiated() -> None:
    async with serving(echo) as server, connect(server.url, compression="deflate") as client:
        assert client.protocol.extensions == []


async def test_a_starlette_app_runs_with_its_own_scope() -> None:
    async def greet(websocket: WebSocket) -> None:
        await websocket.accept(headers=[(b"x-place", b"here")])
        await websocket.send_json([websocket.path_params["name"], websocket.query_params["q"]])
        assert await websocket.receive_text() == "bye"
        await websocket.close(4000, "as you wish")

    app = Starlette(routes=[WebSocketRoute("/greet/{name}", greet)])
    async with serving(app) as server, connect(f"{server.url}greet/a%20b?q=1%262") as client:
        assert client.response is not None
        assert client.response.headers["X-Place"] == "here"
        assert await client.recv() == '["a b","1&2"]'
        await client.send("bye")
        await client.wait_closed()
        assert (client.close_code, client.close_reason) == (4000, "as you wish")


async def test_the_accepted_subprotocol_is_echoed_and_no_other() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept", "subprotocol": scope["subprotocols"][1]})
        await receive()
        await receive()

    offered = [Subprotocol("a"), Subprotocol("b"), Subprotocol("c")]
    async with serving(app) as server, connect(server.url, subprotocols=offered) as client:
        assert client.subprotocol == "b"
        assert client.response is not None
        assert client.response.headers.get_all("Sec-WebSocket-Protocol") == ["b"]


async def test_a_denial_is_a_real_http_response() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"www-authenticate", b"Bearer"), (b"set-cookie", b"a=1"), (b"set-cookie", b"b=2")]
        await send({"type": "websocket.http.response.start", "status": 401, "headers": headers})
        await send({"type": "websocket.http.response.body", "body": b"a key, ", "more_body": True})
        await send({"type": "websocket.http.response.body", "body": b"please"})

    async with serving(app) as server:
        with pytest.raises(InvalidStatus) as refused:
            await connect(server.url)
    response = refused.value.response
    assert (response.status_code, response.body) == (401, b"a key, please")
    assert response.headers["WWW-Authenticate"] == "Bearer"
    assert response.headers.get_all("Set-Cookie") == ["a=1", "b=2"]


async def closes(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "websocket.close"})


async def raises(scope: Scope, receive: Receive, send: Send) -> None:
    raise ValueError("of the app")


async def returns(scope: Scope, receive: Receive, send: Send) -> None:
    return


async def raises_in_the_middle_of_a_denial(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "websocket.http.response.start", "status": 401})
    raise ValueError("of the app")


@pytest.mark.parametrize(
    ("app", "status"),
    [(closes, 403), (raises, 500), (returns, 500), (raises_in_the_middle_of_a_denial, 500)],
)
async def test_an_app_that_does_not_accept_leaves_an_http_status(app: App, status: int) -> None:
    async with serving(app) as server:
        with pytest.raises(InvalidStatus) as refused:
            await connect(server.url)
    assert refused.value.response.status_code == status


@pytest.mark.parametrize(("app", "code"), [(raises, 1011), (returns, 1000)])
async def test_an_app_that_ends_after_it_accepted_closes_the_websocket(app: App, code: int) -> None:
    async def accepts_first(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await app(scope, receive, send)

    async with serving(accepts_first) as server, connect(server.url) as client:
        await client.wait_closed()
        assert client.close_code == code


@pytest.mark.parametrize(("closed_with", "code"), [(b"", 1005), (b"\x03\xe8", 1000), (b"\x0f\xa1bye", 4001)])
async def test_the_app_hears_the_code_of_the_peers_close_and_the_peer_its_echo(
    closed_with: bytes, code: int
) -> None:
    events = Events()
    async with serving(listening(events)) as server, raw_peer(server) as peer:
        await peer.frame(Opcode.TEXT, b"last words")
        await peer.frame(Opcode.CLOSE, closed_with)
        assert (await events.next())["text"] == "last words"
        assert (await events.next())["code"] == code
        assert await peer.read_frame() == (Opcode.CLOSE, closed_with)
        assert await peer.read_rest() == b""


async def test_the_app_hears_1006_when_the_connection_is_lost() -> None:
    events = Events()
    async with serving(listening(events)) as server:
        async with raw_peer(server):
            pass
        assert (await events.next())["code"] == 1006


async def test_after_the_end_the_disconnect_is_repeated_and_sending_fails() -> None:
    events = Events()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        while (await receive())["type"] != "websocket.disconnect":
            pass
        events.add(await receive())
        try:
            await send({"type": "websocket.send", "text": "anyone?"})
        except OSError as gone:
            events.add(gone)

    async with serving(app) as server:
        async with connect(server.url):
            pass
        assert (await events.next())["code"] == 1000
        assert isinstance(await events.next(), ConnectionError)


async def test_an_app_that_leaves_by_the_error_of_a_lost_peer_is_not_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    events = Events()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await receive()
        await receive()
        events.add("left")
        await send({"type": "websocket.send", "text": "anyone?"})

    async with serving(app) as server:
        async with raw_peer(server):
            pass
        await events.next()
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_stop_of_the_server_closes_with_1012() -> None:
    events = Events()
    async with serving(listening(events)) as server, connect(server.url) as client:
        await server.stop()
        await client.wait_closed()
        assert client.close_code == 1012
        assert (await events.next())["code"] == 1012


async def test_a_stop_during_the_handshake_is_answered_with_503() -> None:
    events = Events()

    async def hesitates(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        events.add("asked")
        events.add(await receive())

    async with serving(hesitates) as server, raw_socket(server) as peer:
        await peer.send(upgrade())
        await events.next()
        stopping = asyncio.create_task(server.stop())
        assert (await peer.read_rest()).startswith(b"HTTP/1.1 503 ")
        assert (await events.next())["type"] == "websocket.disconnect"
        peer.socket.close()
        await stopping


async def test_a_stop_during_the_handshake_of_one_that_is_gone_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        while (await receive())["type"] != "websocket.disconnect":
            pass

    def gone() -> None:
        raise OSError(errno.ENOTCONN, "it has reset the connection, and that has not been read")

    async with serving(app) as server, raw_socket(server) as peer:
        await peer.send(upgrade("/"))
        await asked.wait()
        (connection,) = server.state.connections
        monkeypatch.setattr(connection.transport, "write_eof", gone)
        await server.stop()


async def test_a_stop_leaves_the_apps_own_close_code() -> None:
    events = Events()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 4409})
        events.add("closed")

    async with serving(app) as server, raw_peer(server) as peer:
        await events.next()
        stopping = asyncio.create_task(server.stop())
        assert await peer.read_close() == 4409
        await peer.frame(Opcode.CLOSE, b"\x11\x39")
        assert await peer.read_rest() == b""
        await stopping


async def test_a_quiet_connection_stays_open_when_the_client_answers_keepalive() -> None:
    pongs = Events()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["extensions"]["midstream.peer"].on_pong = pongs.add
        await echo(scope, receive, send)

    async with serving(app, ws_ping_interval=0.02, ws_ping_timeout=5.0) as server, raw_peer(server) as peer:
        for _ in range(3):
            opcode, payload = await peer.read_frame()
            assert opcode == Opcode.PING
            await peer.frame(Opcode.PONG, payload)
        await peer.frame(Opcode.PONG, b"mine")
        assert await pongs.next() == b"mine"


async def test_a_client_from_which_nothing_is_heard_is_closed_with_1011() -> None:
    events = Events()
    app = listening(events)
    async with serving(app, ws_ping_interval=0.05, ws_ping_timeout=0.02) as server, raw_peer(server) as peer:
        assert (await peer.read_frame())[0] == Opcode.PING
        assert await peer.read_close() == 1011
        assert (await events.next())["code"] == 1011


async def test_nothing_of_a_connection_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with serving(echo) as server, raw_socket(server) as peer:
        caplog.clear()
        await peer.send(upgrade("/?key=SECRET", "Sec-WebSocket-Protocol: bearer.SECRET"))
        await peer.read_response()
        await peer.frame(Opcode.TEXT, b"SECRET")
        await peer.read_frame()
        await peer.frame(Opcode.CLOSE, b"")
        await peer.read_rest()
        said = [record for record in caplog.records if record.levelno >= logging.INFO]
        assert "SECRET" not in caplog.text
    assert [record.getMessage() for record in said if "connection" in record.getMessage()] == []


async def test_the_client_library_sees_a_close_it_can_name() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close", "code": 4429, "reason": "quota"})

    async with serving(app) as server, connect(server.url) as client:
        with pytest.raises(ConnectionClosed) as closed:
            await client.recv()
    assert closed.value.rcvd is not None
    assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4429, "quota")
