"""The asynchronous client against a scripted server, over real WebSockets."""

from __future__ import annotations

import asyncio
import functools
import gc
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from ssl import PROTOCOL_TLS_SERVER, SSLContext
from typing import Any

import msgspec
import pytest
from msgspec import UNSET
from msgspec.structs import replace

import midstream
from midstream.dial import Encoding
from midstream.protocol import (
    Adjust,
    Adjusted,
    Cancel,
    CatalogModel,
    CloseCode,
    Credit,
    Error,
    GoingAway,
    Grant,
    Inject,
    Injected,
    Params,
    Pause,
    Paused,
    Ping,
    Ready,
    Rewound,
    Start,
    Token,
)
from tests.fakes.certificates import Authority
from tests.fakes.scripted_server import READY, FakeServer, Peer, Responder, final, responder_text


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as server:
        yield server


@pytest.fixture
async def client(server: FakeServer) -> AsyncIterator[midstream.Client]:
    """It does not come back: what it does where it does is in test_sdk_reconnect.py."""
    async with midstream.connect(server.url, reconnect_s=0) as client:
        yield client


@pytest.fixture
async def peer(server: FakeServer, client: midstream.Client) -> Peer:
    return await server.peer()


@pytest.fixture
def responder() -> Responder:
    return Responder()


@pytest.fixture
async def responder_client(responder: Responder) -> AsyncIterator[midstream.Client]:
    """A client of a server that follows the protocol by itself."""
    async with FakeServer(responder) as server, midstream.connect(server.url) as client:
        yield client


async def begin(client: midstream.Client, peer: Peer, window: int = 64) -> tuple[midstream.Stream, Start]:
    stream, start = await asyncio.gather(client.start(prompt="Hi", window=window), peer.accept_start())
    return stream, start


async def read(stream: midstream.Stream, seen: list[str]) -> None:
    async for chunk in stream:
        seen.append(chunk.text)  # noqa: PERF401 - what was seen before an exception is wanted too


def error(code: str, request_id: str | None = None, ref: str | None = None) -> Error:
    status, retryable = midstream.protocol.ERRORS[code]
    return Error(status=status, code=code, message="no", retryable=retryable, request_id=request_id, ref=ref)


# -- connecting ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_a_connection_from_greeting_to_farewell(encoding: Encoding) -> None:
    async with FakeServer(Responder()) as server:
        async with midstream.connect(server.url, api_key="k", encoding=encoding) as client:
            assert client.ready == READY
            assert (await client.complete(prompt="Hi", max_tokens=3)).text == responder_text(3)
        (request,) = server.requests
        peer = await server.peer()
        await peer.socket.wait_closed()
    assert request.path == "/v1/realtime"
    assert request.headers["Authorization"] == "Bearer k"
    assert request.headers["Sec-WebSocket-Protocol"] == f"midstream.v1.{encoding}"
    assert "Sec-WebSocket-Extensions" not in request.headers
    assert peer.socket.close_code == 1000


async def test_a_key_and_what_is_said_are_in_no_log_at_any_level(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with (
        FakeServer(Responder()) as server,
        midstream.connect(server.url, api_key="CANARY") as client,
    ):
        await client.complete(prompt="CANARY", max_tokens=3)
    told = [record.getMessage() for record in caplog.records if record.name != "websockets.server"]
    assert "CANARY" not in "\n".join(told)


async def test_connect_can_be_awaited(server: FakeServer) -> None:
    client = await midstream.connect(server.url)
    await client.close()
    with pytest.raises(midstream.ConnectionLost):
        await client.start(prompt="Hi")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, midstream.Unauthenticated), (403, midstream.Forbidden), (503, midstream.Overloaded)],
)
async def test_a_refused_upgrade_is_a_typed_error(status: int, kind: type[midstream.RequestError]) -> None:
    async with FakeServer(status=status) as server:
        with pytest.raises(kind) as caught:
            await midstream.connect(server.url)
    assert caught.value.status == status


