"""A WebSocket's connection holds no more than what is alive on it, however long it lasts."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from starlette.websockets import WebSocketDisconnect

from midstream import protocol
from midstream.protocol import Params
from realtime.hub.ended_streams import KEPT_S
from realtime.hub.listener import Listener
from realtime.hub.observers import Caller, Observer
from realtime.refusal import Refusal
from realtime.server import let_finish
from realtime.stream.stream import Stream
from realtime.websocket.connection import Connection, ConnectionLimits, serve
from realtime.work_budget import BURST_S
from realtime.work_ledger import PayerWork
from tests.fakes.fake_websocket import FakeWebSocket
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import SIZE, start
from tests.fakes.simulated_server import SimulatedServer
from tests.fakes.work_clock import a_millisecond_a_piece

CALLER = Caller("websocket", tenant="tenant")
LIMITS = ConnectionLimits(
    max_message_bytes=2**20, streams_per_connection=10, auto_credit_window=64, ack_every=16
)


class Client(FakeWebSocket):
    """Says what the test wants, and answers no ping."""

    def __init__(self) -> None:
        super().__init__()
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self.ended: set[str] = set()
        self.tokens: list[list[int]] = []  # of each write, how many each of its events has
        self.closed: int | None = None  # with which code
        self.ping: bytes | None = None  # that came last
        self._frames: asyncio.Queue[str | None] = asyncio.Queue()

    def say(self, frame: protocol.StreamFrame) -> None:
        self._frames.put_nowait(msgspec.json.encode(frame).decode())

    async def close(self, code: int, reason: str) -> None:
        self.closed = code

    def hang_up(self) -> None:
        self._frames.put_nowait(None)

    def write(self, messages: list[bytes], *, text: bool, ping: bytes | None = None) -> None:
        self.ping = ping or self.ping
        events = [msgspec.json.decode(message) for message in messages]
        self.tokens.append([event["count"] for event in events if event["type"] == "token"])
        for event in events:
            if event["type"] == "started":
                self.started.put_nowait(event["request_id"])
            elif event["type"] == "final":
                self.ended.add(event["request_id"])

    async def receive(self) -> dict[str, Any]:
        frame = await self._frames.get()
        if frame is None:
            return {"type": "websocket.disconnect", "code": 1000}
        return {"type": "websocket.receive", "text": frame, "bytes": None}


async def play(server: SimulatedServer, wire: Client, frame: protocol.Start) -> weakref.ref[Stream]:
    """Start a stream and see it end."""
    wire.say(frame)
    assert await wire.started.get() == frame.request_id
    (stream,) = (weakref.ref(stream) for stream in server.hub.streams)
    while frame.request_id not in wire.ended:
        server.tick()
    return stream


@pytest.mark.parametrize("tokens", [1, 15, 16, 40])
async def test_a_stream_that_has_ended_is_soon_held_by_nobody(tokens: int) -> None:
    server, wire = SimulatedServer(SIZE, window=64), Client()
    serving = asyncio.create_task(serve(wire, server.hub, CALLER, PayerWork(), LIMITS, {}, Observer()))  # type: ignore[arg-type]
    params = Params(max_tokens=tokens, ignore_eos=True)
    played = [await play(server, wire, start(f"number {number}", params=params)) for number in range(3)]
    server.clock.advance(KEPT_S + 1)
    last = await play(server, wire, start("last", params=params))
    server.look()
    gc.collect()
    assert [stream() for stream in played] == [None] * 3
    assert last() is not None, "which may be attached to for a while"
    wire.hang_up()
    await serving


class LateClient(Client):
    """Whose messages come as they do by a socket of ours: a text is not read before its turn."""

    given: dict[str, Any]

    async def receive(self) -> dict[str, Any]:
        said = await super().receive()
        if self.gives_utf8 and "text" in said:
            said["utf8"] = said.pop("text").encode()
        self.given = said
        return said


async def test_a_text_waits_for_its_turn_as_it_came_and_is_not_kept_while_it_is_paid_for() -> None:
    """As characters it may take four times as much, and each connection of its payer may have one wait."""
    server, client, work = SimulatedServer(SIZE), LateClient(), PayerWork()
    serving = asyncio.create_task(serve(client, server.hub, CALLER, work, LIMITS, {}, Observer()))  # type: ignore[arg-type]
    async with work._line:
        client.say(start("one", ref="\U0001f600"))
        while not work._line._waiters:  # noqa: ASYNC110 - it waits there
            await asyncio.sleep(0)
        assert client.given.keys() == {"type", "bytes", "utf8"}
    assert await client.started.get() == "one"
    assert client.given.keys() == {"type"}
    client.hang_up()
    await serving


async def test_what_a_connection_leaves_behind_does_not_wait_until_garbage_is_looked_for() -> None:
    """That is minutes later, and streams may hold much."""
    server, wire = SimulatedServer(SIZE, window=64), Client()
    serving = asyncio.create_task(serve(wire, server.hub, CALLER, PayerWork(), LIMITS, {}, Observer()))  # type: ignore[arg-type]
    gc.collect()
    gc.disable()
    try:
        wire.say(start("one", params=Params(ignore_eos=True), on_disconnect="cancel"))
        await wire.started.get()
        server.tick()
        (left,) = (weakref.ref(stream) for stream in server.hub.streams)
        wire.hang_up()
        await serving
        while server.hub.streams:
            server.tick()
        server.clock.advance(KEPT_S + 1)
        other = Client()
        serving = asyncio.create_task(
            serve(other, server.hub, CALLER, PayerWork(), LIMITS, {}, Observer())  # type: ignore[arg-type]
        )
        await play(server, other, start("last", params=Params(max_tokens=1)))
        assert left() is None
        other.hang_up()
        await serving
    finally:
        gc.enable()


async def test_a_connection_that_has_left_does_not_wait_until_garbage_is_looked_for() -> None:
    """A flood of them would be a long look."""
    server, client, open_ = SimulatedServer(SIZE), Client(), dict[str, Connection]()
    gc.collect()
    gc.disable()
    try:
        serving = asyncio.create_task(
            serve(client, server.hub, CALLER, PayerWork(), LIMITS, open_, Observer())  # type: ignore[arg-type]
        )
        await play(server, client, start("one", params=Params(max_tokens=1)))
        (left,) = (weakref.ref(connection) for connection in open_.values())
        client.hang_up()
        await serving
        assert left() is None
    finally:
        gc.enable()


async def test_replies_that_nobody_read_go_with_their_connection_and_none_is_kept_behind_it() -> None:
    """It may be known for minutes yet, until garbage is looked for, and its client has come again: some MiB a
    second."""
    server, client, open_ = SimulatedServer(SIZE), Client(), dict[str, Connection]()
    client.writable = False
    serving = asyncio.create_task(serve(client, server.hub, CALLER, PayerWork(), LIMITS, open_, Observer()))  # type: ignore[arg-type]
    client.say(protocol.Pause(request_id="nobody"))
    while not any(connection._replies for connection in open_.values()):  # noqa: ASYNC110
        await asyncio.sleep(0)
    (connection,) = open_.values()
    client.hang_up()
    await serving
    connection.send_refusal(Refusal("overloaded", "too late"), start("one"))
    assert not connection._replies


async def test_what_many_streams_have_to_say_is_written_in_pieces_and_all_of_it_before_a_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of one stream each, where there is no time for more."""
    monkeypatch.setattr("realtime.websocket.connection.TURN_S", 0.0)
    server, client = SimulatedServer(SIZE), Client()
    connections: dict[str, Connection] = {}
    serving = asyncio.create_task(
        serve(client, server.hub, CALLER, PayerWork(), LIMITS, connections, Observer())  # type: ignore[arg-type]
    )
    for name in "abc":
        client.say(start(name, params=Params(max_tokens=2, ignore_eos=True)))
        await client.started.get()
    client.writable = False
    while server.hub.streams:
        server.tick()
    assert client.ended == set()
    client.writable = True
    client.on_writable()
    assert client.ended == {"a"}
    client.on_writable()
    assert client.ended == {"a"}, "the next has its turn when others had theirs"
    await asyncio.sleep(0)
    assert client.ended == {"a", "b"}
    (connection,) = connections.values()
    await connection.close_for_good()
    assert client.ended == set("abc")
    assert client.closed is not None
    client.hang_up()
    await serving


