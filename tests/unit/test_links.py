"""The links to an engine that listens, over real sockets and gRPC: what they tell of who is there, and who is
not."""

from __future__ import annotations

import asyncio
import itertools
import re
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from engine import api
from engine.grpc_frames import METHOD, SERVICE, shown, wrapped
from realtime.certificates import Certificates
from realtime.config import Options
from realtime.fleet import places, socket_link
from realtime.fleet.address import Address
from realtime.fleet.engine_reads import READ_BYTES, EngineReads
from realtime.fleet.process_link import ProcessLink
from realtime.fleet.socket_link import SocketLink
from realtime.fleet.watched_engine import EngineFailed, WatchedEngine
from tests.fakes.certificates import Authority
from tests.fakes.engine_links import HELLO

Bodies = Sequence[bytes]  # of messages
NO_MESSAGE = "what it says is no message of an engine"


class Certified:
    """Whoever has certificates, of an authority or of another."""

    def __init__(self, folder: Path) -> None:
        ours, others = Authority(folder / "ours"), Authority(folder / "others")
        known, theirs = str(ours.cert), str(others.cert)
        self.engine = Certificates(known, *map(str, ours.signed("engine")))
        self.gateway = Certificates(known, *map(str, ours.signed("gateway")))
        self.without = Certificates(known)
        self.of_others = Certificates(known, *map(str, others.signed("gateway")))
        self.token = folder / "token"
        self.token.write_text("sesame")
        self.that_know_others = self.gateway._replace(authorities=theirs)


@pytest.fixture(scope="module")
def certified(tmp_path_factory: pytest.TempPathFactory) -> Certified:
    return Certified(tmp_path_factory.mktemp("certificates"))


class Peers:
    """Whoever answers at addresses of one kind: with these messages, behind which it waits or `hangs_up`."""

    def __init__(self, kind: str, certified: Certified) -> None:
        self.kind = kind
        self.certified = certified
        self.tokens = list[str]()
        self.heard = asyncio.Queue[bytes]()

    def answering(self, *said: bytes, hangs_up: bool = False) -> AbstractAsyncContextManager[str]:
        by = self._by_grpc if self.kind.startswith("grpc:") else self._by_socket
        return by(said, hangs_up)

    async def opened(self, address: str, certificates: Certificates | None = None) -> api.Hello:
        engine = self.watched(address, certificates)
        try:
            return await opened(engine)
        finally:
            await engine.close()

    def watched(self, address: str, certificates: Certificates | None = None) -> WatchedEngine:
        known = certificates or self.certified.gateway
        options = Options(
            engine_addresses=address,
            engine_token_file=str(self.certified.token),
            engine_ca_file=known.authorities,
            engine_cert_file=known.own,
            engine_key_file=known.key,
        )
        (place,) = places.listening(options)
        return WatchedEngine(place.connect)

    @asynccontextmanager
    async def _by_socket(self, said: Bodies, hangs_up: bool) -> AsyncIterator[str]:
        over = list[asyncio.Event]()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            over.append(asyncio.Event())
            with suppress(ConnectionError):
                head = await reader.readexactly(api.LENGTH_BYTES)
                join = await reader.readexactly(int.from_bytes(head, "big"))
                self.tokens.append(msgspec.msgpack.decode(join, type=api.Join).token)
                for body in said:
                    half = len(framed := api.framed(body)) // 2
                    for part in (framed[:half], framed[half:]):
                        writer.write(part)
                        await writer.drain()
                while not hangs_up and (head := await reader.read(api.LENGTH_BYTES)):
                    self.heard.put_nowait(await reader.readexactly(int.from_bytes(head, "big")))
                writer.close()
                await writer.wait_closed()
            over[-1].set()

        tls = self.certified.engine.of_an_engine() if self.kind else None
        server = await asyncio.start_server(serve, "127.0.0.1", ssl=tls)
        try:
            yield f"{self.kind}localhost:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            for each in over:
                await each.wait()

    @asynccontextmanager
    async def _by_grpc(self, said: Bodies, hangs_up: bool) -> AsyncIterator[str]:
        async def join(_: object, context: Any) -> None:
            self.tokens.append(shown(context.invocation_metadata()))
            await context.send_initial_metadata(())
            for body in said:
                await context.write(wrapped(body) if body else b"")
            while not hangs_up and (data := await context.read()) is not grpc.aio.EOF:
                self.heard.put_nowait(data)

        server = grpc.aio.server()
        handler = grpc.stream_stream_rpc_method_handler(join)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, {METHOD: handler}),))
        authorities, key, own = self.certified.engine.contents()
        credentials = grpc.ssl_server_credentials([(key, own)], authorities, True)
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        try:
            yield f"{self.kind}localhost:{port}"
        finally:
            await server.stop(0)


