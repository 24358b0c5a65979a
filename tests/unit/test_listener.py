"""The listener of an engine, by each of its doors, with an engine that computes nothing and gateways that say
whatever they like: who may join, what each hears, and what becomes of the streams of one that goes."""

from __future__ import annotations

import asyncio
import errno
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import msgspec
import pytest
from msgspec.structs import replace

from engine import api, deposits
from engine.grpc_frames import METHOD, SERVICE, showing, unwrapped, wrapped
from engine.listening import limits, listener
from engine.listening.grpc_door import GrpcCall, GrpcDoor
from engine.listening.kept_streams import STREAM_BYTES
from engine.listening.listener import Door, DoorError, Listener
from engine.listening.socket_door import SocketDoor
from realtime.certificates import Certificates
from tests.fakes.certificates import Authority
from tests.fakes.cutting_proxy import CuttingProxy
from tests.fakes.engine_links import HELLO

PATIENCE_S = 10.0
TOKEN = "sesame"
NO_MESSAGE = "what was sent is no message of a gateway"
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


def welcomed(gateway: Gateway) -> bool:
    hello = gateway.hear()
    return isinstance(hello, api.Hello) and len(hello.keeper) == 8 and replace(hello, keeper=b"") == HELLO


def joined(connect: Callable[[], Gateway], count: int) -> list[Gateway]:
    """So many, one behind the other."""
    gateways = [connect().join() for _ in range(count)]
    for gateway in gateways:
        assert welcomed(gateway)
    return gateways


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


def with_streams(engine: SimulatedEngine, gateway: Gateway, *streams: int) -> list[int]:
    """It joins, and begins these; by which numbers the engine knows them."""
    assert welcomed(gateway.join())
    gateway.send([submit(stream) for stream in streams])
    begun = engine.next_commands()
    numbers = [command.stream for command in begun if isinstance(command, api.Submit)]
    assert begun == [submit(number) for number in numbers]
    assert len(set(numbers)) == len(streams)
    return numbers


