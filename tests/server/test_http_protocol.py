"""The HTTP side against peers that send half a request, read nothing of the answer, or stay for ever."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
import sys
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest
from websockets.frames import Opcode

from realtime.transport import http_protocol
from realtime.transport.http_protocol import HttpLimits
from realtime.transport.request_parser import MOST_HEADERS
from realtime.transport.small_reads import READ_BYTES
from realtime.work_ledger import PayerWork
from tests.server.asgi_app_server import (
    App,
    Events,
    RawPeer,
    Receive,
    Scope,
    Send,
    Server,
    raw_peer,
    raw_socket,
    serving,
    upgrade,
)

pytestmark = pytest.mark.asyncio

HALF = b"GET / HTTP/1.1\r\nHost: local"
WHOLE = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
HASTY = HttpLimits(handshake_timeout_s=0.05)
LENIENT = HttpLimits(handshake_timeout_s=3600, close_timeout_s=0.05, body_timeout_s=3600)
MEGABYTES = bytes(16 << 20)
ENDED: dict[str, Any] = {"timeout_graceful_shutdown": 0}
KEPT: dict[str, Any] = {"timeout_keep_alive": 3600, "timeout_graceful_shutdown": 3600}


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, b"hello")


async def answer(send: Send, body: bytes) -> None:
    headers = [(b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def reading(events: Events, body: bytes = b"read") -> App:
    """An app that notes all that it receives, to the end of the request, and answers."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        message: dict[str, object] = {"more_body": True}
        while message.get("more_body"):
            events.add(message := dict(await receive()))
        await answer(send, body)
        events.add(dict(await receive()))

    return app


async def ask(peer: RawPeer) -> bytes:
    await peer.send(WHOLE)
    head = await peer.read_response()
    length = re.search(rb"content-length: (\d+)", head)
    assert length is not None
    return await peer.read(int(length[1]))


# -- requests that do not come -----------------------------------------------------------------------


async def test_half_a_request_is_told_that_it_took_too_long() -> None:
    async with serving(hello, http_limits=HASTY) as server, raw_socket(server) as peer:
        await peer.send(HALF)
        told = await peer.read_rest()
        assert told.startswith(b"HTTP/1.1 408 ")
        assert b"took too long" in told


async def test_half_a_websocket_handshake_is_no_different() -> None:
    async with serving(hello, http_limits=HASTY) as server, raw_socket(server) as peer:
        await peer.send(upgrade()[:-2])
        assert (await peer.read_rest()).startswith(b"HTTP/1.1 408 ")


async def test_whoever_says_nothing_is_told_nothing() -> None:
    async with serving(hello, http_limits=HASTY) as server, raw_socket(server) as peer:
        assert await peer.read_rest() == b""


async def test_bytes_that_come_one_by_one_win_no_time() -> None:
    async with serving(hello, http_limits=HASTY) as server, raw_socket(server) as peer:
        # Not to the end of the connection: what is sent too late resets it.
        answered = asyncio.create_task(peer.read_response())
        while not answered.done():
            await peer.send(b"G")
            await asyncio.wait([answered], timeout=0.01)
        assert (await answered).startswith(b"HTTP/1.1 408 ")


async def test_the_second_request_of_a_connection_has_the_same_time_as_the_first() -> None:
    async with serving(hello, http_limits=HASTY, **KEPT) as server, raw_socket(server) as peer:
        assert await ask(peer) == b"hello"
        await peer.send(HALF)
        assert (await peer.read_rest()).startswith(b"HTTP/1.1 408 ")


async def test_an_answer_may_take_its_time() -> None:
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        await goes_on.wait()
        await answer(send, b"at last")

    async with serving(slow, http_limits=HASTY) as server, raw_socket(server) as peer:
        await peer.send(WHOLE)
        await asked.wait()
        async with raw_socket(server) as later:
            assert await later.read_rest() == b""  # its time is over, and so the first one's would be
        goes_on.set()
        assert (await peer.read_response()).startswith(b"HTTP/1.1 200 ")