async def opened(engine: WatchedEngine, on_closed: Callable[[], None] = lambda: None) -> api.Hello:
    async with asyncio.timeout(10):
        return await engine.open(
            lambda output: None, lambda engine: on_closed(), answer_s=1000, start_silence_s=1000
        )


@pytest.fixture(params=["", "tls:", "grpc:tls:"], ids=["tcp", "tls", "grpc"])
def peers(request: pytest.FixtureRequest, certified: Certified) -> Peers:
    return Peers(request.param, certified)


encrypted = pytest.mark.parametrize("peers", ["tls:", "grpc:tls:"], ids=["tls", "grpc"], indirect=True)


def body(message: object) -> bytes:
    return msgspec.msgpack.encode(message)


async def test_it_shows_its_token_and_hears_what_is_served(peers: Peers) -> None:
    async with peers.answering(body(HELLO)) as address:
        assert await peers.opened(address) == HELLO
    assert peers.tokens == ["sesame"]


async def test_commands_go_down_and_whoever_is_killed_is_heard_to(peers: Peers) -> None:
    async with peers.answering(body(HELLO)) as address:
        engine, closed = peers.watched(address), asyncio.Event()
        await opened(engine, closed.set)
        commands = [api.Submit(7, [1] * 100_000, api.Sampling(), 10), api.Cancel(7)]
        engine.send(commands)  # type: ignore[arg-type]
        engine.send([])
        for sent in (commands, []):
            heard = await peers.heard.get()
            assert heard.endswith(body(sent))
        engine.kill()
        async with asyncio.timeout(10):
            await closed.wait()
        await engine.close()


async def test_why_it_is_refused_is_passed_on(peers: Peers) -> None:
    said = body(api.Failed("its token is not this engine's"))
    async with peers.answering(said, hangs_up=True) as address:
        with pytest.raises(EngineFailed, match="its token is not this engine's"):
            await peers.opened(address)


@pytest.mark.parametrize("said", [b"\xc1", body(api.Join("x")), b"{}", b""])
async def test_who_is_no_engine_is_said_to_be_none(peers: Peers, said: bytes) -> None:
    async with peers.answering(said) as address:
        with pytest.raises(EngineFailed, match=NO_MESSAGE):
            await peers.opened(address)


async def test_who_hangs_up_is_heard_to(peers: Peers) -> None:
    async with peers.answering(body(api.Starting()), hangs_up=True) as address:
        with pytest.raises(EngineFailed, match="ended before it was ready"):
            await peers.opened(address)


async def test_what_cannot_be_taken_in_here_is_logged_and_ends_the_link(
    peers: Peers, caplog: pytest.LogCaptureFixture
) -> None:
    """By a mistake of ours."""

    def fail(news: object) -> None:
        raise ZeroDivisionError

    closed = asyncio.Event()
    said = body(api.StepOutput(1, [], api.Stats()))
    async with peers.answering(body(HELLO), said) as address:
        engine = peers.watched(address)
        async with asyncio.timeout(10):
            await engine.open(fail, lambda _: closed.set(), answer_s=1000, start_silence_s=1000)
            await closed.wait()
        await engine.close()
    assert "ZeroDivisionError" in caplog.text
    assert engine.failure is None, "it is no fault of the engine's"


@pytest.mark.parametrize("peers", [""], indirect=True)
async def test_who_says_nothing_and_hangs_up_is_said_to(peers: Peers, tmp_path: Path) -> None:
    """As an engine whose connections are encrypted, to whom that is not said."""
    says = "it ends the connection before it says anything"
    async with peers.answering(hangs_up=True) as address:
        with pytest.raises(EngineFailed, match=f"{says}, as where what goes there is to be encrypted"):
            await peers.opened(address)
    server = await asyncio.start_unix_server(lambda _, writer: writer.close(), tmp_path / "engine")
    async with server:
        with pytest.raises(EngineFailed, match=f"{says}$"):
            await peers.opened(f"unix:{tmp_path}/engine")


def test_a_connection_may_be_cut_at_any_byte_and_what_came_whole_is_heard_once() -> None:
    said = [HELLO, api.StepOutput(1, [api.News(7, tokens=[5])], api.Stats()), api.Leaving()]
    ends = list(itertools.accumulate(len(api.encoded(message)) for message in said))
    data = b"".join(map(api.encoded, said))
    for cut, by in itertools.product(range(1, len(data) + 1), (1, len(data))):
        heard, closed = list[api.AnyMessage](), itertools.count()
        address = Address("unix:/nowhere")
        link = SocketLink(address, "", Certificates("", "", ""), heard.extend, partial(next, closed))
        for at in range(0, cut, by):
            link.data_received(data[at : min(at + by, cut)])
        link.connection_lost(None)
        assert heard == said[: sum(end <= cut for end in ends)]
        assert next(closed) == 1