@pytest.mark.parametrize("goes", [False, True])
@pytest.mark.parametrize("is_written", [False, True])
async def test_a_server_that_ends_waits_until_a_slow_reader_has_what_ended_or_is_gone(
    goes: bool, is_written: bool
) -> None:
    """What is written has yet to leave."""
    server, client = SimulatedServer(SIZE), Client()
    connections: dict[str, Connection] = {}
    endpoints: Any = SimpleNamespace(open=connections)
    serving = asyncio.create_task(
        serve(client, server.hub, CALLER, PayerWork(), LIMITS, connections, Observer())  # type: ignore[arg-type]
    )
    client.say(start("a", params=Params(max_tokens=2, ignore_eos=True)))
    await client.started.get()
    client.writable = is_written
    while server.hub.streams:
        server.tick()
    assert bool(client.ended) == is_written
    client.writable = False
    fleet: Any = None
    nobody = partial(asyncio.sleep, 0)  # asks over HTTP
    ending = asyncio.create_task(
        let_finish(server.hub, fleet, endpoints, grace_s=600, until_answered=nobody, hands_over=False)
    )
    for _ in range(10):
        await asyncio.sleep(0)
    assert client.closed is None
    if goes:
        client.hang_up()
    else:
        client.writable = True
        client.on_writable()
    await asyncio.wait_for(ending, 30)
    assert client.ended == (set() if goes and not is_written else {"a"})
    client.hang_up()
    await serving