async def test_a_body_that_does_not_come_ends_the_connection() -> None:
    events = Events()
    limits = HttpLimits(body_timeout_s=0.05)
    async with serving(reading(events), http_limits=limits) as server, raw_socket(server) as peer:
        await peer.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nhal")
        assert (await events.next())["body"] == b"hal"
        assert (await peer.read_rest()).startswith(b"HTTP/1.1 408 ")
        assert (await events.next())["type"] == "http.disconnect"


async def test_of_a_websocket_no_body_is_awaited() -> None:
    events = Events()

    async def either(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await reading(events)(scope, receive, send)
        else:
            await receive()
            await send({"type": "websocket.accept"})
            await send({"type": "websocket.send", "text": (await receive())["text"]})

    limits = HttpLimits(body_timeout_s=0.05)
    async with serving(either, http_limits=limits) as server, raw_peer(server) as peer:
        async with raw_socket(server) as later:
            await later.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nhal")
            # Its time is over, and so the first one's would be.
            assert (await later.read_rest()).startswith(b"HTTP/1.1 408 ")
        await peer.frame(Opcode.TEXT, b"still here")
        assert await peer.read_frame() == (Opcode.TEXT, b"still here")


def head_of(size: int) -> bytes:
    return WHOLE[:-2] + b"X: " + b"x" * (size - len(WHOLE) - 5) + b"\r\n\r\n"


@pytest.mark.parametrize("left_out", [0, 4], ids=["whole", "without its end"])
async def test_a_head_that_is_too_large_is_refused_however_it_arrives(left_out: int) -> None:
    limit = HttpLimits().head_bytes
    async with serving(hello) as server, raw_socket(server) as peer:
        await peer.send(head_of(limit))
        assert (await peer.read_response()).startswith(b"HTTP/1.1 200 ")
        assert await peer.read(5) == b"hello"
        await peer.send(head_of(limit + 1 + left_out)[: limit + 1])
        told = await peer.read_rest()
        assert told.startswith(b"HTTP/1.1 431 ")
        assert b"16384 bytes" in told


FIELDS = b"a:b\r\n" * MOST_HEADERS


@pytest.mark.parametrize("end", [b"\r\n", b""], ids=["whole", "without its end"])
async def test_a_head_of_too_many_headers_is_refused_before_it_is_parsed(end: bytes) -> None:
    """Its own `Host` is one."""
    refused: list[tuple[int, str]] = []
    async with (
        serving(hello, refused=lambda *told: refused.append(told)) as server,
        raw_socket(server) as peer,
    ):
        await peer.send(WHOLE[:-2] + FIELDS + end)
        told = await peer.read_rest()
    assert told.startswith(b"HTTP/1.1 431 ")
    assert b"128 headers" in told
    assert refused == [(431, "127.0.0.1")]


async def test_whoever_sends_on_behind_what_is_no_request_is_told_so_all_the_same() -> None:
    limits = HttpLimits(close_timeout_s=3600)
    async with serving(hello, http_limits=limits) as server, raw_socket(server) as peer:
        await peer.send(WHOLE[:-2] + FIELDS + b"X: " + b"x" * 5 * READ_BYTES)
        assert (await peer.read_rest()).startswith(b"HTTP/1.1 431 ")
        await peer.send(b"x" * READ_BYTES)
        peer.socket.shutdown(socket.SHUT_WR)
        async with asyncio.timeout(10):
            while server.state.connections:  # noqa: ASYNC110 - a plain set, that tells nobody
                await asyncio.sleep(0)


async def test_a_body_that_is_none_ends_an_answer_that_is_under_way() -> None:
    gone = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x", "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        await send({"type": "http.response.body", "body": b"y", "more_body": True})
        gone.set()

    async with serving(endless) as server, raw_socket(server) as peer:
        await peer.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        await peer.read_response()
        await peer.send(b"no length\r\n")
        await peer.read_rest()
        await asyncio.wait_for(gone.wait(), 10)


async def test_as_many_headers_as_there_may_be_are_no_fewer_behind_a_request_that_came_with_them() -> None:
    most = WHOLE[:-2] + FIELDS.removesuffix(b"a:b\r\n") + b"\r\n"
    async with serving(hello) as server, raw_socket(server) as peer:
        await peer.send(most * 2)
        for _ in range(2):
            assert (await peer.read_response()).startswith(b"HTTP/1.1 200 ")
            assert await peer.read(5) == b"hello"


@pytest.mark.parametrize("end", [b"\r\n", b""], ids=["whole", "without their end"])
async def test_too_many_headers_behind_a_body_end_the_connection_before_they_are_parsed(end: bytes) -> None:
    """The last of them is none, which nobody has looked at."""
    async with serving(reading(Events())) as server, raw_socket(server) as peer:
        await peer.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n")
        await peer.send(FIELDS + b"a:b\r\nno header\r\n" + end)
        told = await peer.read_rest()
        assert told.startswith(b"HTTP/1.1 431 ")
        assert b"128 headers" in told


@pytest.mark.parametrize(
    ("headers", "status", "word"),
    [
        (b"Content-Length: 5\r\nTransfer-Encoding: chunked", 400, b"not both"),
        (b"Transfer-Encoding: chunked\r\nContent-Length: 5", 400, b"not both"),
        (b"Transfer-Encoding: gzip, chunked", 501, b"chunked"),
        (b"no header", 400, b"not a valid HTTP request: illegal header line.\n"),
        (b"Authorization : Bearer ms_of_somebody", 400, b"not a valid HTTP request: illegal header line.\n"),
        (b"Host: other", 400, b"not a valid HTTP request: found multiple Host: headers.\n"),
        (b"Content-Length: 1\r\nContent-Length: 2", 400, b"request: conflicting Content-Length headers.\n"),
    ],
)
async def test_what_two_readers_could_read_differently_is_refused_and_its_connection_closed(
    headers: bytes, status: int, word: bytes
) -> None:
    refused: list[tuple[int, str]] = []
    events = Events()
    async with serving(reading(events), refused=lambda *told: refused.append(told)) as server:
        async with raw_socket(server) as peer:
            head = b"POST / HTTP/1.1\r\nHost: localhost\r\n" + headers
            await peer.send(head + b"\r\n\r\n0\r\n\r\n" + WHOLE)
            told = await peer.read_rest()
        assert told.startswith(b"HTTP/1.1 %d " % status)
        assert word in told
        assert told.count(b"HTTP/1.1") == 1
    assert events.none
    assert refused == [(status, "127.0.0.1")]


async def test_when_too_many_wait_the_oldest_goes_and_the_next_is_served() -> None:
    limits = HttpLimits(handshake_timeout_s=3600, pending_limit_per_address=2)
    async with (
        serving(hello, http_limits=limits) as server,
        raw_socket(server) as oldest,
        raw_socket(server) as second,
        raw_socket(server) as third,
    ):
        assert await oldest.read_rest() == b""
        assert await ask(third) == b"hello"
        assert await ask(second) == b"hello"


async def test_whoever_was_answered_and_stays_waits_like_the_others() -> None:
    limits = HttpLimits(handshake_timeout_s=3600, pending_limit_per_address=2)
    async with serving(hello, http_limits=limits, **KEPT) as server, AsyncExitStack() as open_:
        peers = []
        for _ in range(3):
            peers.append(await open_.enter_async_context(raw_socket(server)))
            assert await ask(peers[-1]) == b"hello"
        oldest, *others = peers
        assert await oldest.read_rest() == b""
        assert [await ask(peer) for peer in others] == [b"hello", b"hello"]


async def test_whoever_says_nothing_behind_an_answer_is_not_waited_for_any_longer_than_before_it() -> None:
    async with serving(hello, http_limits=HASTY, **KEPT) as server, raw_socket(server) as peer:
        assert await ask(peer) == b"hello"
        assert await peer.read_rest() == b""


async def test_a_body_that_comes_late_keeps_no_connection_beyond_the_next_request() -> None:
    async with serving(hello, http_limits=HASTY, **KEPT) as server, raw_socket(server) as peer:
        await peer.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\n")
        assert b"200 OK" in await peer.read_response()
        await peer.read(len(b"hello"))
        await peer.send(b"body")
        assert await peer.read_rest() == b""


async def test_what_a_peer_sends_at_once_is_parsed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(reading(Events())) as server, raw_socket(server) as peer:
        sizes: list[int] = []
        received = server.http.data_received

        def note(protocol: Any, data: bytes) -> None:
            sizes.append(len(data))
            received(protocol, data)

        monkeypatch.setattr(server.http, "data_received", note)
        body = b"1\r\nx\r\n" * 10_000 + b"0\r\n\r\n"
        await peer.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + body)
        assert b"200 OK" in await peer.read_response()
        assert sum(sizes) > len(body)
        assert max(sizes) <= READ_BYTES


