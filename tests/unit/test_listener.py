"""The listener of an engine, by each of its doors, with an engine that computes nothing and gateways that say
whatever they like: who may join, and what becomes of the streams of one that goes."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import grpc
import msgspec
import pytest

from engine import api
from engine.grpc_frames import METHOD, SERVICE, showing, unwrapped, wrapped
from engine.listening import limits
from engine.listening.grpc_door import GrpcDoor
from engine.listening.listener import Door, DoorError, Listener
from engine.listening.socket_door import SocketDoor
from realtime.certificates import Certificates
from tests.fakes.certificates import Authority
from tests.fakes.cutting_proxy import CuttingProxy
from tests.fakes.engine_links import HELLO

PATIENCE_S = 10.0
TOKEN = "sesame"
NO_MESSAGE = "what was sent is no message of a gateway"
OTHER = "this engine computes for another gateway"
WRONG = "its token is not this engine's"


class SimulatedEngine:
    """It hears commands, and has the news that a test says."""

    def __init__(self, door: Door, token: str = TOKEN) -> None:
        self.commands: SimpleQueue[list[api.AnyCommand]] = SimpleQueue()
        self.address = door.address
        self.left = False
        self.listener = Listener(door, token, HELLO, self.commands.put)

    def next_commands(self) -> list[api.AnyCommand]:
        return self.commands.get(timeout=PATIENCE_S)

    def leave(self) -> None:
        if not self.left:
            self.left = True
            self.listener.leave()

    def end(self, *streams: int) -> None:
        """The last news of these."""
        self.listener.emit(output(*(api.News(stream, finish=api.Finish("eos")) for stream in streams)))


class Gateway:
    """One connection to it, by a socket."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(PATIENCE_S)
        self._connection = connection
        self._messages = api.Messages()
        self._decoder = msgspec.msgpack.Decoder(api.AnyMessage)
        self._heard: list[bytes] = []

    def send(self, *messages: object) -> None:
        self.send_bytes(b"".join(api.framed(msgspec.msgpack.encode(message)) for message in messages))

    def send_bytes(self, data: bytes) -> None:
        self._connection.sendall(data)

    def hear(self) -> api.AnyMessage | None:
        """None where the connection is closed."""
        while not self._heard:
            try:
                data = self._connection.recv(65536)
            except ConnectionResetError:  # something that was said was not read
                data = b""
            if not data:
                return None
            self._heard += self._messages.of(data)
        message: api.AnyMessage = self._decoder.decode(self._heard.pop(0))
        return message

    def join(self, token: str = TOKEN) -> Gateway:
        self.send(api.Join(token))
        return self

    def close(self) -> None:
        self._connection.close()