async def test_tokens_of_steps_that_came_together_are_events_of_their_own_in_one_write() -> None:
    """Of whoever does not keep up, they are one."""
    server, client = SimulatedServer(SIZE), Client()
    serving = asyncio.create_task(serve(client, server.hub, CALLER, PayerWork(), LIMITS, {}, Observer()))  # type: ignore[arg-type]
    client.say(start("a", params=Params(ignore_eos=True)))
    await client.started.get()
    server.tick()

    def three_steps() -> None:
        client.tokens.clear()
        for _ in range(3):
            server.step()
        server.deliver_up(together=3)

    three_steps()
    assert client.tokens == [[1, 1, 1]]
    client.writable = False
    three_steps()
    assert client.tokens == []
    client.writable = True
    client.on_writable()
    assert client.tokens == [[3]]
    client.hang_up()
    await serving


async def test_what_a_step_brings_to_very_many_streams_of_one_connection_is_written_in_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("realtime.websocket.connection.TAKEN_AT_ONCE", 1)
    monkeypatch.setattr("realtime.websocket.connection.TURN_S", 0.0)
    server, client = SimulatedServer(SIZE), Client()
    serving = asyncio.create_task(serve(client, server.hub, CALLER, PayerWork(), LIMITS, {}, Observer()))  # type: ignore[arg-type]
    for name in "abc":
        client.say(start(name, params=Params(ignore_eos=True)))
        await client.started.get()
    server.tick()
    await asyncio.sleep(0)
    client.tokens.clear()
    server.step()
    server.deliver_up()
    assert client.tokens == [[1, 1]]
    await asyncio.sleep(0)
    assert client.tokens == [[1, 1], [1]]
    client.hang_up()
    await serving


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():  # noqa: ASYNC110 - each turn does more
            await asyncio.sleep(0)


class SlowClient(Client):
    """Takes one write, and then no more for a while."""

    def __init__(self) -> None:
        super().__init__()
        self.written = list[list[bytes]]()

    def write(self, messages: list[bytes], *, text: bool, ping: bytes | None = None) -> None:
        super().write(messages, text=text, ping=ping)
        self.written.append(messages)
        self.writable = False

    def take(self) -> None:
        self.writable = True
        self.on_writable()


async def test_what_is_long_is_taken_from_few_streams_before_it_is_known_whether_the_peer_takes_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What has left a stream is on no account: each of a tenant's connections had MiB of that."""
    monkeypatch.setattr("realtime.websocket.connection.TURN_S", 60.0)
    server, client = SimulatedServer(SIZE), SlowClient()
    serving = asyncio.create_task(serve(client, server.hub, CALLER, PayerWork(), LIMITS, {}, Observer()))  # type: ignore[arg-type]
    await _until(lambda: len(client.written) == 1)
    long = Params(stop=[f"{at:100}" for at in range(16)])
    monkeypatch.setattr("realtime.websocket.connection.WRITTEN_AT_ONCE", len(msgspec.json.encode(long)))
    for name in "abc":
        client.say(start(name, params=long))
    await _until(lambda: len(server.hub.streams) == 3)
    for _ in "ab":
        client.take()
        assert len(client.written[-1]) == 1
        await asyncio.sleep(0)
    client.hang_up()
    await serving