async def test_a_request_that_came_behind_another_waits_until_what_is_owed_has_been_paid() -> None:
    done = list[str]()
    paying = set[asyncio.Task[None]]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        done.append("request")
        if not paying:
            work = server.http.ledger.of("127.0.0.1")
            work.owe(10_000)
            paying.add(asyncio.create_task(work.do(lambda: done.append("paid"))))
            await asyncio.sleep(0)
        await answer(send, b"hello")

    async with serving(app, share=1e6) as server, raw_socket(server) as peer:
        await peer.send(2 * WHOLE)
        for _ in range(2):
            await peer.read_response()
            assert await peer.read(5) == b"hello"
        assert done == ["request", "paid", "request"]


class OthersTurn:
    """An app that answers once, while others have their turn, for whom all else of the address waits."""

    def __init__(self) -> None:
        self.ends = asyncio.Event()
        self.server: Server | None = None
        self._turn: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._turn is None:
            assert self.server is not None
            self._turn = asyncio.create_task(self._last(self.server.http.ledger.of("127.0.0.1")))
            await asyncio.sleep(0)
        await answer(send, b"hello")

    async def _last(self, work: PayerWork) -> None:
        async with work._line:
            await self.ends.wait()


async def test_one_whose_request_waits_for_its_turn_is_not_awaited_itself() -> None:
    app = OthersTurn()
    async with serving(app, http_limits=LENIENT, **KEPT) as server, raw_socket(server) as peer:
        app.server = server
        await peer.send(2 * WHOLE)
        await peer.read_response()
        assert await peer.read(5) == b"hello"
        assert not server.http.pending
        app.ends.set()
        await peer.read_response()
        assert await peer.read(5) == b"hello"
        assert len(server.http.pending) == 1