async def test_where_nobody_listens_the_error_says_so(peers: Peers) -> None:
    async with peers.answering() as address:
        pass
    with pytest.raises(OSError, match=re.compile("Connect call failed|Connection refused")):
        await peers.opened(address)


@pytest.mark.parametrize("name", ["a..b", "a" * 64])
async def test_what_is_no_name_of_a_machine_is_said_to_be_none(peers: Peers, name: str) -> None:
    with pytest.raises(OSError, match=re.compile("no name of a machine|Misformatted domain name")):
        await peers.opened(f"{peers.kind}{name}:7000")


@pytest.mark.parametrize("kind", ["tls:", "grpc:", "grpc:tls:"])
async def test_who_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, certified: Certified, kind: str
) -> None:
    monkeypatch.setattr(socket_link, "CONNECT_S", 0.05)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(OSError, match=r"nothing answered there for 0.05 s"),
    ):
        await Peers(kind, certified).opened(f"{kind}localhost:{silent.getsockname()[1]}")


async def test_a_token_that_cannot_go_by_grpc_is_said_to_be_none(certified: Certified) -> None:
    certified.token.write_text("sesamé")
    with pytest.raises(OSError, match="letters of ASCII alone"):
        await Peers("grpc:", certified).opened("grpc:localhost:1")
    certified.token.write_text("sesame")


# -- certificates ----------------------------------------------------------------------------------


@encrypted
async def test_an_encrypted_engine_is_known_by_its_certificate(peers: Peers) -> None:
    async with peers.answering(body(HELLO)) as address:
        with pytest.raises(OSError, match=re.compile("certificate.verify.failed", re.IGNORECASE)):
            await peers.opened(address, peers.certified.that_know_others)
        with pytest.raises(OSError, match=r"not valid for '127.0.0.1'|Hostname Verification"):
            await peers.opened(address.replace("localhost", "127.0.0.1"))


@encrypted
@pytest.mark.parametrize("which", ["without", "of_others"])
async def test_an_engine_that_asks_for_our_certificate_has_one_or_refuses(peers: Peers, which: str) -> None:
    async with peers.answering(body(HELLO)) as address:
        with pytest.raises((EngineFailed, OSError), match="certificate is not what the engine asks for"):
            await peers.opened(address, getattr(peers.certified, which))


async def test_a_certificate_that_cannot_be_read_is_named(certified: Certified, tmp_path: Path) -> None:
    (tmp_path / "none").write_text("no certificate")
    spoilt = certified.gateway._replace(authorities=str(tmp_path / "none"))
    for kind in ("tls:", "grpc:tls:"):
        with pytest.raises(OSError, match=f"the certificate {tmp_path}/none cannot be used"):
            await Peers(kind, certified).opened(f"{kind}localhost:1", spoilt)


@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
@pytest.mark.parametrize("kind", ["process", "socket"])
def test_what_an_engine_says_of_very_many_streams_is_taken_in_a_piece_in_each_turn(
    kind: str, loop: str
) -> None:
    """What asyncio would hand on in one go takes 50 ms, and what uvloop would, 200."""
    new_loop = asyncio.new_event_loop if loop == "asyncio" else pytest.importorskip("uvloop").new_event_loop
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(_takes_in_a_piece_in_each_turn(kind))


async def _takes_in_a_piece_in_each_turn(kind: str) -> None:
    said, heard, turns = 40_000, list[int](), list[int]()

    def hear(messages: list[api.AnyMessage]) -> None:
        heard.append(len(messages))
        turns.append(turn)

    link: EngineReads
    if kind == "process":
        link = ProcessLink(api.EngineOptions(model="toy"), hear, lambda: None)
    else:
        link = SocketLink(Address("unix:/nowhere"), "sesame", Certificates(), hear, lambda: None)
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop, message, turn = asyncio.get_running_loop(), api.encoded(api.Leaving()), 0
    transport, _ = await loop.create_unix_connection(lambda: link, sock=ours)
    with theirs:
        saying = asyncio.ensure_future(loop.sock_sendall(theirs, message * said))
        while sum(heard) < said:
            turn += 1
            await asyncio.sleep(0)
        await saying
    transport.abort()
    assert max(heard) <= READ_BYTES // len(message) + 1
    assert len(set(turns)) == len(turns)