async def test_of_many_replies_no_more_is_written_than_it_is_known_that_the_peer_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And all of them before whatever its streams have to say."""
    monkeypatch.setattr("realtime.websocket.connection.WRITTEN_AT_ONCE", 1_000)
    server, client, open_ = SimulatedServer(SIZE), SlowClient(), dict[str, Connection]()
    serving = asyncio.create_task(serve(client, server.hub, CALLER, PayerWork(), LIMITS, open_, Observer()))  # type: ignore[arg-type]
    await _until(lambda: len(client.written) == 1)
    (connection,) = open_.values()
    client.say(start("one"))
    for number in range(20):
        client.say(protocol.Pause(request_id="x" * 100, ref=f"{number}"))
    await _until(lambda: len(connection._replies) == 20)
    ending = asyncio.create_task(connection.until_all_is_said())
    told = list[protocol.Error | protocol.Started]()
    while len(told) < 21:
        client.take()
        assert not ending.done()
        assert sum(map(len, client.written[-1])) < 2_000
        told += msgspec.json.decode(
            b"[" + b",".join(client.written[-1]) + b"]", type=list[protocol.Error | protocol.Started]
        )
        await asyncio.sleep(0)
    client.take()
    await ending
    *replies, started = told
    assert [reply.ref for reply in replies] == [str(number) for number in range(20)]
    assert isinstance(started, protocol.Started)
    client.hang_up()
    await serving


@pytest.mark.parametrize("is_taken", [False, True])
async def test_what_a_pong_says_of_many_streams_is_heard_of_so_many_in_a_turn_as_long_as_they_are_read_here(
    monkeypatch: pytest.MonkeyPatch, is_taken: bool
) -> None:
    """Of 1,000 streams that takes 30 ms."""
    monkeypatch.setattr("realtime.websocket.connection.READ_A_TURN", 2)
    server, client, heard, work = SimulatedServer(SIZE, window=64), Client(), list[str](), PayerWork()
    acknowledge = server.hub.acknowledge

    def counted(stream: Stream, index: int, seq: int) -> None:
        heard.append(stream.request_id)
        acknowledge(stream, index, seq)

    monkeypatch.setattr(server.hub, "acknowledge", counted)
    serving = asyncio.create_task(serve(client, server.hub, CALLER, work, LIMITS, {}, Observer()))  # type: ignore[arg-type]
    for name in "abc":
        client.say(start(name, params=Params(ignore_eos=True)))
        await client.started.get()
    for _ in range(30):
        server.tick()
    client.on_pong(client.ping)
    assert heard == ["a", "b"]
    if is_taken:
        other = RecordingListener(server, CALLER.tenant)
        other.send(protocol.Attach(request_id="c", after=-1))
    await asyncio.sleep(0)
    assert heard == ["a", "b"] if is_taken else ["a", "b", "c"]
    client.hang_up()
    await serving


async def test_what_frames_make_the_server_do_is_paid_for_in_one_place_by_all_connections_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each frame takes a millisecond, by a clock of the test's own."""
    slept = a_millisecond_a_piece(monkeypatch)
    server, clients, work = SimulatedServer(SIZE), [Client() for _ in range(3)], PayerWork()
    for number in range(300):
        clients[number % 3].say(protocol.Grant(request_id="nobody", limit=1))
    for client in clients:
        client.hang_up()
    await asyncio.gather(
        *(serve(client, server.hub, CALLER, work, LIMITS, {}, Observer()) for client in clients)  # type: ignore[arg-type]
    )
    free = int(BURST_S * 1000)
    assert not any(slept[: free // 5 - 1]), "a burst costs nothing, and others have their turn in between"
    assert len(slept) > free // 5 + (300 - free) - 10, "what goes beyond it is waited for, frame by frame"
    assert min(slept[-50:]) > 0


async def test_replies_that_nobody_reads_end_the_connection_by_their_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("realtime.websocket.connection.UNREAD_REPLY_BYTES", 10_000)
    server, client = SimulatedServer(SIZE), Client()
    client.writable = False
    for _ in range(100):
        client.say(protocol.Pause(request_id="x" * 128, ref="y" * 64))
    await serve(client, server.hub, CALLER, PayerWork(), LIMITS, {}, Observer())  # type: ignore[arg-type]
    assert client.closed == protocol.CloseCode.POLICY


async def test_a_peer_that_has_closed_already_is_closed_in_peace() -> None:
    class Closed(Client):
        async def close(self, code: int, reason: str) -> None:
            raise WebSocketDisconnect(1006)

    server, client = SimulatedServer(SIZE), Closed()
    open_: dict[str, Connection] = {}
    serving = asyncio.create_task(serve(client, server.hub, CALLER, PayerWork(), LIMITS, open_, Observer()))  # type: ignore[arg-type]
    client.say(start("seen", params=Params(max_tokens=1)))
    await client.started.get()
    [connection] = open_.values()
    await connection.close_for_good()
    client.hang_up()
    await serving


@pytest.mark.parametrize("length", [0, 256, 257])
async def test_a_handshakes_trace_is_no_longer_than_a_frames_may_be(length: int) -> None:
    server, client = SimulatedServer(SIZE), Client()
    client.headers["traceparent"] = length * "x"
    received: list[Any] = []
    server.hub.receive_frame = lambda tenant, frame, listener, acted=None: received.append(frame)  # type: ignore[method-assign]
    client.say(start())
    client.hang_up()
    await serve(client, server.hub, CALLER, PayerWork(), LIMITS, {}, Observer())  # type: ignore[arg-type]
    (frame,) = received
    assert frame.traceparent == (length * "x" if length == 256 else None)


async def test_a_connection_whose_events_cannot_be_said_ends_and_no_other_with_it() -> None:
    class Broken(Client):
        def write(self, messages: list[bytes], *, text: bool, ping: bytes | None = None) -> None:
            if self.started.empty():
                super().write(messages, text=text, ping=ping)
            else:
                raise OverflowError

    server, clients = SimulatedServer(SIZE, window=64), [Broken(), Client()]
    serving = [
        asyncio.create_task(serve(client, server.hub, CALLER, PayerWork(), LIMITS, {}, Observer()))  # type: ignore[arg-type]
        for client in clients
    ]
    broken, other = clients
    for name, client in zip("ab", clients, strict=True):
        client.say(start(name, params=Params(max_tokens=9, ignore_eos=True)))
        while all(stream.request_id != name for stream in server.hub.streams):  # noqa: ASYNC110 - a task's turn
            await asyncio.sleep(0)
    while "b" not in other.ended:
        server.tick()
    while broken.closed is None:  # noqa: ASYNC110 - and another's
        await asyncio.sleep(0)
    assert broken.closed == protocol.CloseCode.INTERNAL
    for client in clients:
        client.hang_up()
    await asyncio.gather(*serving)


async def test_a_start_that_is_said_again_takes_no_second_place_nor_keeps_one() -> None:
    server, client = SimulatedServer(SIZE, window=64), Client()
    serving = asyncio.create_task(serve(client, server.hub, CALLER, PayerWork(), LIMITS, {}, Observer()))  # type: ignore[arg-type]
    for number in range(LIMITS.streams_per_connection + 1):
        frame = start(f"number {number}", params=Params(max_tokens=2, ignore_eos=True))
        client.say(frame)
        assert await asyncio.wait_for(client.started.get(), 10) == frame.request_id
        client.say(frame)
        assert await asyncio.wait_for(client.started.get(), 10) == frame.request_id, "all is said again"
        while frame.request_id not in client.ended:
            server.tick()
    client.hang_up()
    await serving


async def test_streams_that_are_looked_for_elsewhere_have_their_places_meanwhile() -> None:
    server, client = SimulatedServer(SIZE), Client()
    looked_for: list[str] = []
    server.hub.receive_frame = lambda tenant, frame, listener, acted=None: looked_for.append(frame.request_id)  # type: ignore[method-assign]
    for number in range(LIMITS.streams_per_connection + 1):
        client.say(protocol.Attach(request_id=f"number {number}", after=-1))
    client.hang_up()
    await serve(client, server.hub, CALLER, PayerWork(), LIMITS, {}, Observer())  # type: ignore[arg-type]
    assert len(looked_for) == LIMITS.streams_per_connection


async def test_a_no_to_another_frame_gives_no_place_away_that_a_coming_stream_has() -> None:
    server, client = SimulatedServer(SIZE), Client()
    coming: list[str] = []

    def receive_frame(tenant: str, frame: protocol.StreamFrame, listener: Listener) -> None:
        if isinstance(frame, protocol.Start) and frame.request_id not in coming:
            coming.append(frame.request_id)
        else:
            listener.send_refusal(Refusal("invalid_params", "No."), frame)

    server.hub.receive_frame = receive_frame  # type: ignore[method-assign, assignment]
    for number in range(LIMITS.streams_per_connection + 1):
        for frame in (
            start(f"{number}"),
            protocol.Pause(request_id=f"{number}"),
            start(f"{number}", prompt="Else"),
        ):
            client.say(frame)
    client.hang_up()
    await serve(client, server.hub, CALLER, PayerWork(), LIMITS, {}, Observer())  # type: ignore[arg-type]
    assert len(coming) == LIMITS.streams_per_connection