async def test_who_ends_their_half_of_the_connection_has_gone_away() -> None:
    heard = asyncio.Event()

    async def waits(scope: Scope, receive: Receive, send: Send) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        heard.set()

    async with serving(waits) as server, raw_socket(server) as peer:
        await peer.send(WHOLE)
        peer.socket.shutdown(socket.SHUT_WR)
        await asyncio.wait_for(heard.wait(), 10)
        assert await peer.read_rest() == b""


async def test_who_asks_pays_for_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "ANSWER_S", 1000.0)
    async with serving(hello) as server, raw_socket(server) as peer:
        work = server.http.ledger.of("127.0.0.1")
        assert work.is_free
        await ask(peer)
        assert not work.is_free


async def test_who_opens_a_websocket_pays_for_that_as_for_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_protocol, "ANSWER_S", 1000.0)

    async def refuses(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "websocket.close"})

    async with serving(refuses) as server, raw_socket(server) as peer:
        work = server.http.ledger.of("127.0.0.1")
        assert work.is_free
        await peer.send(upgrade())
        await peer.read_response()
        assert not work.is_free


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this system has no such sockets")
async def test_a_proxy_is_believed_by_its_own_address_where_all_addresses_are_listened_to() -> None:
    callers = Events()

    async def tell(scope: Scope, receive: Receive, send: Send) -> None:
        callers.add(scope["client"][0])
        raise RuntimeError

    everywhere = socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    said = "X-Forwarded-For: 192.0.2.1"
    async with serving(tell, listening=everywhere) as server:
        for asked in (WHOLE, WHOLE.replace(b"\r\n\r\n", f"\r\n{said}\r\n\r\n".encode()), upgrade("/", said)):
            async with raw_socket(server) as peer:
                await peer.send(asked)
                await peer.read_response()
        assert [await callers.next() for _ in range(3)] == ["127.0.0.1", "192.0.2.1", "192.0.2.1"]