@pytest.mark.parametrize(
    ("said", "retry_after_ms"),
    [("7", 7000), ("9" * 400, 86_400_000), ("9" * 5000, 86_400_000), ("soon", None)],
)
async def test_when_to_try_again_is_a_day_at_most(said: str, retry_after_ms: int | None) -> None:
    async with FakeServer(status=429) as server:
        server.headers = {"Retry-After": said}
        with pytest.raises(midstream.RateLimited) as caught:
            await midstream.connect(server.url)
    assert caught.value.retry_after_ms == retry_after_ms


@pytest.mark.parametrize(("status", "retryable"), [(502, True), (404, False)])
async def test_another_answer_than_an_upgrade(status: int, retryable: bool) -> None:
    async with FakeServer(status=status) as server:
        with pytest.raises(midstream.ConnectionLost, match=str(status)) as caught:
            await midstream.connect(server.url)
    assert (caught.value.code, caught.value.retryable) == (None, retryable)


@pytest.mark.parametrize(("status", "retryable"), [(502, True), (407, False)])
async def test_what_a_proxy_on_the_way_says(
    monkeypatch: pytest.MonkeyPatch, status: int, retryable: bool
) -> None:
    """Of a server that is being started it says 502, 503 or 504; but a password is no matter of time."""

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %d No\r\nContent-Length: 0\r\n\r\n" % status)
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with pytest.raises(midstream.ConnectionLost, match=str(status)) as caught:
            await midstream.connect("http://127.0.0.1:9")
    assert caught.value.retryable == retryable


