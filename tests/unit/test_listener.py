"""The listener of an engine on a socket, with an engine that computes nothing and gateways that say whatever
they like: who may join, and what becomes of the streams of one that goes."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue

import msgspec
import pytest

from engine import api, listener
from engine.listener import Listener
from tests.fakes.certificates import self_signed
from tests.fakes.engine_links import HELLO

PATIENCE_S = 10.0
TOKEN = "sesame"
NO_MESSAGE = "what was sent is no message of a gateway"
OTHER = "this engine computes for another gateway"
WRONG = "its token is not this engine's"


class SimulatedEngine:
    """It hears commands, and has the news that a test says."""

    def __init__(
        self, listening: socket.socket, token: str = TOKEN, tls: ssl.SSLContext | None = None
    ) -> None:
        self.commands: SimpleQueue[list[api.AnyCommand]] = SimpleQueue()
        self.listening = listening
        self.left = False
        listening.listen()
        self.listener = Listener(listening, token, HELLO, self.commands.put, tls)

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
    """One connection to it."""

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


def output(*news: api.News) -> api.StepOutput:
    return api.StepOutput(1, list(news), api.Stats())


def submit(stream: int) -> api.Submit:
    return api.Submit(stream, [1, 2, 3], api.Sampling(), 10)


@pytest.fixture(params=["tcp", "unix"])
def listening(request: pytest.FixtureRequest, tmp_path: Path) -> socket.socket:
    if request.param == "tcp":
        return loopback()
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(tmp_path / "engine"))
    return bound


def loopback() -> socket.socket:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound


@pytest.fixture
def listens() -> Iterator[Callable[..., SimulatedEngine]]:
    """Engines that are told to end when the test is over."""
    made = list[SimulatedEngine]()

    def listen(*options: object, **named: object) -> SimulatedEngine:
        made.append(SimulatedEngine(*options, **named))  # type: ignore[arg-type]
        return made[-1]

    yield listen
    for engine in made:
        engine.leave()


@pytest.fixture
def engine(listening: socket.socket, listens: Callable[..., SimulatedEngine]) -> SimulatedEngine:
    return listens(listening)


@pytest.fixture
def connect(engine: SimulatedEngine) -> Iterator[Callable[[], Gateway]]:
    made = list[Gateway]()

    def connected() -> Gateway:
        connection = socket.socket(engine.listening.family)
        connection.connect(engine.listening.getsockname())
        made.append(Gateway(connection))
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


@pytest.mark.parametrize("token", ["", "Sesame", "sesame ", "sesamé", "s" * 4000])
def test_a_wrong_token_is_refused_in_a_sentence(
    engine: SimulatedEngine, connect: Connect, token: str
) -> None:
    gateway = connect().join(token)
    assert gateway.hear() == api.Failed(WRONG)
    assert gateway.hear() is None
    assert connect().join().hear() == HELLO


def test_an_engine_without_a_token_takes_whoever_connects(
    listens: Callable[..., SimulatedEngine], tmp_path: Path
) -> None:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(tmp_path / "open"))
    listens(bound, "")
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(tmp_path / "open"))
        assert Gateway(connection).join("whatever").hear() == HELLO


def test_a_connection_has_one_token_to_try(engine: SimulatedEngine, connect: Connect) -> None:
    gateway = connect()
    gateway.send(api.Join("a guess"), api.Join("another"), api.Join(TOKEN))
    assert gateway.hear() == api.Failed(WRONG)
    assert gateway.hear() is None


@pytest.mark.parametrize(
    "said",
    [
        (listener.LARGEST_JOIN + 1).to_bytes(4, "big"),
        b"\xff\xff\xff\xff",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # of TLS
        api.framed(b""),
        api.framed(b"\xc1"),
        api.encoded(api.Leaving()),
        api.encoded([submit(1)]),
        api.framed(msgspec.msgpack.encode(["Join", 7])),
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


def test_who_says_nothing_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Connect
) -> None:
    monkeypatch.setattr(listener, "JOIN_S", 0.05)
    gateway = connect()
    gateway.send_bytes(b"\0\0\0")  # the beginning of something
    assert gateway.hear() == api.Failed("nothing was said for 0.05 s")
    assert gateway.hear() is None


def test_who_has_joined_may_be_silent(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Connect
) -> None:
    monkeypatch.setattr(listener, "JOIN_S", 0.05)
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
@pytest.mark.parametrize("listening", ["tcp"], indirect=True)
def test_a_gateway_whose_machine_takes_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Connect
) -> None:
    monkeypatch.setattr(listener, "UNTAKEN_S", 0.5)
    with_streams(engine, connect(), 1)
    thread = emitting(engine)()
    thread.join(PATIENCE_S)
    assert not thread.is_alive()
    assert engine.next_commands() == [api.Cancel(1)]


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


def test_an_engine_with_no_gateway_ends_at_once(engine: SimulatedEngine, connect: Connect) -> None:
    silent = connect()
    assert connect().join("wrong").hear() == api.Failed(WRONG)  # so the one before is known
    engine.leave()
    assert silent.hear() is None


# -- TLS -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return self_signed(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def encrypted(certificate: tuple[Path, Path], listens: Callable[..., SimulatedEngine]) -> SimulatedEngine:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    return listens(loopback(), tls=context)


def test_what_goes_through_an_encrypted_connection_is_the_same(
    encrypted: SimulatedEngine, certificate: tuple[Path, Path]
) -> None:
    context = ssl.create_default_context(cafile=certificate[0])
    plain = socket.create_connection(encrypted.listening.getsockname())
    with context.wrap_socket(plain, server_hostname="localhost") as connection:
        gateway = Gateway(connection).join()
        assert gateway.hear() == HELLO
        gateway.send([submit(1)])
        assert encrypted.next_commands() == [submit(1)]
        many = output(api.News(1, tokens=[100_000] * 50_000))
        encrypted.listener.emit(many)
        assert gateway.hear() == many


def test_who_is_not_encrypted_hears_nothing(encrypted: SimulatedEngine) -> None:
    with socket.create_connection(encrypted.listening.getsockname()) as connection:
        assert Gateway(connection).join().hear() is None


def test_who_does_not_shake_hands_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch,
    certificate: tuple[Path, Path],
    listens: Callable[..., SimulatedEngine],
) -> None:
    monkeypatch.setattr(listener, "JOIN_S", 0.05)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*certificate)
    engine = listens(loopback(), tls=context)
    with socket.create_connection(engine.listening.getsockname()) as connection:
        assert Gateway(connection).hear() is None