class GrpcGateway(Gateway):
    """One by gRPC."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel
        self._said: SimpleQueue[bytes | None] = SimpleQueue()
        self._call: grpc.Call | None = None
        self._decoder = msgspec.msgpack.Decoder(api.AnyMessage)

    def send(self, *messages: object) -> None:
        for message in messages:
            self.send_bytes(wrapped(msgspec.msgpack.encode(message)))

    def send_bytes(self, data: bytes) -> None:
        self._said.put(data)

    def hear(self) -> api.AnyMessage | None:
        assert self._call is not None
        try:
            message: api.AnyMessage = self._decoder.decode(unwrapped(next(self._call)))
        except StopIteration:
            return None
        return message

    def join(self, token: str = TOKEN) -> Gateway:
        call = self._channel.stream_stream(f"/{SERVICE}/{METHOD}")
        said = iter(self._said.get, None)
        self._call = call(said, metadata=showing(token), timeout=2 * PATIENCE_S)
        self._call.initial_metadata()  # whoever joins later comes later
        return self

    def close(self) -> None:
        self._said.put(None)
        self._channel.close()


class Fleet:
    """Certificates of one authority, doors by which engines are to be reached, and ways to each."""

    def __init__(self, folder: Path) -> None:
        self.authority = Authority(folder / "ours")
        self.of_engine = Certificates(str(self.authority.cert), *map(str, self.authority.signed("engine")))
        self.of_gateway = Certificates(str(self.authority.cert), *map(str, self.authority.signed("gateway")))

    def door(self, kind: str, folder: Path) -> Door:
        match kind:
            case "tcp":
                return SocketDoor(loopback())
            case "unix":
                bound = socket.socket(socket.AF_UNIX)
                bound.bind(str(folder / "engine"))
                return SocketDoor(bound)
            case "tls":
                return SocketDoor(loopback(), self.of_engine.of_an_engine())
            case _:
                return GrpcDoor(loopback(), self.of_engine.contents())

    def gateway(self, address: str) -> Gateway:
        kind, _, place = address.rpartition("unix:" if address.startswith("unix:") else "127.0.0.1:")
        if kind == "grpc:tls:":
            credentials = grpc.ssl_channel_credentials(*self.of_gateway.contents())
            options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
            return GrpcGateway(grpc.secure_channel(f"localhost:{place}", credentials, options))
        if address.startswith("unix:"):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(place)
        else:
            connection = socket.create_connection(("127.0.0.1", int(place)), PATIENCE_S)
        if kind == "tls:":
            context = self.of_gateway.of_a_gateway()
            connection = context.wrap_socket(connection, server_hostname="localhost")
        return Gateway(connection)


def output(*news: api.News) -> api.StepOutput:
    return api.StepOutput(1, list(news), api.Stats())


def submit(stream: int) -> api.Submit:
    return api.Submit(stream, [1, 2, 3], api.Sampling(), 10)


def loopback() -> socket.socket:
    bound = socket.socket()
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", 0))
    return bound


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["tcp", "unix", "tls", "grpc"])
def door(request: pytest.FixtureRequest, fleet: Fleet, tmp_path: Path) -> Door:
    return fleet.door(request.param, tmp_path)


only_sockets = pytest.mark.parametrize("door", ["tcp", "unix", "tls"], indirect=True)


@pytest.fixture
def listens() -> Iterator[Callable[..., SimulatedEngine]]:
    """Engines that are told to end when the test is over."""
    made = list[SimulatedEngine]()

    def listen(door: Door, token: str = TOKEN) -> SimulatedEngine:
        made.append(SimulatedEngine(door, token))
        return made[-1]

    yield listen
    for engine in made:
        engine.leave()


@pytest.fixture
def engine(door: Door, listens: Callable[..., SimulatedEngine]) -> SimulatedEngine:
    return listens(door)


@pytest.fixture
def connect(engine: SimulatedEngine, fleet: Fleet) -> Iterator[Callable[[], Gateway]]:
    made = list[Gateway]()

    def connected() -> Gateway:
        made.append(fleet.gateway(engine.address))
        return made[-1]

    yield connected
    for gateway in made:
        gateway.close()


Connect = Callable[[], Gateway]


def with_streams(engine: SimulatedEngine, gateway: Gateway, *streams: int) -> Gateway:
    """One that has joined, and begun these."""
    assert gateway.join().hear() == HELLO
    begun = [submit(stream) for stream in streams]
    gateway.send(begun)
    assert engine.next_commands() == begun
    return gateway


# -- who may join ----------------------------------------------------------------------------------


def test_whoever_knows_the_token_hears_what_is_served_and_has_commands_done(
    engine: SimulatedEngine, connect: Connect
) -> None:
    gateway = connect().join()
    assert gateway.hear() == HELLO
    gateway.send([submit(7)], [])
    assert engine.next_commands() == [submit(7)]
    assert engine.next_commands() == [], "which asks whether it answers"
    engine.listener.emit(output(api.News(7, tokens=[1])))
    assert gateway.hear() == output(api.News(7, tokens=[1]))


@pytest.mark.parametrize("token", ["", "Sesame", "sesame!", "Bearer sesame", "s" * 4000])
def test_a_wrong_token_is_refused_in_a_sentence(
    engine: SimulatedEngine, connect: Connect, token: str
) -> None:
    gateway = connect().join(token)
    assert gateway.hear() == api.Failed(WRONG)
    assert gateway.hear() is None
    assert connect().join().hear() == HELLO


def test_an_engine_without_a_token_takes_whoever_connects(
    listens: Callable[..., SimulatedEngine], door: Door, fleet: Fleet
) -> None:
    gateway = fleet.gateway(listens(door, "").address)
    assert gateway.join("whatever").hear() == HELLO
    gateway.close()


@only_sockets
def test_a_connection_has_one_token_to_try(engine: SimulatedEngine, connect: Connect) -> None:
    gateway = connect()
    gateway.send(api.Join("sesamé"), api.Join("another"), api.Join(TOKEN))
    assert gateway.hear() == api.Failed(WRONG)
    assert gateway.hear() is None


@only_sockets
@pytest.mark.parametrize(
    "said",
    [
        (limits.LARGEST_JOIN + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # of TLS
        api.framed(b""),
        api.framed(b"\xc1"),
        api.encoded(api.Leaving()),
        api.encoded([submit(1)]),
        api.framed(msgspec.msgpack.encode(["Join", 7])),
        api.framed(msgspec.msgpack.encode(["Join", "??"]).replace(b"??", b"\xff\xfe")),  # no text
        api.framed(msgspec.msgpack.encode(["Join", "s" * 8000])),
    ],
)
def test_what_is_no_join_is_refused_before_it_is_read(
    engine: SimulatedEngine, connect: Connect, said: bytes
) -> None:
    gateway = connect()
    gateway.send_bytes(said)
    assert gateway.hear() == api.Failed(NO_MESSAGE)
    assert gateway.hear() is None
    assert engine.commands.empty()


@only_sockets
def test_who_says_nothing_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Connect
) -> None:
    monkeypatch.setattr(limits, "JOIN_S", 0.05)
    gateway = connect()
    gateway.send_bytes(b"\0\0\0")  # the beginning of something
    assert gateway.hear() == api.Failed("nothing was said for 0.05 s")
    assert gateway.hear() is None


@only_sockets
def test_who_has_joined_may_be_silent(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Connect
) -> None:
    monkeypatch.setattr(limits, "JOIN_S", 0.05)
    gateway = connect().join()
    assert gateway.hear() == HELLO
    silent = connect()
    assert silent.hear() == api.Failed("nothing was said for 0.05 s"), "who came later"
    gateway.send([submit(1)])
    assert engine.next_commands() == [submit(1)]


def test_a_gateway_that_sends_no_commands_is_refused_and_its_streams_end(
    engine: SimulatedEngine, connect: Connect
) -> None:
    gateway = connect().join()
    assert gateway.hear() == HELLO
    gateway.send([submit(1)], ["no command"], [submit(2)])
    assert gateway.hear() == api.Failed(NO_MESSAGE)
    assert engine.next_commands() == [submit(1)]
    assert engine.next_commands() == [api.Cancel(1)]
    assert engine.commands.empty()


# -- one after the other ---------------------------------------------------------------------------


def test_a_second_gateway_is_refused_while_one_is_there(engine: SimulatedEngine, connect: Connect) -> None:
    first = connect().join()
    assert first.hear() == HELLO
    second = connect().join()
    assert second.hear() == api.Failed(OTHER)
    assert second.hear() is None
    first.send([submit(1)])
    assert engine.next_commands() == [submit(1)], "and the first does not feel it"


def test_when_a_gateway_goes_its_streams_are_cancelled_and_the_next_hears_when_nothing_is_left(
    engine: SimulatedEngine, connect: Connect
) -> None:
    first = with_streams(engine, connect(), 1, 2, 3)
    engine.end(2)
    first.close()
    cancelled = engine.next_commands()
    assert sorted(cancelled, key=repr) == [api.Cancel(1), api.Cancel(3)]
    second = connect().join()
    engine.listener.emit(output(api.News(1, tokens=[5])))
    engine.end(1)
    assert connect().join().hear() == api.Failed(OTHER), "who waits has the place"
    engine.end(3)
    assert second.hear() == HELLO, "and nothing of what was not its own"
    second.send([submit(1)])
    assert engine.next_commands() == [submit(1)]


def test_a_gateway_that_speaks_before_it_has_heard_is_refused(
    engine: SimulatedEngine, connect: Connect
) -> None:
    first = with_streams(engine, connect(), 1)
    first.close()
    assert engine.next_commands() == [api.Cancel(1)]
    hasty = connect().join()
    hasty.send([submit(1)])
    assert hasty.hear() == api.Failed("it speaks before it has heard what is served")
    assert hasty.hear() is None
    assert engine.next_commands() == [api.Cancel(1)], "once more: whoever waited is gone too"
    engine.end(1)
    assert connect().join().hear() == HELLO


def test_a_finish_that_may_be_taken_back_leaves_the_stream(engine: SimulatedEngine, connect: Connect) -> None:
    gateway = with_streams(engine, connect(), 1)
    engine.listener.emit(output(api.News(1, finish=api.Finish("eos", held=True))))
    gateway.close()
    assert engine.next_commands() == [api.Cancel(1)]


class NewsBeforeAnotherJoins(list[api.News]):
    """Of the last streams of a gateway that is gone; they are hardly known when the next one joins."""

    def __init__(self, news: api.News, join: Callable[[], None]) -> None:
        super().__init__([news])
        self._join = join

    def __iter__(self) -> Iterator[api.News]:
        yield from super().__iter__()
        self._join()


def test_the_last_news_of_one_gateway_are_not_told_to_the_next(
    engine: SimulatedEngine, connect: Connect
) -> None:
    first = with_streams(engine, connect(), 1)
    first.close()
    assert engine.next_commands() == [api.Cancel(1)]
    second = connect()
    last = api.News(1, finish=api.Finish("cancelled"))
    news = NewsBeforeAnotherJoins(last, lambda: hello.append(second.join().hear()))
    hello: list[api.AnyMessage | None] = []
    engine.listener.emit(api.StepOutput(1, news, api.Stats()))
    assert hello == [HELLO]
    second.send([submit(2)])
    assert engine.next_commands() == [submit(2)]
    engine.listener.emit(output(api.News(2, tokens=[1])))
    assert second.hear() == output(api.News(2, tokens=[1]))


# -- a gateway that does not read ------------------------------------------------------------------


def emitting(engine: SimulatedEngine) -> Callable[[], threading.Thread]:
    """Says news to whoever does not read until nothing more is taken, and returns how that ends."""
    taken = threading.Event()

    def emit() -> None:
        for _ in range(400):
            taken.set()
            engine.listener.emit(output(api.News(1, tokens=[100_000] * 50_000)))

    def held_up() -> threading.Thread:
        thread = threading.Thread(target=emit, daemon=True)
        thread.start()
        while True:  # until nothing has been taken for a while
            taken.clear()
            if not taken.wait(0.2):
                return thread

    return held_up


@pytest.fixture
def unread(engine: SimulatedEngine, connect: Connect) -> Gateway:
    return with_streams(engine, connect(), 1)


def test_an_engine_waits_for_a_gateway_that_does_not_read(engine: SimulatedEngine, unread: Gateway) -> None:
    thread = emitting(engine)()
    assert thread.is_alive()
    for _ in range(400):
        news = unread.hear()
        assert isinstance(news, api.StepOutput)
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


def test_an_engine_waits_no_longer_for_one_that_goes(
    engine: SimulatedEngine, unread: Gateway, connect: Connect
) -> None:
    thread = emitting(engine)()
    unread.close()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert engine.next_commands() == [api.Cancel(1)]
    engine.end(1)
    assert connect().join().hear() == HELLO


def test_an_engine_that_is_told_to_end_waits_for_nobody(engine: SimulatedEngine, unread: Gateway) -> None:
    thread = emitting(engine)()
    engine.listener.end_soon()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="elsewhere it takes the kernel minutes")
@pytest.mark.parametrize("door", ["tcp", "tls"], indirect=True)
def test_a_gateway_whose_machine_takes_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Connect
) -> None:
    monkeypatch.setattr(limits, "UNTAKEN_S", 0.5)
    with_streams(engine, connect(), 1)
    thread = emitting(engine)()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert engine.next_commands() == [api.Cancel(1)]


@pytest.mark.parametrize("door", ["grpc"], indirect=True)
async def test_a_gateway_of_which_grpc_hears_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, fleet: Fleet, door: Door, listens: Callable[..., SimulatedEngine]
) -> None:
    monkeypatch.setattr(limits, "IDLE_S", 1)
    monkeypatch.setattr(limits, "UNTAKEN_S", 2)
    engine = listens(door)
    async with CuttingProxy(int(engine.address.rpartition(":")[2])) as proxy:
        gateway = fleet.gateway(f"grpc:tls:{proxy.url.removeprefix('http://')}")
        await asyncio.to_thread(with_streams, engine, gateway, 1)
        proxy.cut("silence")
        assert await asyncio.to_thread(engine.next_commands) == [api.Cancel(1)]
        gateway.close()


# -- its end ---------------------------------------------------------------------------------------


def test_an_engine_that_ends_says_so_behind_what_it_has_computed(
    engine: SimulatedEngine, connect: Connect
) -> None:
    gateway = with_streams(engine, connect(), 1)
    engine.listener.emit(output(api.News(1, tokens=[1])))
    engine.leave()
    assert gateway.hear() == output(api.News(1, tokens=[1]))
    assert gateway.hear() == api.Leaving()
    assert gateway.hear() is None


@only_sockets
def test_an_engine_with_no_gateway_ends_at_once(engine: SimulatedEngine, connect: Connect) -> None:
    silent = connect()
    assert connect().join("wrong").hear() == api.Failed(WRONG)  # so the one before is known
    engine.leave()
    assert silent.hear() is None


# -- strangers -------------------------------------------------------------------------------------


@only_sockets
def test_of_too_many_strangers_the_oldest_goes(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Connect
) -> None:
    monkeypatch.setattr(limits, "MOST_STRANGERS", 2)
    known = with_streams(engine, connect(), 1)
    strangers = [connect() for _ in range(3)]
    why = "2 have connected since, and it has said nothing yet"
    assert strangers[0].hear() == api.Failed(why)
    assert strangers[0].hear() is None
    assert strangers[2].join().hear() == api.Failed(OTHER), "there is room for those that say something"
    assert strangers[1].join().hear() == api.Failed(OTHER)
    known.send([submit(2)])
    assert engine.next_commands() == [submit(2)], "who has joined is none"


@pytest.mark.parametrize("door", ["tls"], indirect=True)
def test_who_does_not_shake_hands_is_a_stranger(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Connect
) -> None:
    monkeypatch.setattr(limits, "MOST_STRANGERS", 2)
    bare = [bare_gateway(engine) for _ in range(3)]
    assert bare[0].hear() is None
    assert connect().join().hear() == HELLO
    assert bare[1].hear() is None
    for stranger in bare:
        stranger.close()


@pytest.mark.parametrize("door", ["grpc"], indirect=True)
def test_where_grpc_has_too_many_the_newest_goes_and_who_calls_nothing_does_not_stay(
    monkeypatch: pytest.MonkeyPatch, fleet: Fleet, door: Door, listens: Callable[..., SimulatedEngine]
) -> None:
    monkeypatch.setattr(limits, "MOST_STRANGERS", 2)
    monkeypatch.setattr(limits, "JOIN_S", 0.3)
    engine = listens(door)
    bare = [bare_gateway(engine) for _ in range(3)]
    assert all(stranger.hear() is None for stranger in bare), "none has shaken hands"
    gateway = fleet.gateway(engine.address)
    assert gateway.join().hear() == HELLO
    for each in (*bare, gateway):
        each.close()


def bare_connection(engine: SimulatedEngine) -> socket.socket:
    """Whatever it would have to begin with."""
    return socket.create_connection(("127.0.0.1", int(engine.address.rpartition(":")[2])))


def bare_gateway(engine: SimulatedEngine) -> Gateway:
    return Gateway(bare_connection(engine))


# -- certificates ----------------------------------------------------------------------------------


encrypted = pytest.mark.parametrize("door", ["tls", "grpc"], indirect=True)


@encrypted
def test_what_goes_through_an_encrypted_connection_is_the_same(
    engine: SimulatedEngine, connect: Connect
) -> None:
    gateway = with_streams(engine, connect(), 1)
    many = output(api.News(1, tokens=[100_000] * 2_000_000))
    engine.listener.emit(many)
    assert gateway.hear() == many


@encrypted
def test_who_is_not_encrypted_hears_nothing(engine: SimulatedEngine) -> None:
    stranger = bare_gateway(engine).join()
    assert stranger.hear() is None
    stranger.close()


@pytest.mark.parametrize("door", ["tls"], indirect=True)
def test_who_does_not_shake_hands_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine
) -> None:
    monkeypatch.setattr(limits, "JOIN_S", 0.05)
    stranger = bare_gateway(engine)
    assert stranger.hear() is None
    stranger.close()


@pytest.mark.parametrize("door", ["tls"], indirect=True)
@pytest.mark.parametrize(
    ("by", "why"), [("", "did not return a certificate"), ("others", "certificate verify failed")]
)
def test_a_certificate_that_is_not_there_or_not_ours_is_refused_in_a_sentence(
    engine: SimulatedEngine,
    fleet: Fleet,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    by: str,
    why: str,
) -> None:
    """Behind the handshake that a gateway sees: it hears so when it reads."""
    own = map(str, Authority(tmp_path / by).signed("gateway")) if by else ()
    context = Certificates(str(fleet.authority.cert), *own).of_a_gateway()
    with context.wrap_socket(bare_connection(engine), server_hostname="localhost") as connection:
        assert Gateway(connection).join().hear() is None
    engine.leave()  # it has said all that it says
    assert why in caplog.text


def test_a_place_that_is_taken_meanwhile_is_told(fleet: Fleet, tmp_path: Path) -> None:
    door = fleet.door("grpc", tmp_path)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ours = int(door.address.rpartition(":")[2])
        other.bind(("127.0.0.1", ours))
        other.listen()
        with pytest.raises(DoorError, match="gRPC cannot listen there"):
            SimulatedEngine(door)