async def test_a_proxy_that_needs_another_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    async def connect(*_: Any, **__: Any) -> None:
        raise ImportError("connecting through a SOCKS proxy requires python-socks")

    monkeypatch.setattr("websockets.asyncio.client.connect_socks_proxy", connect)
    monkeypatch.setenv("socks_proxy", "socks5://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    with pytest.raises(midstream.ConnectionLost, match="python-socks"):
        await midstream.connect("http://127.0.0.1:9")


async def test_tls_is_spoken_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    context = SSLContext(PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.signed("localhost"))
    async with FakeServer(ssl=context) as server:
        url = server.url.replace("http://127.0.0.1", "https://localhost")
        with pytest.raises(midstream.ConnectionLost, match="certificate verify failed"):
            await midstream.connect(url)
        monkeypatch.setenv("SSL_CERT_FILE", str(authority.cert))
        async with midstream.connect(url) as client:
            assert client.ready.models == ["toy"]


@pytest.mark.parametrize("there", ["ws://[", "ws://h:99999/", f"ws://{'h' * 70}/"])
async def test_a_redirect_to_what_is_no_address(there: str) -> None:
    async with FakeServer(status=302) as server:
        server.headers = {"Location": there}
        with pytest.raises(midstream.ConnectionLost) as caught:
            await midstream.connect(server.url)
    assert not caught.value.retryable


async def test_a_redirect_takes_no_key_along() -> None:
    async with FakeServer(status=302) as server, FakeServer() as elsewhere:
        server.headers = {"Location": elsewhere.url.replace("http", "ws")}
        async with midstream.connect(server.url, api_key="k"):
            pass
    keys = [
        server.requests[0].headers.get("Authorization"),
        elsewhere.requests[0].headers.get("Authorization"),
    ]
    assert keys == ["Bearer k", None]


async def test_nobody_there() -> None:
    async with FakeServer() as server:
        url = server.url
    with pytest.raises(midstream.ConnectionLost) as caught:
        await midstream.connect(url)
    assert caught.value.retryable


async def test_a_server_that_says_nothing() -> None:
    async with FakeServer(first_event=None) as server:
        with pytest.raises(midstream.ConnectionLost, match="did not answer"):
            await midstream.connect(server.url, open_timeout=0.05)


async def test_an_error_instead_of_a_greeting() -> None:
    async with FakeServer(first_event=error("draining")) as server:
        with pytest.raises(midstream.Draining):
            await midstream.connect(server.url)


@pytest.mark.parametrize(
    "limits",
    [
        *({"max_message_bytes": wrong} for wrong in ("many", None, -1, 30, 1e6, [1000])),
        *({"max_grace_ms": wrong} for wrong in ("long", -1)),
    ],
)
async def test_limits_that_are_none(limits: dict[str, object]) -> None:
    async with FakeServer(first_event=replace(READY, limits=limits)) as server:
        with pytest.raises(midstream.ProtocolError, match=f"expected `{next(iter(limits))}` of"):
            await midstream.connect(server.url)


async def test_a_session_is_named_in_a_few_characters_as_it_is_said_again_where_its_connection_is_lost(
    server: FakeServer,
) -> None:
    server.session = "s" * 64
    with pytest.raises(midstream.ProtocolError, match="session_id"):
        await midstream.connect(server.url)


async def test_another_version_of_the_protocol() -> None:
    async with FakeServer(first_event=Ready(protocol=9, session_id="s", models=[], limits={})) as server:
        with pytest.raises(midstream.ProtocolError, match="protocol 1"):
            await midstream.connect(server.url)


@pytest.mark.parametrize(
    "url",
    [
        *(
            "http://h:x",
            "http://h:99999",
            "http://[::1",
            "http://a..b",
            f"http://{'a' * 64}.b",
            "ftp://h",
            "",
        ),
        *(None, 8000, b"http://h", ["http://h", None]),
    ],
)
def test_an_address_that_is_none(url: Any) -> None:
    with pytest.raises(ValueError, match="is no address of a server: expected one such as"):
        midstream.connect(url)


@pytest.mark.parametrize("key", ["k\n", "k\r\nX-Forwarded-For: me", "ключ"])
def test_a_key_that_no_header_can_have(key: str) -> None:
    with pytest.raises(ValueError, match="API key") as told:
        midstream.connect("http://h", api_key=key)
    assert key not in str(told.value)


def test_an_encoding_that_there_is_not() -> None:
    with pytest.raises(ValueError, match="'json' or 'msgpack'"):
        midstream.connect("http://h", encoding="xml")  # type: ignore[arg-type]


async def test_ping(client: midstream.Client, peer: Peer) -> None:
    async def answer() -> None:
        frame = await peer.receive(Ping)
        await peer.send(midstream.protocol.Pong(ref=frame.ref))

    await asyncio.gather(client.ping(), answer())


async def test_a_server_about_to_go_says_so(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    assert not client.draining
    await peer.send(GoingAway(deadline_ms=1000))
    await peer.send_tokens(start, 0, "x")
    assert await stream.next()
    assert client.draining


# -- starting ------------------------------------------------------------------------------------------


async def test_fields_and_params_are_plain_keywords(client: midstream.Client, peer: Peer) -> None:
    turn = {"role": "user", "content": "Hi"}
    stream, start = await asyncio.gather(
        client.start(messages=[turn], model=None, temperature=0.5, stop=("a", "b"), seed=7, priority=2),
        peer.accept_start(),
    )
    assert start.messages == [midstream.protocol.Message(role="user", content="Hi")]
    assert start.params == Params(temperature=0.5, stop=["a", "b"], seed=7)
    assert (start.priority, start.model, start.credit) == (2, None, Credit(limit=64))
    assert (stream.request_id, stream.model, stream.prompt_tokens) == (start.request_id, "toy", 3)
    assert (stream.params.temperature, stream.params.top_p) == (0.5, UNSET)


async def test_automatic_credit_grants_nothing(client: midstream.Client, peer: Peer) -> None:
    stream, start = await asyncio.gather(client.start(prompt=[1, 2], credit="auto"), peer.accept_start())
    assert start.credit is None
    await peer.send_tokens(start, 0, "a", "b")
    await stream.next()
    await stream.next()
    pausing = asyncio.create_task(stream.pause())
    assert isinstance(await peer.receive_frame(), Pause)  # and no grant before it
    await peer.send(final(start.request_id, 2, "stop"))
    with pytest.raises(midstream.RequestFinished):
        await pausing


async def test_mistakes_are_refused_before_anything_is_sent(client: midstream.Client, peer: Peer) -> None:
    with pytest.raises(TypeError, match="temprature"):
        await client.start(prompt="Hi", temprature=0.2)  # type: ignore[call-arg]
    with pytest.raises(midstream.InvalidParams, match="temperature"):
        await client.start(prompt="Hi", temperature=3)
    with pytest.raises(midstream.InvalidFrame, match="messages"):
        await client.start(messages=[{"content": "no role"}])
    with pytest.raises(midstream.InvalidFrame):
        await client.start(prompt="Hi", credit={"limit": -1})
    with pytest.raises(midstream.InvalidFrame, match="surrogates"):
        await client.start(prompt="cut \ud83d")
    with pytest.raises(midstream.InvalidFrame, match="surrogates"):
        await client.attach("\ud83d")
    for window in (0, 1.5, "64", None):
        with pytest.raises(ValueError, match=f"window must be an integer of at least 1, not {window!r}"):
            await client.start(prompt="Hi", window=window)  # type: ignore[arg-type]
    _, start = await begin(client, peer)
    assert start.prompt == "Hi"  # the first frame that the server saw


async def test_a_refused_start_raises_and_leaves_nothing(client: midstream.Client, peer: Peer) -> None:
    async def refuse() -> None:
        frame = await peer.receive(Start)
        refusal = error("too_many_streams", frame.request_id, frame.ref)
        await peer.send(msgspec.structs.replace(refusal, retry_after_ms=40))

    with pytest.raises(midstream.TooManyStreams) as caught:
        await asyncio.gather(client.start(prompt="Hi", request_id="r"), refuse())
    assert caught.value.retry_after_ms == 40
    await asyncio.gather(client.start(prompt="Hi", request_id="r"), peer.accept_start())


async def test_a_name_in_use(client: midstream.Client, peer: Peer) -> None:
    stream, _ = await asyncio.gather(client.start(prompt="Hi", request_id="r"), peer.accept_start())
    with pytest.raises(midstream.RequestConflict):
        await client.start(prompt="Hi", request_id="r")
    assert stream.state == "running"


# -- reading -------------------------------------------------------------------------------------------


async def test_a_stream_from_start_to_end(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    await peer.send_tokens(start, 0, "Hel", "lo")
    end = final(start.request_id, 2, "stop", stop_reason="eos")
    await peer.send(end)
    assert [chunk.text async for chunk in stream] == ["Hel", "lo"]
    assert (stream.text, stream.index, stream.consumed, stream.final) == ("Hello", 2, 2, end)
    assert (stream.state, await stream.cancel(), await stream.next()) == ("finished", 2, None)


async def test_complete(responder_client: midstream.Client) -> None:
    done = await responder_client.complete(prompt="Hi", max_tokens=5)
    assert (done.text, done.tokens, done.model) == (responder_text(5), [0, 1, 2, 3, 4], "toy")
    assert (done.finish_reason, done.usage, done.timing) == ("length", done.final.usage, done.final.timing)


async def test_pure_pull_decodes_one_token_for_each_one_asked_for(
    responder_client: midstream.Client, responder: Responder
) -> None:
    stream = await responder_client.start(prompt="Hi", window=1)
    for asked in range(4):
        await responder_client.ping()  # whatever the server was to decode, it has decoded before it answers
        assert responder.decoded[stream.request_id] == asked
        assert (await stream.next() or stream).index == asked


async def test_a_slow_loop_slows_its_own_decoding(
    responder_client: midstream.Client, responder: Responder
) -> None:
    stream = await responder_client.start(prompt="Hi", window=8, max_tokens=100)
    async for chunk in stream:
        await responder_client.ping()
        assert responder.decoded[stream.request_id] <= chunk.end + 8
    assert stream.text == responder_text(100)


async def test_an_unread_stream_delays_nobody(
    responder_client: midstream.Client, responder: Responder
) -> None:
    unread = await responder_client.start(prompt="Hi", window=4)
    async with asyncio.TaskGroup() as group:
        done = [group.create_task(responder_client.complete(prompt="Hi", max_tokens=n)) for n in range(1, 20)]
    assert [task.result().text for task in done] == [responder_text(n) for n in range(1, 20)]
    assert responder.decoded[unread.request_id] == 4


async def test_next_waits_no_longer_than_it_is_told_and_the_stream_lives_on(
    client: midstream.Client, peer: Peer
) -> None:
    stream, start = await begin(client, peer)
    with pytest.raises(TimeoutError):
        await stream.next(timeout=0.01)
    assert stream.try_next() is None
    await peer.send_tokens(start, 0, "a", "b")
    chunk = await stream.next(timeout=60)
    assert chunk == midstream.Chunk(0, 1, "a")
    await peer.send(final(start.request_id, 2, "stop"))
    assert [chunk.text async for chunk in stream] == ["b"]


async def test_try_next_grants_what_it_asks_for(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer, window=1)
    assert (stream.try_next(), stream.try_next()) == (None, None)
    assert (await peer.receive(Grant)).limit == 1
    await peer.send_tokens(start, 0, "a")
    assert await stream.next()
    assert stream.try_next() is None
    assert (await peer.receive(Grant)).limit == 2


async def test_a_stream_that_fails_keeps_its_text(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    await peer.send_tokens(start, 0, "so far")
    await peer.send(final(start.request_id, 1, "error", stop_reason="engine_error"))
    seen: list[str] = []
    with pytest.raises(midstream.StreamFailed, match="engine_error") as caught:
        await read(stream, seen)
    assert (seen, stream.text) == (["so far"], "so far")
    assert caught.value.final == stream.final


async def test_a_pause_for_want_of_memory_can_be_seen(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    await peer.send(Paused(request_id=start.request_id, index=0, reason="memory"))
    await asyncio.gather(client.ping(), pong(peer))
    assert (stream.state, stream.pause_reason) == ("paused", "memory")
    assert repr(stream) == f"<Stream '{start.request_id}' paused at 0>"


async def pong(peer: Peer) -> None:
    frame = await peer.receive(Ping)
    await peer.send(midstream.protocol.Pong(ref=frame.ref))


# -- steering ------------------------------------------------------------------------------------------


async def test_every_way_of_steering_returns_its_index(responder_client: midstream.Client) -> None:
    stream = await responder_client.start(prompt="Hi", window=10)
    assert await stream.pause(kv="release") == 10
    assert stream.state == "paused"
    assert await stream.adjust(temperature=0.25) == 10
    assert stream.params.temperature == 0.25
    assert await stream.rewind(6) == 6
    assert (stream.text, stream.tokens, stream.index) == (responder_text(6), list(range(6)), 6)
    assert await stream.adjust(top_k=5, at=4) == 4
    assert await stream.inject(text="oh", at=2) == 2
    assert await stream.inject(messages=[{"role": "user", "content": "hm"}]) == 2
    assert await stream.inject(tokens=[1, 2]) == 2
    assert stream.text == responder_text(2)
    assert await stream.resume() == 2
    assert await stream.cancel() == 10
    assert await stream.cancel() == 10
    assert stream.text == responder_text(10)


async def test_the_rewind_that_at_caused_is_not_the_answer(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    await peer.send_tokens(start, 0, "a", "b")
    adjusting = asyncio.create_task(stream.adjust(temperature=0, at=1))
    frame = await peer.receive(Adjust)
    await peer.send(Rewound(request_id=start.request_id, ref=frame.ref, index=1, text_length=1))
    await asyncio.gather(client.ping(), pong(peer))
    assert not adjusting.done()
    await peer.send(Adjusted(request_id=start.request_id, ref=frame.ref, index=1, params=frame.params))
    assert await adjusting == 1


async def test_a_refused_frame_raises_and_the_stream_goes_on(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    injecting = asyncio.create_task(stream.inject(text="x" * 99))
    frame = await peer.receive(Inject)
    await peer.send(error("context_too_long", start.request_id, frame.ref))
    with pytest.raises(midstream.ContextTooLong):
        await injecting
    await peer.send_tokens(start, 0, "on")
    assert await stream.next() == midstream.Chunk(0, 1, "on")


async def test_a_misspelt_or_impossible_change_is_not_sent(client: midstream.Client, peer: Peer) -> None:
    stream, _ = await begin(client, peer)
    with pytest.raises(TypeError, match="temprature"):
        await stream.adjust(temprature=0.2)  # type: ignore[call-arg]
    with pytest.raises(midstream.InvalidParams, match="top_p"):
        await stream.adjust(top_p=2)
    with pytest.raises(midstream.InvalidFrame, match="to"):
        await stream.rewind(-1)
    with pytest.raises(midstream.InvalidFrame, match="surrogates"):
        await stream.inject(text="cut \ud83d")
    with pytest.raises(midstream.InvalidFrame, match="kv"):
        await stream.pause(kv="keep")  # type: ignore[arg-type]


async def test_credit_that_there_is_not_is_refused_and_the_stream_goes_on(
    client: midstream.Client, peer: Peer
) -> None:
    stream, start = await begin(client, peer, window=1)
    with pytest.raises(midstream.InvalidFrame, match="limit"):
        stream.grant(2**31)
    taking = asyncio.create_task(stream.next())
    assert (await peer.receive(Grant)).limit == 1, "it does not seem granted"
    await peer.send_tokens(start, 0, "on")
    assert await taking == midstream.Chunk(0, 1, "on")


async def test_steering_a_stream_that_ends_meanwhile(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    adjusting = asyncio.create_task(stream.adjust(temperature=0))
    frame = await peer.receive(Adjust)
    cancelling = asyncio.create_task(stream.cancel())
    await peer.receive(Cancel)
    await peer.send(final(start.request_id, 0, "length"))
    await peer.send(error("request_finished", start.request_id, frame.ref))
    with pytest.raises(midstream.RequestFinished):
        await adjusting
    assert await cancelling == 0
    with pytest.raises(midstream.RequestFinished):
        await stream.pause()


async def test_what_is_refused_is_not_kept(client: midstream.Client, peer: Peer, tmp_path: Path) -> None:
    """An agent's result that is refused for now is said again for as long as its stream lives."""
    said = "It is said again, and refused again."  # by no other test
    with client.record(tmp_path / "r"):
        stream, _ = await begin(client, peer)
    for _ in range(3):
        injecting = asyncio.create_task(stream.inject(messages=[{"role": "user", "content": said}]))
        ref = (await peer.receive(Inject)).ref
        refusal = Error(status=429, code="rate_limited", message="later", retryable=True, ref=ref)
        await peer.send(refusal)
        with pytest.raises(midstream.RateLimited):
            await injecting
    gc.collect()
    injects = [one for one in gc.get_objects() if issubclass(type(one), Inject)]
    kept = [one for one in injects if any(message.content == said for message in one.messages or ())]
    assert len(kept) <= 1, "but the last, by its exception"


# -- a lost connection ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "retryable"), [(CloseCode.RESTART, True), (CloseCode.POLICY, False)])
async def test_a_lost_connection_wakes_everybody(
    client: midstream.Client, peer: Peer, code: int, retryable: bool
) -> None:
    stream, start = await begin(client, peer)
    waiting = [asyncio.create_task(call) for call in (stream.adjust(temperature=0), client.ping())]
    await peer.receive(Adjust)
    await peer.send_tokens(start, 0, "last words")
    await peer.socket.close(code, "so be it")
    outcomes = await asyncio.gather(*waiting, stream.cancel(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [midstream.ConnectionLost] * 3
    seen: list[str] = []
    with pytest.raises(midstream.ConnectionLost, match="so be it") as caught:
        await read(stream, seen)
    assert seen == ["last words"]
    assert (caught.value.code, caught.value.retryable) == (code, retryable)
    with pytest.raises(midstream.ConnectionLost):
        await client.start(prompt="Hi")


async def test_a_connection_cut_without_a_word(client: midstream.Client, peer: Peer) -> None:
    stream, _ = await begin(client, peer)
    peer.socket.transport.abort()
    with pytest.raises(midstream.ConnectionLost) as caught:
        await stream.next()
    assert (caught.value.code, caught.value.retryable) == (1006, True)


@pytest.mark.parametrize(
    "data", ['{"type": "token"}', "no JSON", "{}", '{"type": "song", "request_id": 5}', "[" * 100_000]
)
async def test_an_event_that_cannot_be_read_ends_the_connection(
    client: midstream.Client, peer: Peer, data: str
) -> None:
    stream, _ = await begin(client, peer)
    await peer.socket.send(data)
    with pytest.raises(midstream.ConnectionLost) as caught:
        await stream.next()
    assert (caught.value.code, caught.value.retryable) == (1002, False)
    await peer.socket.wait_closed()
    assert peer.socket.close_code == 1002


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_an_event_of_a_kind_that_is_not_known_yet_is_passed_over(encoding: Encoding) -> None:
    async with FakeServer() as server, midstream.connect(server.url, encoding=encoding) as client:
        peer = await server.peer()
        stream, start = await begin(client, peer)
        news = {"type": "song", "request_id": start.request_id, "seq": 1, "verses": [{"of": 4}]}
        for event in (news, {"type": "song"}, {"type": "song", "request_id": "of another"}):
            data = msgspec.json.encode(event) if encoding == "json" else msgspec.msgpack.encode(event)
            await peer.socket.send(data, text=encoding == "json")
        peer.seqs[start.request_id] += 1
        await peer.send_tokens(start, 0, "a")
        assert await stream.next() == midstream.Chunk(0, 1, "a")


@pytest.mark.parametrize("encoding", ["json", "msgpack"])
async def test_words_of_a_newer_server_are_told_as_they_are(encoding: Encoding) -> None:
    async with FakeServer() as server, midstream.connect(server.url, encoding=encoding) as client:
        peer = await server.peer()
        stream, start = await begin(client, peer)
        name = start.request_id
        await peer.send(Injected(request_id=name, index=0, count=3, reason="a_reminder"))
        await peer.send(Paused(request_id=name, index=0, reason="maintenance"))
        await asyncio.gather(client.ping(), pong(peer))
        assert (stream.state, stream.pause_reason) == ("paused", "maintenance")
        await peer.send(final(name, 0, "moved_on"))
        assert await stream.next() is None
        assert stream.final is not None
        assert stream.final.finish_reason == "moved_on"


async def test_so_is_what_it_says_of_a_model() -> None:
    catalog = [CatalogModel(name="toy", state="asleep")]
    async with (
        FakeServer(first_event=replace(READY, catalog=catalog)) as server,
        midstream.connect(server.url) as client,
    ):
        assert client.ready.catalog == catalog


async def test_a_gap_in_a_stream_ends_the_connection(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    await peer.send(Token(request_id=start.request_id, index=3, count=1, delta="x"))
    with pytest.raises(midstream.ConnectionLost, match="token 3"):
        await stream.next()


async def test_events_about_nobody_are_passed_over(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    await peer.send(error("request_finished", "long gone"))
    await peer.send(Paused(request_id="long gone", index=0, reason="client"))
    await peer.send_tokens(start, 0, "x")
    assert await stream.next() == midstream.Chunk(0, 1, "x")


async def test_a_connection_that_closes_ends_its_streams(server: FakeServer) -> None:
    async with midstream.connect(server.url) as client:
        stream, _ = await begin(client, await server.peer())
    with pytest.raises(midstream.ConnectionLost) as caught:
        await stream.next()
    assert caught.value.code == 1000
    gc.collect()


# -- no longer wanted ----------------------------------------------------------------------------------


async def test_break_cancels_though_the_stream_is_still_held(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    await peer.send_tokens(start, 0, "a", "b")
    async for _ in stream:
        break
    await peer.receive(Cancel)
    await peer.send(final(start.request_id, 2, "cancelled"))
    assert await stream.cancel() == 2
    assert stream.text == "ab"


async def test_a_reading_that_is_closed_cancels_though_it_is_still_held(
    client: midstream.Client, peer: Peer
) -> None:
    stream, start = await begin(client, peer)
    await peer.send_tokens(start, 0, "a")
    async with aclosing(aiter(stream)) as chunks:
        assert (await anext(chunks)).text == "a"
    await peer.receive(Cancel)


async def test_an_exception_in_the_loop_cancels(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    await peer.send_tokens(start, 0, "a")

    async def fail() -> None:
        async for chunk in stream:
            raise LookupError(chunk.text)

    with pytest.raises(LookupError):
        await fail()
    await peer.receive(Cancel)


async def test_a_cancelled_task_cancels(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer, window=1)
    task = asyncio.create_task(read(stream, []))
    assert (await peer.receive(Grant)).limit == 1
    task.cancel()
    await asyncio.wait([task])
    assert (await peer.receive(Cancel)).request_id == start.request_id


async def test_what_another_thread_was_refused_is_granted_here(client: midstream.Client, peer: Peer) -> None:
    stream, _ = await begin(client, peer, window=1)
    with pytest.raises(RuntimeError, match="lives in the event loop"):
        await asyncio.to_thread(stream.try_next)
    assert stream.try_next() is None
    assert (await peer.receive(Grant)).limit == 1


async def test_another_event_loop_is_told_that_the_client_is_not_its_own(
    client: midstream.Client, peer: Peer
) -> None:
    stream, start = await begin(client, peer)

    def elsewhere(work: Callable[[], Awaitable[object]]) -> None:
        async def wait() -> None:
            await work()

        with pytest.raises(RuntimeError, match="lives in the event loop in which it was made"):
            asyncio.run(wait())

    starting = functools.partial(client.start, prompt="Hi")
    for work in (stream.next, stream.pause, stream.cancel, client.ping, client.close, starting):
        await asyncio.to_thread(elsewhere, work)
    with pytest.raises(RuntimeError, match="lives in the event loop"):
        await asyncio.to_thread(stream.grant, 100)
    await peer.send_tokens(start, 0, "a")
    assert await stream.next() == midstream.Chunk(0, 1, "a")


async def test_closing_a_generator_around_the_loop_cancels(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    await peer.send_tokens(start, 0, "a", "b")

    async def words() -> AsyncIterator[str]:
        async for chunk in stream:
            yield chunk.text

    spoken = words()
    assert await anext(spoken) == "a"
    await spoken.aclose()  # type: ignore[attr-defined]
    await peer.receive(Cancel)


async def test_dropping_the_stream_cancels(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    del stream
    assert (await peer.receive(Cancel)).request_id == start.request_id


async def test_a_stream_in_a_cycle_is_cancelled_when_it_is_collected(
    client: midstream.Client, peer: Peer
) -> None:
    stream, start = await begin(client, peer)
    cycle: list[object] = [stream]
    cycle.append(cycle)
    del stream, cycle
    gc.collect()
    assert (await peer.receive(Cancel)).request_id == start.request_id


async def test_a_start_given_up_while_it_waits_is_cancelled(client: midstream.Client, peer: Peer) -> None:
    task = asyncio.create_task(client.start(prompt="Hi"))
    start = await peer.receive(Start)
    task.cancel()
    await asyncio.wait([task])
    assert (await peer.receive(Cancel)).request_id == start.request_id


async def test_leaving_a_with_block_waits_for_the_end(
    responder_client: midstream.Client, responder: Responder
) -> None:
    async with await responder_client.start(prompt="Hi", window=3) as stream:
        async for _ in stream:
            break
    assert stream.final == responder.finals[stream.request_id]
    assert stream.final.finish_reason == "cancelled"


async def test_leaving_a_with_block_of_a_lost_connection(client: midstream.Client, peer: Peer) -> None:
    stream, _ = await begin(client, peer)

    async def fail() -> None:
        async with stream:
            peer.socket.transport.abort()
            raise LookupError

    with pytest.raises(LookupError):
        await fail()
    assert stream.final is None


async def test_a_finished_stream_is_dropped_without_a_word(client: midstream.Client, peer: Peer) -> None:
    stream, start = await begin(client, peer)
    await peer.send(final(start.request_id, 0, "stop"))
    assert await stream.next() is None
    del stream
    await asyncio.gather(client.ping(), pong(peer))  # the next frame is the ping


async def test_what_was_dropped_before_the_connection_closes_is_cancelled_first(server: FakeServer) -> None:
    async with midstream.connect(server.url) as client:
        peer = await server.peer()
        accepting = asyncio.create_task(peer.accept_start())
        stream = await client.start(prompt="Hi")
        cancelled = asyncio.create_task(peer.receive(Cancel))
        del stream
    assert (await cancelled).request_id == (await accepting).request_id