async def test_a_body_that_goes_on_behind_its_answer_ends_the_connection_and_the_answer_arrives() -> None:
    limits = HttpLimits(late_body_bytes=1024, body_timeout_s=3600, close_timeout_s=0.05)
    async with serving(hello, http_limits=limits, **KEPT) as server, raw_socket(server) as peer:
        await peer.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        await until_answered(server)
        await peer.send(b"1\r\nx\r\n" * 1000)
        assert (await peer.read_rest()).endswith(b"\r\n\r\nhello")
        async with asyncio.timeout(10):
            while server.state.connections:  # noqa: ASYNC110 - a plain set, that tells nobody
                await asyncio.sleep(0)


async def until_answered(server: Server) -> None:
    async with asyncio.timeout(10):
        while not server.state.total_requests:  # noqa: ASYNC110 - a plain number, that tells nobody
            await asyncio.sleep(0)


# -- many at once ------------------------------------------------------------------------------------


async def unfinished(peer: RawPeer, events: Events) -> None:
    """A request whose body does not come."""
    await peer.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nhal")
    assert (await events.next())["body"] == b"hal"


CROWDED = [HttpLimits(open_limit_per_address=2), HttpLimits(open_limit=2)]


@pytest.mark.parametrize("limits", CROWDED, ids=["of an address", "of all"])
async def test_connections_are_bounded_whatever_they_do(limits: HttpLimits) -> None:
    asked = Events()
    refused = list[tuple[int, str]]()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        asked.add({})
        await asyncio.Event().wait()

    async with (
        serving(slow, http_limits=limits, refused=lambda *said: refused.append(said), **ENDED) as server,
        raw_socket(server) as first,
        raw_socket(server) as second,
    ):
        for peer in (first, second):
            await peer.send(WHOLE)
            await asked.next()
        async with raw_socket(server) as third:
            told = await third.read_rest()
            assert told.startswith(b"HTTP/1.1 429 "), "those who are being answered stay"
            assert b"too many connections" in told
        assert refused == [(429, "127.0.0.1")]


@pytest.mark.parametrize("limits", CROWDED, ids=["of an address", "of all"])
async def test_the_oldest_whose_body_is_awaited_goes_for_one_that_comes(limits: HttpLimits) -> None:
    events = Events()
    async with (
        serving(reading(events), http_limits=limits) as server,
        raw_socket(server) as first,
        raw_socket(server) as second,
    ):
        for peer in (first, second):
            await unfinished(peer, events)
        async with raw_socket(server) as third:
            assert (await first.read_rest()).startswith(b"HTTP/1.1 408 ")
            await third.send(WHOLE)
            assert (await third.read_response()).startswith(b"HTTP/1.1 200 ")
        await second.send(b"f")
        assert (await second.read_response()).startswith(b"HTTP/1.1 200 ")


FEW_UNREAD = [HttpLimits(unread_limit_per_address=1), HttpLimits(unread_limit=1)]


@pytest.mark.parametrize("limits", FEW_UNREAD, ids=["of an address", "of all"])
async def test_of_too_many_that_take_nothing_of_an_answer_the_first_goes(limits: HttpLimits) -> None:
    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        await answer(send, MEGABYTES)

    async with (
        serving(long, http_limits=limits) as server,
        raw_socket(server) as first,
        raw_socket(server) as second,
    ):
        await first.send(WHOLE)
        while len(server.http.unread) < 1:  # noqa: ASYNC110 - a plain number, that tells nobody
            await asyncio.sleep(0)
        await second.send(WHOLE)
        with pytest.raises(ConnectionResetError):
            await first.read_rest()


@pytest.mark.parametrize("limits", CROWDED, ids=["of an address", "of all"])
async def test_one_that_takes_nothing_of_an_answer_goes_for_one_that_comes(limits: HttpLimits) -> None:
    asked = Events()

    async def long(scope: Scope, receive: Receive, send: Send) -> None:
        asked.add({})
        await answer(send, MEGABYTES if scope["path"] == "/long" else b"hello")

    async with (
        serving(long, http_limits=limits) as server,
        raw_socket(server) as first,
        raw_socket(server) as second,
    ):
        for peer in (first, second):
            await peer.send(WHOLE.replace(b"/", b"/long", 1))
            await asked.next()
        while len(server.http.unread) < 2:  # noqa: ASYNC110 - a plain number, that tells nobody
            await asyncio.sleep(0)
        async with raw_socket(server) as third:
            assert await ask(third) == b"hello"
        with pytest.raises(ConnectionResetError):
            await first.read_rest()