class UsedUp(socket.socket):
    """Of a process that has no descriptor left for who connects, for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = SimpleQueue[None]()
        self.left = False

    def accept(self) -> tuple[socket.socket, Any]:
        if not self.left:
            self.asked.put(None)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return super().accept()


def test_that_nobody_can_be_taken_in_now_is_a_line_in_the_log_and_not_one_for_each_who_waits(
    listens: Callable[..., SimulatedEngine], fleet: Fleet, caplog: pytest.LogCaptureFixture
) -> None:
    bound = UsedUp()
    bound.bind(("127.0.0.1", 0))
    engine = listens(SocketDoor(bound))
    gateway = fleet.gateway(engine.address)
    bound.asked.get(timeout=PATIENCE_S)
    bound.left = True
    assert welcomed(gateway.join())
    gateway.close()
    assert bound.asked.empty()
    said = "whoever connects now has to wait: Too many open files (see `ulimit -n`)"
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [said]
    assert caplog.records[0].exc_info is None


# -- who may join ----------------------------------------------------------------------------------


def test_whoever_knows_the_token_hears_what_is_served_and_has_commands_done(
    engine: SimulatedEngine, connect: Connect
) -> None:
    gateway = connect().join()
    assert welcomed(gateway)
    gateway.send([submit(7)], [])
    (begun,) = engine.next_commands()
    assert isinstance(begun, api.Submit)
    assert begun == submit(begun.stream)
    assert engine.next_commands() == [], "which asks whether it answers"
    engine.listener.emit(output(api.News(begun.stream, tokens=[1])))
    assert gateway.hear() == output(api.News(7, tokens=[1]))


@pytest.mark.parametrize("token", ["", "Sesame", "sesame!", "Bearer sesame", "s" * 4000])
def test_a_wrong_token_is_refused_in_a_sentence(
    engine: SimulatedEngine, connect: Connect, token: str
) -> None:
    gateway = connect().join(token)
    assert gateway.hear() == api.Failed(WRONG)
    assert gateway.hear() is None
    assert welcomed(connect().join())


def test_whoever_runs_an_engine_is_told_from_where_one_came_that_is_refused(
    engine: SimulatedEngine, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    assert connect().join("another").hear() == api.Failed(WRONG)
    whence = "" if engine.address.startswith("unix:") else r" from 127.0.0.1:\d+"
    assert re.search(f"a connection{whence} is refused: {WRONG}", caplog.text)


def test_an_engine_without_a_token_takes_whoever_connects(
    listens: Callable[..., SimulatedEngine], door: Door, fleet: Fleet
) -> None:
    gateway = fleet.gateway(listens(door, "").address)
    assert welcomed(gateway.join("whatever"))
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
        api.framed(b"\x93\xa4Join\xa1s" + 3000 * b"\x91" + b"\xc0"),  # nested too deeply
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
def test_of_many_that_are_refused_the_log_says_little(
    engine: SimulatedEngine,
    connect: Connect,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> None:
        stranger = connect()
        stranger.send_bytes(b"GET / HTTP/1.1\r\n\r\n")
        assert stranger.hear() == api.Failed(NO_MESSAGE)

    monkeypatch.setattr(listener, "SAID_EVERY_S", float("inf"))
    for _ in range(20):
        refused()
    assert caplog.text.count(" is refused: ") == 1
    engine.listener._silent_until_s = 0.0
    refused()
    assert "and 19 others were since this was last said" in caplog.text


@only_sockets
def test_who_says_nothing_is_hung_up_on(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Connect
) -> None:
    monkeypatch.setattr(limits, "JOIN_S", 0.5)
    gateway = connect()
    gateway.send_bytes(b"\0\0\0")  # the beginning of something
    assert gateway.hear() == api.Failed("nothing was said for 0.5 s")
    assert gateway.hear() is None


@only_sockets
def test_who_has_joined_may_be_silent(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Connect
) -> None:
    monkeypatch.setattr(limits, "JOIN_S", 0.5)
    gateway = connect().join()
    assert welcomed(gateway)
    silent = connect()
    assert silent.hear() == api.Failed("nothing was said for 0.5 s"), "who came later"
    gateway.send([api.TellBlocks()])
    assert engine.next_commands() == [api.TellBlocks()]


def test_a_gateway_that_sends_no_commands_is_refused_and_its_streams_end(
    engine: SimulatedEngine, connect: Connect
) -> None:
    gateway = connect()
    (number,) = with_streams(engine, gateway, 1)
    gateway.send(["no command"], [submit(2)])
    assert gateway.hear() == api.Failed(NO_MESSAGE)
    assert engine.next_commands() == [api.Cancel(number)]
    assert engine.commands.empty()


@only_sockets
def test_commands_that_cannot_be_taken_end_their_gateway_with_all_that_it_began(
    engine: SimulatedEngine, connect: Connect
) -> None:
    """A prompt of which no journal can be kept: its tokens are none of 32 bits."""
    gateway = connect()
    (number,) = with_streams(engine, gateway, 1)
    gateway.send([replace(submit(2), tokens=[2**31], keep=api.Keep(b"key", b"record"))])
    assert gateway.hear() is None
    assert engine.next_commands() == [api.Cancel(number)]


@only_sockets
def test_what_came_before_a_command_that_cannot_be_taken_has_been_done(
    engine: SimulatedEngine, connect: Connect
) -> None:
    """Or a stream would wait for another gateway of which no engine has heard."""
    gateway = connect().join()
    assert welcomed(gateway)
    gateway.send([kept(1, grace_s=0.0), replace(kept(2), tokens=[2**31])])
    (submitted,) = engine.next_commands()
    assert isinstance(submitted, api.Submit)
    assert engine.next_commands() == [api.Cancel(submitted.stream)]


def test_a_gateway_that_gives_two_streams_one_number_is_refused_and_all_of_them_end(
    engine: SimulatedEngine, connect: Connect
) -> None:
    gateway = connect()
    (number,) = with_streams(engine, gateway, 1)
    gateway.send([submit(1)])
    assert gateway.hear() == api.Failed("two of its streams have the number 1")
    assert engine.next_commands() == [api.Cancel(number)]
    assert engine.commands.empty()


@pytest.mark.parametrize("ended", [False, True])
def test_a_gateway_that_adopts_by_the_number_of_another_of_its_streams_is_refused(
    engine: SimulatedEngine, connect: Connect, ended: bool
) -> None:
    first, second = connect(), connect()
    (number,) = with_streams(engine, second, 9)
    assert welcomed(first.join())
    first.send([kept(3)])
    assert first.hear() == api.Kept(3)
    (submitted,) = engine.next_commands()
    assert isinstance(submitted, api.Submit)
    if ended:
        engine.end(submitted.stream)
        assert isinstance(second.hear(), api.StepOutput)
    second.send([api.Adopt(9, b"key"), api.Pause(9)])
    assert second.hear() == api.Failed("two of its streams have the number 9")
    assert engine.next_commands() == [api.Pause(number)], "which is its own still"
    assert engine.next_commands() == [api.Cancel(number)]
    assert second.hear() is None
    first.send([api.Collect(1, b"name")])
    while isinstance(heard := first.hear(), api.StepOutput):
        pass
    assert heard == api.Collected(1), "nothing has moved"


# -- several ---------------------------------------------------------------------------------------


def test_gateways_number_their_streams_as_they_like_and_hear_of_their_own(
    engine: SimulatedEngine, connect: Connect
) -> None:
    first, second = connect(), connect()
    ours, theirs = with_streams(engine, first, 1, 2), with_streams(engine, second, 2, 3)
    assert not {*ours} & {*theirs}
    news = [api.News(number, tokens=[number]) for number in (*ours, *theirs)]
    engine.listener.emit(output(*news))
    assert first.hear() == output(api.News(1, tokens=[ours[0]]), api.News(2, tokens=[ours[1]]))
    assert second.hear() == output(api.News(2, tokens=[theirs[0]]), api.News(3, tokens=[theirs[1]]))
    engine.listener.emit(output(api.News(theirs[1], tokens=[7])))
    assert first.hear() == output(), "a step's figures are everybody's"
    assert second.hear() == output(api.News(3, tokens=[7]))


def test_nobody_steers_the_streams_of_another(engine: SimulatedEngine, connect: Connect) -> None:
    first, second = connect(), connect()
    (number,) = with_streams(engine, first, 1)
    assert welcomed(second.join())
    second.send([api.Cancel(1), api.Cancel(number), api.TellBlocks()])
    assert engine.next_commands() == [api.TellBlocks()]
    first.send([api.Grant(1, 20), api.Pause(1)])
    assert engine.next_commands() == [api.Grant(number, 20), api.Pause(number)]


def test_what_is_said_of_a_stream_that_has_ended_is_not_passed_on(
    engine: SimulatedEngine, connect: Connect
) -> None:
    gateway = connect()
    (number,) = with_streams(engine, gateway, 1)
    engine.end(number)
    gateway.send([api.Grant(1, 20)])
    gateway.send([submit(1), api.Grant(1, 20)])
    again, granted = engine.next_commands()
    assert isinstance(again, api.Submit)
    assert granted == api.Grant(again.stream, 20)
    assert again.stream != number


def test_when_a_gateway_goes_its_streams_are_cancelled_and_nobody_else_feels_it(
    engine: SimulatedEngine, connect: Connect
) -> None:
    first, second = connect(), connect()
    one, ended, three = with_streams(engine, first, 1, 2, 3)
    (other,) = with_streams(engine, second, 1)
    engine.end(ended)
    assert second.hear() == output()
    first.close()
    assert engine.next_commands() == [api.Cancel(one), api.Cancel(three)]
    engine.listener.emit(output(api.News(one, tokens=[5]), api.News(other, tokens=[6])))
    assert second.hear() == output(api.News(1, tokens=[6]))


def test_one_that_comes_back_hears_nothing_of_what_it_left(engine: SimulatedEngine, connect: Connect) -> None:
    first = connect()
    (before,) = with_streams(engine, first, 1)
    first.close()
    assert engine.next_commands() == [api.Cancel(before)]
    second = connect()
    (number,) = with_streams(engine, second, 1)
    engine.end(before)
    engine.listener.emit(output(api.News(number, tokens=[1])))
    assert second.hear() == output()
    assert second.hear() == output(api.News(1, tokens=[1]))


def test_a_finish_that_may_be_taken_back_leaves_the_stream(engine: SimulatedEngine, connect: Connect) -> None:
    gateway = connect()
    (number,) = with_streams(engine, gateway, 1)
    engine.listener.emit(output(api.News(number, finish=api.Finish("eos", held=True))))
    gateway.close()
    assert engine.next_commands() == [api.Cancel(number)]


# -- a gateway that does not read ------------------------------------------------------------------


def many_news(number: int) -> api.News:
    """A quarter of a MiB."""
    return api.News(number, tokens=[100_000] * 50_000)


def test_nobody_waits_for_a_gateway_that_does_not_read(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Connect
) -> None:
    monkeypatch.setattr(limits, "MOST_UNSENT", 4 << 20)
    unread, reading = connect(), connect()
    (stalled,) = with_streams(engine, unread, 1)
    (number,) = with_streams(engine, reading, 1)
    for step in range(200):
        engine.listener.emit(output(many_news(stalled), api.News(number, tokens=[step])))
        assert reading.hear() == output(api.News(1, tokens=[step]))
    assert engine.next_commands() == [api.Cancel(stalled)], "what it has not read it can ask for again"


def test_nobody_waits_for_a_gateway_that_asks_and_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    engine: SimulatedEngine,
    connect: Connect,
) -> None:
    """Where the engine has nothing to tell."""
    monkeypatch.setattr(limits, "MOST_UNSENT", 4 << 20)
    unread, telling = connect(), connect()
    (stalled,) = with_streams(engine, unread, 1)
    assert welcomed(telling.join())
    unread.send([api.Announce(b""), api.Collect(1, b"name")])
    assert unread.hear() == api.Collected(1)
    telling.send([api.Announce(b"")])
    assert telling.hear() == api.Announced(0, b"")
    telling.send([api.Announce(bytes(1 << 20)) for _ in range(40)])
    assert engine.next_commands() == [api.Cancel(stalled)]
    assert telling.hear() == api.Announced(0, None)
    assert caplog.text.count("is hung up on") == 1


def test_who_reads_late_has_all_that_was_said(engine: SimulatedEngine, connect: Connect) -> None:
    gateway = connect()
    (number,) = with_streams(engine, gateway, 1)
    for _ in range(40):
        engine.listener.emit(output(many_news(number)))
    for _ in range(40):
        assert gateway.hear() == output(many_news(1))


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="elsewhere it takes the kernel minutes")
@pytest.mark.parametrize("door", ["tcp", "tls"], indirect=True)
def test_a_gateway_whose_machine_takes_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Connect
) -> None:
    monkeypatch.setattr(limits, "UNTAKEN_S", 0.5)
    (number,) = with_streams(engine, connect(), 1)
    for _ in range(80):
        engine.listener.emit(output(many_news(number)))
    assert engine.next_commands() == [api.Cancel(number)]


@pytest.mark.parametrize("door", ["grpc"], indirect=True)
async def test_a_gateway_of_which_grpc_hears_nothing_is_given_up(
    monkeypatch: pytest.MonkeyPatch, fleet: Fleet, door: Door, listens: Callable[..., SimulatedEngine]
) -> None:
    monkeypatch.setattr(limits, "IDLE_S", 1)
    monkeypatch.setattr(limits, "UNTAKEN_S", 2)
    engine = listens(door)
    async with CuttingProxy(int(engine.address.rpartition(":")[2])) as proxy:
        gateway = fleet.gateway(f"grpc:tls:{proxy.url.removeprefix('http://')}")
        (number,) = await asyncio.to_thread(with_streams, engine, gateway, 1)
        proxy.cut("silence")
        assert await asyncio.to_thread(engine.next_commands) == [api.Cancel(number)]
        gateway.close()


# -- its end ---------------------------------------------------------------------------------------


def test_an_engine_that_ends_says_so_behind_what_it_has_computed(
    engine: SimulatedEngine, connect: Connect
) -> None:
    gateways = [connect(), connect()]
    numbers = [*with_streams(engine, gateways[0], 1), *with_streams(engine, gateways[1], 1)]
    engine.listener.emit(output(*(api.News(number, tokens=[1]) for number in numbers)))
    engine.leave()
    for gateway in gateways:
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
    known = connect()
    with_streams(engine, known, 1)
    strangers = [connect() for _ in range(3)]
    why = "2 have connected since, and it has said nothing yet"
    assert strangers[0].hear() == api.Failed(why)
    assert strangers[0].hear() is None
    assert welcomed(strangers[2].join()), "there is room for those that say something"
    assert welcomed(strangers[1].join())
    known.send([api.TellBlocks()])
    assert engine.next_commands() == [api.TellBlocks()], "who has joined is none"


@pytest.mark.parametrize("door", ["tls"], indirect=True)
def test_who_does_not_shake_hands_is_a_stranger(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Connect
) -> None:
    monkeypatch.setattr(limits, "MOST_STRANGERS", 2)
    bare = [bare_gateway(engine) for _ in range(3)]
    assert bare[0].hear() is None
    assert welcomed(connect().join())
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
    assert welcomed(gateway.join())
    for each in (*bare, gateway):
        each.close()


def bare_connection(engine: SimulatedEngine) -> socket.socket:
    """Whatever it would have to begin with."""
    return socket.create_connection(("127.0.0.1", int(engine.address.rpartition(":")[2])))


def bare_gateway(engine: SimulatedEngine) -> Gateway:
    return Gateway(bare_connection(engine))


# -- certificates ----------------------------------------------------------------------------------


async def test_who_is_refused_by_grpc_and_does_not_take_that_does_not_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(limits, "GOODBYE_S", 0.0)

    class Context:
        """Of a call whose window is 0."""

        async def send_initial_metadata(self, metadata: tuple[()]) -> None:
            pass

        async def write(self, message: bytes) -> None:
            await asyncio.Future()

        def invocation_metadata(self) -> list[tuple[str, str]]:
            return showing("guess")

    class Listening:
        token = "sesame"

        def __init__(self) -> None:
            self.gone: list[object] = []

        def note_refusal(self, why: str) -> None:
            pass

        def dismiss(self, gateway: object) -> None:
            self.gone.append(gateway)

    listener = Listening()
    await asyncio.wait_for(GrpcCall(listener, Context()).run(), 10)  # type: ignore[arg-type]
    assert len(listener.gone) == 1


encrypted = pytest.mark.parametrize("door", ["tls", "grpc"], indirect=True)


@encrypted
def test_what_goes_through_an_encrypted_connection_is_the_same(
    engine: SimulatedEngine, connect: Connect
) -> None:
    gateway = connect()
    (number,) = with_streams(engine, gateway, 1)
    many = [100_000] * 2_000_000
    engine.listener.emit(output(api.News(number, tokens=many)))
    assert gateway.hear() == output(api.News(1, tokens=many))


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
def test_who_hangs_up_on_the_handshake_is_said_to_have(
    engine: SimulatedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with bare_connection(engine) as stranger:
        stranger.sendall(b"\x16\x03\x01")  # the beginning of one
        stranger.shutdown(socket.SHUT_WR)
        assert Gateway(stranger).hear() is None
    engine.leave()  # it has said all that it says
    assert re.search(r"a connection from 127.0.0.1:\d+ is refused: it hung up", caplog.text)


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


@pytest.mark.parametrize(
    ("kind", "why"), [("grpc", "gRPC cannot listen there"), ("tcp", "Address already in use")]
)
def test_a_place_that_is_taken_meanwhile_is_told(fleet: Fleet, tmp_path: Path, kind: str, why: str) -> None:
    door = fleet.door(kind, tmp_path)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        ours = int(door.address.rpartition(":")[2])
        other.bind(("127.0.0.1", ours))
        other.listen()
        with pytest.raises(DoorError, match=why):
            SimulatedEngine(door)


def test_a_path_that_another_engine_has_taken_meanwhile_is_told(fleet: Fleet, tmp_path: Path) -> None:
    """Both loaded their models at the same time."""
    door = fleet.door("unix", tmp_path)
    (tmp_path / "engine").unlink()
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "engine"))
        with pytest.raises(DoorError, match="Address already in use"):
            SimulatedEngine(door)


class SpoiltDoor:
    """Whatever else may come of opening one."""

    address = "nowhere"

    async def open(self, listener: Listener) -> None:
        raise ZeroDivisionError

    async def close(self) -> None:
        raise AssertionError


def test_a_door_that_does_not_open_is_not_waited_for_whatever_the_reason() -> None:
    with pytest.raises(ZeroDivisionError):
        SimulatedEngine(SpoiltDoor())


# -- streams that outlive their gateway ------------------------------------------------------------


def kept(stream: int, grace_s: float = 60.0) -> api.Submit:
    return replace(submit(stream), keep=api.Keep(b"key", b"record", grace_s))


def test_a_stream_waits_for_another_gateway_which_has_its_journal_and_what_follows(
    engine: SimulatedEngine, connect: Callable[[], Gateway]
) -> None:
    first, second = joined(connect, 2)
    first.send([kept(3), api.Note(3, 0, b"told"), api.Pause(3)])
    number = engine.next_commands()[0].stream  # type: ignore[union-attr]
    engine.listener.emit(output(api.News(number, tokens=[5])))
    first.close()
    second.send([api.Adopt(9, b"key")])
    assert isinstance(second.hear(), api.StepOutput)
    adopted = second.hear()
    assert isinstance(adopted, api.Adopted)
    assert adopted.stream == 9
    assert adopted.journal is not None
    assert (adopted.journal.record, adopted.journal.adoptions, adopted.journal.commands) == (b"record", 1, 1)
    assert [note.told for note in adopted.journal.history.notes] == [b"told"]
    second.send([api.Resume(9)])
    assert engine.next_commands() == [api.Resume(number)]
    engine.listener.emit(output(api.News(number, index=1, tokens=[6])))
    while not isinstance(news := second.hear(), api.StepOutput) or not news.news:
        pass
    assert [(one.stream, one.tokens) for one in news.news] == [(9, [6])]


def test_a_gateway_that_lives_hears_that_its_stream_was_adopted(
    engine: SimulatedEngine, connect: Callable[[], Gateway]
) -> None:
    first, second = joined(connect, 2)
    first.send([kept(3)])
    engine.next_commands()
    second.send([api.Adopt(9, b"key"), api.Adopt(8, b"another")])
    assert [first.hear(), first.hear()] == [api.Kept(3), api.Moved(3)]
    assert isinstance(second.hear(), api.Adopted)
    assert second.hear() == api.Adopted(8)


def test_a_stream_that_was_begun_by_another_start_stays_whose_it_is(
    engine: SimulatedEngine, connect: Callable[[], Gateway]
) -> None:
    first, second = joined(connect, 2)
    first.send([replace(submit(3), keep=api.Keep(b"key", b"record", start=b"one"))])
    number = engine.next_commands()[0].stream  # type: ignore[union-attr]
    second.send([api.Adopt(9, b"key", start=b"another")])
    assert second.hear() == api.Adopted(9, another=True)
    first.send([api.Pause(3)])
    assert engine.next_commands() == [api.Pause(number)]
    second.send([api.Adopt(9, b"key", start=b"one")])
    assert [first.hear(), first.hear()] == [api.Kept(3), api.Moved(3)]


def test_so_it_does_where_the_other_start_has_waited_until_it_was_begun(
    engine: SimulatedEngine, connect: Callable[[], Gateway]
) -> None:
    first, second = joined(connect, 2)
    first.send([api.Adopt(1, b"key", claims=True, start=b"one")])
    assert first.hear() == api.Adopted(1)
    second.send([api.Adopt(2, b"key", claims=True, start=b"another")])
    assert second.hear() == api.Claimed(2)
    keep = api.Keep(b"key", b"record", start=b"one")
    first.send([replace(submit(1), keep=keep), api.Settle(1, b"key")])
    assert second.hear() == api.Adopted(2)
    second.send([api.Adopt(2, b"key", claims=True, start=b"another")])
    assert second.hear() == api.Adopted(2, another=True)
    number = engine.next_commands()[0].stream  # type: ignore[union-attr]
    first.send([api.Pause(1)])
    assert engine.next_commands() == [api.Pause(number)], "it is the first's still"


def test_whoever_asks_twice_has_it_still(engine: SimulatedEngine, connect: Callable[[], Gateway]) -> None:
    """As where a claim of its own is settled while it asks anew."""
    first, second = joined(connect, 2)
    first.send([kept(3)])
    number = engine.next_commands()[0].stream  # type: ignore[union-attr]
    second.send([api.Adopt(9, b"key"), api.Adopt(9, b"key")])
    assert [type(second.hear()) for _ in range(2)] == [api.Adopted] * 2
    second.send([api.Pause(9)])
    assert engine.next_commands() == [api.Pause(number)]


def test_who_was_away_while_its_stream_went_elsewhere_does_not_take_it_back(
    engine: SimulatedEngine, connect: Callable[[], Gateway]
) -> None:
    """It would go on with what it knew, and what the stream was told elsewhere would be lost."""
    first, second = joined(connect, 2)
    first.send([kept(3)])
    number = engine.next_commands()[0].stream  # type: ignore[union-attr]
    first.close()
    second.send([api.Adopt(9, b"key"), api.Adopt(9, b"key"), api.Note(9, 0, b"told")])
    (back,) = joined(connect, 1)
    back.send([replace(submit(3), keep=api.Keep(b"key", b"record", moves=1)), api.Pause(3)])
    assert back.hear() == api.Moved(3)
    second.send([replace(submit(8), keep=api.Keep(b"key", b"of another start")), api.Pause(9)])
    begun, paused = engine.next_commands()
    assert isinstance(begun, api.Submit), "a name may be taken again"
    assert paused == api.Pause(number)


def test_a_gateway_hears_that_another_has_begun_a_stream_of_the_same_name(
    engine: SimulatedEngine, connect: Callable[[], Gateway]
) -> None:
    """Where both began it, one of them can be adopted, and the other is to leave its own to nobody."""
    first, second = joined(connect, 2)
    first.send([kept(3)])
    assert first.hear() == api.Kept(3)
    second.send([replace(submit(3), keep=api.Keep(b"key", b"of another start"))])
    assert second.hear() == api.Kept(3)
    assert first.hear() == api.Kept(3, whole=False)


@pytest.mark.parametrize("ended", [False, True])
def test_one_in_whose_place_another_was_begun_is_cancelled_and_found_no_more(
    engine: SimulatedEngine, connect: Callable[[], Gateway], ended: bool
) -> None:
    """It was adopted once more than the other, and stood for it to whoever came next."""
    first, second = joined(connect, 2)
    first.send([kept(3)])
    number = engine.next_commands()[0].stream  # type: ignore[union-attr]
    assert first.hear() == api.Kept(3)
    if ended:
        engine.end(number)
        assert isinstance(second.hear(), api.StepOutput)
    second.send([api.Adopt(9, b"key"), api.Note(9, 0, b""), api.Cancel(9), api.Adopt(8, b"key")])
    assert isinstance(second.hear(), api.Adopted)
    assert second.hear() == api.Adopted(8)
    if not ended:
        assert engine.next_commands() == [api.Cancel(number)]


def test_nobody_comes_for_it(engine: SimulatedEngine, connect: Callable[[], Gateway]) -> None:
    gateway = connect().join()
    assert welcomed(gateway)
    gateway.send([kept(3, grace_s=0.0)])
    number = engine.next_commands()[0].stream  # type: ignore[union-attr]
    gateway.close()
    assert engine.next_commands() == [api.Cancel(number)]


def test_for_one_that_is_left_again_and_again_the_engine_waits_once(
    engine: SimulatedEngine, connect: Callable[[], Gateway]
) -> None:
    """Whose client hangs up as it is found: each time was remembered for as long as it may wait, an hour."""
    (gateway,) = joined(connect, 1)
    gateway.send([kept(3, grace_s=3600.0), api.Disown(3)])
    assert gateway.hear() == api.Kept(3)
    gateway.send([api.Adopt(9, b"key"), api.Disown(9)] * 1000)
    for _ in range(1000):
        assert isinstance(gateway.hear(), api.Adopted)
    waiting = [timer for timer in timers_of(engine.listener) if not timer.cancelled()]
    assert len(waiting) == 1
    assert len(timers_of(engine.listener)) < 500, "what was cancelled goes, too"


def timers_of(listener: Listener) -> list[asyncio.TimerHandle]:
    """As its event loop has them; which has come to the end of what it was doing."""
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), listener._loop).result(PATIENCE_S)
    timers: list[asyncio.TimerHandle] = listener._loop._scheduled  # type: ignore[attr-defined]
    return timers


def test_of_gateways_that_claim_a_name_one_has_it_and_the_next_when_that_is_settled(
    engine: SimulatedEngine, connect: Callable[[], Gateway]
) -> None:
    """Which asks for it then: whoever it waited for may be gone, and read it elsewhere."""
    first, second, third = joined(connect, 3)
    first.send([api.Adopt(1, b"key", claims=True)])
    assert first.hear() == api.Adopted(1)
    second.send(
        [api.Adopt(2, b"key", claims=True), api.Adopt(3, b"key"), api.Adopt(4, b"other", claims=True)]
    )
    assert [second.hear() for _ in range(3)] == [api.Claimed(2), api.Adopted(3), api.Adopted(4)]
    third.send([api.Adopt(5, b"key", claims=True)])
    assert third.hear() == api.Claimed(5)
    first.send([kept(7), api.Settle(1, b"key")])
    assert second.hear() == api.Adopted(2)
    second.close()  # without a word
    assert third.hear() == api.Adopted(5)
    first.send([api.Collect(8, b"name")])
    assert [first.hear(), first.hear()] == [api.Kept(7), api.Collected(8)], "it has it still"
    third.send([api.Adopt(5, b"key", claims=True)])
    adopted = third.hear()
    assert isinstance(adopted, api.Adopted)
    assert adopted.journal is not None
    assert adopted.journal.adoptions == 1
    assert first.hear() == api.Moved(7)


def test_who_settles_nothing_is_waited_for_no_longer_than_that(
    monkeypatch: pytest.MonkeyPatch, engine: SimulatedEngine, connect: Callable[[], Gateway]
) -> None:
    monkeypatch.setattr(api, "CLAIM_S", 0.05)
    first, second = joined(connect, 2)
    first.send([api.Adopt(1, b"key", claims=True)])
    assert first.hear() == api.Adopted(1)
    second.send([api.Adopt(2, b"key", claims=True)])
    assert [second.hear(), second.hear()] == [api.Claimed(2), api.Adopted(2)]


def test_whoever_has_claimed_a_name_twice_and_goes_adopts_nothing(
    engine: SimulatedEngine, connect: Callable[[], Gateway]
) -> None:
    """As for a stream that it has begun, and for the next of that name, before the first was kept."""
    gateway = connect().join()
    assert welcomed(gateway)
    gateway.send([api.Adopt(1, b"key", claims=True), kept(3, grace_s=0.0), api.Adopt(2, b"key", claims=True)])
    assert [gateway.hear() for _ in range(3)] == [api.Adopted(1), api.Kept(3), api.Claimed(2)]
    number = engine.next_commands()[0].stream  # type: ignore[union-attr]
    gateway.close()
    assert engine.next_commands() == [api.Cancel(number)]


def test_a_gateway_hears_which_of_its_streams_can_be_adopted_no_more(
    engine: SimulatedEngine, connect: Callable[[], Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "JOURNALS_BYTES", 800 + 2 * STREAM_BYTES)
    first, second = joined(connect, 2)
    first.send([kept(3)])
    assert first.hear() == api.Kept(3)
    number = engine.next_commands()[0].stream  # type: ignore[union-attr]
    second.send([replace(submit(3), keep=api.Keep(b"other", bytes(500)))])
    assert [second.hear() for _ in range(2)] == [api.Kept(3), api.Kept(3, whole=False)]
    engine.next_commands()
    first.send([api.Note(3, 0, bytes(500))])
    assert first.hear() == api.Kept(3, whole=False)
    first.close()
    assert engine.next_commands() == [api.Cancel(number)]


def test_what_one_gateway_leaves_another_has_once_and_too_many_of_a_tenant_are_not_kept(
    engine: SimulatedEngine, connect: Callable[[], Gateway], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = joined(connect, 2)
    monkeypatch.setattr(deposits, "MOST_OF_A_TENANT", 1)
    first.send([api.Deposit(1, b"name", b"what", 30.0, 5), api.Deposit(2, b"more", b"what", 30.0, 5)])
    assert [first.hear() for _ in range(2)] == [api.Deposited(1, True), api.Deposited(2, False)]
    first.close()
    second.send([api.Collect(7, b"other"), api.Collect(8, b"name"), api.Collect(9, b"name")])
    heard = [second.hear() for _ in range(3)]
    assert heard == [api.Collected(7), api.Collected(8, b"what"), api.Collected(9)]


def test_who_announces_something_hears_of_all_others_that_do(
    engine: SimulatedEngine, connect: Callable[[], Gateway]
) -> None:
    first, second, silent = joined(connect, 3)
    first.send([api.Announce(b"")])
    first.send([api.Collect(1, b"name")])
    assert first.hear() == api.Collected(1), "there is nobody yet"
    second.send([api.Announce(b"")])
    assert second.hear() == api.Announced(0, b"")
    assert first.hear() == api.Announced(1, b"")
    second.send([api.Announce(b"news")])
    assert first.hear() == api.Announced(1, b"news")
    second.close()
    assert first.hear() == api.Announced(1, None)
    silent.send([api.Collect(1, b"name")])
    assert silent.hear() == api.Collected(1), "what concerns it, and nothing else"
    assert engine.commands.empty(), "what is kept here makes the engine no work"


def test_a_stream_that_its_gateway_disowns_waits_for_another(
    engine: SimulatedEngine, connect: Callable[[], Gateway]
) -> None:
    first, second = joined(connect, 2)
    first.send([kept(3), submit(4)])
    own = [command.stream for command in engine.next_commands() if isinstance(command, api.Submit)]
    first.send([api.Disown(3), api.Disown(4)])
    assert engine.next_commands() == [api.Cancel(own[1])], "which nobody can adopt"
    second.send([api.Adopt(9, b"key")])
    assert isinstance(second.hear(), api.Adopted)
    second.send([api.Pause(9)])
    assert engine.next_commands() == [api.Pause(own[0])]