FEW_BODIES = [HttpLimits(body_limit_per_address=2), HttpLimits(body_limit=2)]


@pytest.mark.parametrize("limits", FEW_BODIES, ids=["of an address", "of all"])
async def test_of_too_many_bodies_that_one_goes_of_which_nothing_came_for_longest(limits: HttpLimits) -> None:
    events = Events()
    limits = replace(limits, body_piece_bytes=1)
    async with (
        serving(reading(events), http_limits=limits) as server,
        raw_socket(server) as first,
        raw_socket(server) as second,
        raw_socket(server) as third,
    ):
        for peer in (first, second):
            await peer.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\na")
            await events.next()
        await first.send(b"b")
        await events.next()
        await unfinished(third, events)
        assert (await second.read_rest()).startswith(b"HTTP/1.1 408 ")
        await first.send(b"c")
        assert (await first.read_response()).startswith(b"HTTP/1.1 200 ")


async def test_a_body_has_to_come_at_some_rate() -> None:
    events = Events()
    limits = HttpLimits(body_piece_timeout_s=0.05)
    async with serving(reading(events), http_limits=limits) as server, raw_socket(server) as peer:
        await unfinished(peer, events)
        assert (await peer.read_rest()).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize("limits", CROWDED, ids=["of an address", "of all"])
async def test_one_that_waits_goes_for_one_that_comes(limits: HttpLimits) -> None:
    events = Events()
    async with serving(reading(events), http_limits=limits) as server, raw_socket(server) as busy:
        await unfinished(busy, events)
        async with raw_socket(server) as idle, raw_socket(server) as coming:
            assert await idle.read_rest() == b""
            await coming.send(WHOLE)
            assert (await coming.read_response()).startswith(b"HTTP/1.1 200 ")
        await busy.send(b"f")
        assert (await busy.read_response()).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("limits", CROWDED, ids=["of an address", "of all"])
async def test_one_whose_next_request_waits_for_its_turn_goes_for_one_that_comes(limits: HttpLimits) -> None:
    app, refused = OthersTurn(), list[tuple[int, str]]()
    async with (
        serving(app, http_limits=limits, refused=lambda *said: refused.append(said), **KEPT) as server,
        raw_socket(server) as idle,
        raw_socket(server) as asking,
    ):
        app.server = server
        await asking.send(2 * WHOLE)
        await asking.read_response()
        assert await asking.read(5) == b"hello"
        async with raw_socket(server) as coming:
            assert (await asking.read_rest()).startswith(b"HTTP/1.1 429 ")
            assert refused == [(429, "127.0.0.1")]
            app.ends.set()
            assert await ask(idle) == b"hello", "who keeps others waiting goes first"
            assert await ask(coming) == b"hello"


@pytest.mark.parametrize("limits", CROWDED, ids=["of an address", "of all"])
async def test_one_that_was_answered_and_whose_body_never_comes_goes_for_one_that_comes(
    limits: HttpLimits,
) -> None:
    async with (
        serving(hello, http_limits=limits, **KEPT) as server,
        raw_socket(server) as first,
        raw_socket(server) as second,
    ):
        for peer in (first, second):
            await peer.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nb")
            assert b" 200 " in await peer.read_response()
            assert await peer.read(5) == b"hello"
        await second.send(b"o")
        async with raw_socket(server) as coming:
            assert await ask(coming) == b"hello"
            assert await first.read_rest() == b""


async def test_a_body_that_never_comes_behind_its_answer_is_awaited_no_longer_than_a_request() -> None:
    async with serving(hello, http_limits=HASTY, **KEPT) as server, raw_socket(server) as peer:
        await peer.send(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nb")
        assert (await peer.read_rest()).endswith(b"\r\n\r\nhello")


async def test_what_is_closed_or_a_websocket_is_counted_no_longer() -> None:
    async def either(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await answer(send, b"hello")
        else:
            await receive()
            await send({"type": "websocket.accept"})
            await receive()

    limits = HttpLimits(open_limit_per_address=1)
    async with serving(either, http_limits=limits) as server, raw_peer(server), raw_peer(server):
        async with raw_socket(server) as peer:
            assert await ask(peer) == b"hello"
            assert len(server.http.open) == 1
        async with raw_socket(server) as another:
            assert await ask(another) == b"hello"


# -- answers that are not read -----------------------------------------------------------------------


async def test_a_peer_that_reads_nothing_of_an_answer_is_cut_off() -> None:
    events = Events()
    app, limits = reading(events, bytes(16 << 20)), HttpLimits(send_timeout_s=0.05)
    async with serving(app, http_limits=limits) as server, raw_socket(server) as peer:
        await peer.send(WHOLE)
        assert (await events.next())["type"] == "http.request"
        assert (await events.next())["type"] == "http.disconnect"


async def test_the_last_bytes_of_an_answer_keep_no_connection_for_ever() -> None:
    events = Events()
    app = reading(events, bytes(16 << 20))
    limits = HttpLimits(close_timeout_s=0.05, high_water_bytes=1 << 30)
    async with serving(app, http_limits=limits, **KEPT) as server, raw_socket(server) as peer:
        await peer.send(WHOLE.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        await events.next()
        assert (await events.next())["type"] == "http.disconnect"  # all is said, and nothing of it read
        await server.stop()


# -- the end of the server ---------------------------------------------------------------------------


async def test_the_end_of_the_server_waits_for_no_idle_connection() -> None:
    async with (
        serving(hello, http_limits=LENIENT, **KEPT) as server,
        raw_socket(server) as silent,
        raw_socket(server) as half,
        raw_socket(server) as kept,
    ):
        await half.send(HALF)
        assert await ask(kept) == b"hello"
        await server.stop()
        assert [await peer.read_rest() for peer in (silent, half, kept)] == [b"", b"", b""]


async def test_the_end_of_the_server_waits_for_no_body_that_is_still_to_come() -> None:
    events = Events()
    async with (
        serving(reading(events), http_limits=LENIENT, **KEPT) as server,
        raw_socket(server) as peer,
    ):
        await unfinished(peer, events)
        await server.stop()
        assert (await peer.read_rest()).startswith(b"HTTP/1.1 503 ")
        assert not server.state.connections
        assert not server.http.pending


async def test_the_end_of_the_server_waits_for_an_answer_on_its_way() -> None:
    asked, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        await goes_on.wait()
        await answer(send, b"at last")

    async with serving(slow, http_limits=LENIENT, **KEPT) as server, raw_socket(server) as peer:
        await peer.send(WHOLE)
        await asked.wait()
        stopping = asyncio.create_task(server.stop())
        goes_on.set()
        assert (await peer.read_rest()).endswith(b"at last")
        await stopping


# -- hosts that vanish -------------------------------------------------------------------------------


async def test_the_kernel_is_told_to_notice_a_vanished_host_later_than_a_slow_reader() -> None:
    limits = HttpLimits(send_timeout_s=7)
    async with serving(hello, http_limits=limits, **KEPT) as server, raw_socket(server) as peer:
        await ask(peer)
        [connection] = server.state.connections
        sock = connection.transport.get_extra_info("socket")
        kept = sock.getsockopt
        assert kept(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert kept(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 15
        if sys.platform == "linux":
            assert kept(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 17_000


async def test_a_connection_that_does_not_take_an_option_is_served_and_counted_as_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of a peer that has gone already, by some systems, or in a sandbox that knows fewer of them."""
    take = socket.socket.setsockopt

    def refuse(sock: socket.socket, level: int, option: int, value: Any) -> None:
        if (level, option) == (socket.SOL_SOCKET, socket.SO_KEEPALIVE):
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        take(sock, level, option, value)

    async with serving(hello, **KEPT) as server:
        monkeypatch.setattr(socket.socket, "setsockopt", refuse)
        async with raw_socket(server) as peer:
            assert await ask(peer) == b"hello"
            assert len(server.http.open) == 1
        async with asyncio.timeout(10):
            while server.state.connections:  # noqa: ASYNC110 - each turn may end it
                await asyncio.sleep(0)
        assert len(server.http.open) == 0
