"""The server's graceful end, without a server."""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
import socket
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import uvicorn

from engine import api
from midstream import protocol
from realtime.__main__ import _cancelled_by_sigterm
from realtime.codec import Codec
from realtime.http.listener import HttpListener
from realtime.hub.hub import LONG_TEXT, Hub
from realtime.hub.observers import Caller, Observer
from realtime.server import Server, let_finish
from realtime.transport.http_protocol import HttpLimits, TimedHttpProtocol, protocol_class
from realtime.websocket.connection import Connection, ConnectionLimits
from realtime.work_ledger import PayerWork
from tests.fakes.fake_websocket import FakeWebSocket
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import SIZE, endless, start
from tests.fakes.simulated_server import SimulatedServer
from tests.server.asgi_app_server import Receive, Scope, Send


class Open:
    """A connection that closes, but not at once, or fails to."""

    def __init__(self, *, fails: bool) -> None:
        self.closed = False
        self._fails = fails

    def send_event(self, event: object) -> None:
        """It hears of it."""

    async def until_all_is_said(self) -> None:
        """Nothing waits for it."""

    async def close_for_good(self) -> None:
        if self._fails:
            raise OSError("of the transport")
        await asyncio.sleep(0)
        self.closed = True


async def _ended(hub: Hub, endpoints: Any, *, grace_s: float = 1, hands_over: bool = False) -> None:
    nobody = partial(asyncio.sleep, 0)  # asks over HTTP
    await let_finish(hub, None, endpoints, grace_s, until_answered=nobody, hands_over=hands_over)  # type: ignore[arg-type]


async def test_a_connection_that_fails_to_close_ends_the_wait_for_no_other() -> None:
    failing, slow = Open(fails=True), Open(fails=False)
    endpoints = SimpleNamespace(open={"failing": failing, "slow": slow})
    await _ended(SimulatedServer(SIZE).hub, endpoints)
    assert slow.closed


async def test_a_signal_always_has_somebody_to_hear_it_from_the_load_to_the_servers_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a container's first process one that nobody hears is lost, and else it ends the server at once."""
    told, heard, set_handler = list[str](), asyncio.Event(), signal.signal

    def note(number: int, handler: Any) -> Any:
        if number == signal.SIGTERM:
            told.append(getattr(handler, "__name__", str(handler)))
        return set_handler(number, handler)

    async def ending() -> None:
        heard.set()

    interrupted = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(signal, "signal", note)
    with _cancelled_by_sigterm():
        server = Server(uvicorn.Config(lambda: None, log_config=None), ending, lambda: None)
        with server.capture_signals():
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(heard.wait(), 30)
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, "it has nothing left to end in good order"
        assert signal.getsignal(signal.SIGINT) is interrupted
    assert told == ["<lambda>", "handle_exit", str(signal.SIG_DFL), str(signal.SIG_DFL)]
    assert not asyncio.current_task().cancelling()  # type: ignore[union-attr]


async def test_whoever_hears_that_it_serves_may_end_it_at_once() -> None:
    heard = asyncio.Event()

    async def ending() -> None:
        heard.set()

    def accepting() -> None:
        signal.raise_signal(signal.SIGTERM)

    config = uvicorn.Config(lambda: None, log_config=None, lifespan="off")
    with socket.create_server(("127.0.0.1", 0)) as listening, _cancelled_by_sigterm():
        await asyncio.wait_for(Server(config, ending, accepting).serve(sockets=[listening]), 30)
    assert heard.is_set()


async def test_what_an_answer_over_http_is_made_of_is_handed_over_when_the_grace_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It was to end here, and whoever asks again elsewhere, as it is told to, would find it cut short. What
    ends here waits until the turn of all that does not has come."""
    monkeypatch.setattr("realtime.hub.handing_over.HANDED_OVER_A_TURN", 1)
    server = SimulatedServer(SIZE, keeps=True)
    answers = {
        name: HttpListener(server.hub, Caller("http", tenant="tenant"), PayerWork(), keeps_events=False)
        for name in ("cancel", "continue")
    }
    for name, answer in answers.items():
        server.hub.receive_frame("tenant", start(name, on_disconnect=name), answer)
    cancelled, kept = server.hub.streams
    ending = asyncio.create_task(_ended(server.hub, SimpleNamespace(open={}), grace_s=0, hands_over=True))
    while not cancelled.ended:
        server.clock.advance(0)
        server.tick()
        await asyncio.sleep(0)
    await ending
    assert not kept.ended, "another gateway has it go on"
    failure = answers["continue"].failure
    assert failure is not None
    assert failure.event().retryable


def kept_elsewhere() -> api.Journal:
    """What an engine keeps of another gateway's stream."""
    there = SimulatedServer(SIZE, keeps=True)
    RecordingListener(there).send(endless("there", on_disconnect="continue"))
    there.tick()
    (stream,) = there.hub.streams
    return there.engines[0].keeping.kept[stream.number].journal.told()


async def looked_for(here: SimulatedServer, listener: RecordingListener) -> int:
    """Engines are asked for that stream: under this number."""
    del here.hub._adoptions.may_be_found  # it is the real one that is asked
    listener.send(protocol.Attach(request_id="there", after=-1))
    await asyncio.sleep(0)
    (number,) = here.hub._keepers._searches
    return number


async def test_what_is_looked_for_elsewhere_when_the_grace_is_over_stays_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It would come behind what is handed over, and be cancelled with what ends here, or come behind that."""
    monkeypatch.setattr("realtime.hub.handing_over.HANDED_OVER_A_TURN", 1)
    journal, here = kept_elsewhere(), SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(here)
    for name in ("here", "here too"):
        listener.send(endless(name, on_disconnect="continue"))
    here.tick()
    number = await looked_for(here, listener)
    ending = asyncio.create_task(_ended(here.hub, SimpleNamespace(open={}), grace_s=0, hands_over=True))
    while not listener.lost:
        here.clock.advance(0)
        await asyncio.sleep(0)
    here.hub.receive_answer(0, api.Adopted(number, journal))
    while not ending.done():
        here.clock.advance(0)
        await asyncio.sleep(0)
    await ending
    assert listener.lost == ["here", "here too"]
    assert listener.error().code == "draining"
    assert api.Disown(number) in itertools.chain.from_iterable(here.down)


async def test_where_all_ends_with_the_server_nothing_is_taken_over_behind_that() -> None:
    journal, here = kept_elsewhere(), SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(here)
    listener.send(endless("here", on_disconnect="continue"))
    here.tick()
    number = await looked_for(here, listener)
    ending = asyncio.create_task(_ended(here.hub, SimpleNamespace(open={}), grace_s=0))
    while not any(isinstance(said, api.Cancel) for said in itertools.chain.from_iterable(here.down)):  # noqa: ASYNC110
        await asyncio.sleep(0)
    here.hub.receive_answer(0, api.Adopted(number, journal))
    while not ending.done():
        here.tick()
        await asyncio.sleep(0)
    await ending
    assert listener.error().code == "draining"


async def test_an_engine_is_not_blamed_for_what_waits_for_another_server(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """That is about to begin the same stream, and will be waited for as long as it may take."""
    monkeypatch.setattr("realtime.server.CANCEL_S", 0.001)
    server = SimulatedServer(SIZE, keeps=True)
    del server.hub._adoptions.may_be_found  # it is the real one that is asked
    RecordingListener(server).send(endless(on_disconnect="continue"))
    await asyncio.sleep(0)
    (number,) = server.hub._keepers._searches
    server.hub.receive_answer(0, api.Claimed(number))
    await _ended(server.hub, SimpleNamespace(open={}), grace_s=0, hands_over=True)
    assert [record.levelname for record in caplog.records if record.name == "midstream"] in ([], ["INFO"])


async def test_nobody_comes_any_more_to_a_server_that_hands_over() -> None:
    """The system would take them, and another server listens at this very port."""
    serves, told, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def ending() -> None:
        told.set()
        await ended.wait()

    config = uvicorn.Config(lambda: None, log_config=None, lifespan="off")
    with socket.create_server(("127.0.0.1", 0)) as listening, _cancelled_by_sigterm():
        place = listening.getsockname()
        server = Server(config, ending, serves.set, accepts_to_the_end=False)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await asyncio.wait_for(serves.wait(), 30)
        signal.raise_signal(signal.SIGTERM)
        await asyncio.wait_for(told.wait(), 30)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(place, timeout=30)
        ended.set()
        await asyncio.wait_for(serving, 30)


@pytest.mark.parametrize("told_to_end", ["when asked", "when answered", "when all is written"])
async def test_who_reads_an_answer_over_http_slowly_has_all_of_it_before_the_server_closes(
    told_to_end: str,
) -> None:
    """One that is not streamed is begun when its stream has ended."""
    accepts, asked, answers, ending = (asyncio.Event() for _ in range(4))
    body = b"a" * (1 << 20)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        asked.set()
        await answers.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})

    async def end() -> None:
        ending.set()
        hub, endpoints = SimulatedServer(SIZE).hub, SimpleNamespace(open={})
        await let_finish(hub, None, endpoints, 600, until_answered=server.until_answered, hands_over=False)  # type: ignore[arg-type]

    config = uvicorn.Config(app, http=protocol_class(HttpLimits()), log_config=None, lifespan="off")
    with socket.create_server(("127.0.0.1", 0)) as listening, _cancelled_by_sigterm():
        server = Server(config, end, accepts.set)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await asyncio.wait_for(accepts.wait(), 30)
        place = listening.getsockname()
        with socket.socket() as reader:
            reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            reader.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(reader, place)
            await loop.sock_sendall(reader, b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            await asyncio.wait_for(asked.wait(), 30)
            (connection,) = server.server_state.connections
            assert isinstance(connection, TimedHttpProtocol)
            read = 0
            if told_to_end != "when asked":
                answers.set()
                read += len(await loop.sock_recv(reader, 1))
            while told_to_end == "when all is written" and not connection.cycle.response_complete:
                read += len(await asyncio.wait_for(loop.sock_recv(reader, 1 << 12), 30))
            signal.raise_signal(signal.SIGTERM)
            await asyncio.wait_for(ending.wait(), 30)
            for _ in range(10):
                await asyncio.sleep(0)
            assert not server.should_exit, "the end is put off"
            answers.set()
            while part := await asyncio.wait_for(loop.sock_recv(reader, 1 << 16), 30):
                read += len(part)
        assert read > len(body)
        await asyncio.wait_for(serving, 30)


class Peer(FakeWebSocket):
    """Its client hears what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[bytes] = []
        self.closed = asyncio.Event()
        self.said = asyncio.Queue[dict[str, str]]()

    async def receive(self) -> dict[str, str]:
        message = await self.said.get()
        self.said.task_done()
        return message

    def write(self, messages: list[bytes], *, text: bool, ping: bytes | None = None) -> None:
        self.heard += messages

    async def close(self, code: int, reason: str) -> None:
        await self.closed.wait()


def connected() -> tuple[SimulatedServer, Peer, Connection]:
    limits = ConnectionLimits(1 << 20, 10, 64, 16)
    server, peer, caller = SimulatedServer(SIZE, keeps=True), Peer(), Caller("websocket", tenant="a")
    reader = Connection(peer, peer, server.hub, Codec(None), caller, PayerWork(), limits, {}, Observer())  # type: ignore[arg-type]
    return server, peer, reader


async def test_a_connection_that_stayed_for_a_stream_goes_when_that_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What else it has goes on elsewhere, and so does what its client begins."""
    monkeypatch.setattr("realtime.server.LOOK_S", 0.001)
    server, peer, connection = connected()
    hub = server.hub
    for name in ("continue", "cancel"):
        hub.receive_frame("a", endless(name, on_disconnect=name), connection)
    goes_on, stays = hub.streams
    endpoints = SimpleNamespace(open={"a": connection})
    peer.closed.set()
    ending = asyncio.create_task(_ended(hub, endpoints, grace_s=600, hands_over=True))
    for _ in range(10):
        server.tick()
        await asyncio.sleep(0)
    assert hub.streams == [goes_on, stays]
    hub.receive_frame("a", protocol.Cancel(request_id="cancel"), connection)
    while not stays.ended:
        server.tick()
    await asyncio.wait_for(ending, 30)
    assert connection.gone
    assert not goes_on.ended


async def test_a_connection_stays_until_the_engine_has_what_has_just_begun_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its client would ask elsewhere for what nobody has yet, and a fork cannot be started again."""
    monkeypatch.setattr("realtime.server.LOOK_S", 0.001)
    server, peer, connection = connected()
    hub = server.hub
    hub.receive_frame("a", endless(on_disconnect="continue"), connection)
    (stream,) = hub.streams
    peer.closed.set()
    ending = asyncio.create_task(
        _ended(hub, SimpleNamespace(open={"a": connection}), grace_s=600, hands_over=True)
    )
    for _ in range(10):
        await asyncio.sleep(0)
    assert (connection.gone, hub.streams) == (False, [stream])
    server.tick()
    await asyncio.wait_for(ending, 30)
    assert (connection.gone, stream.ended) == (True, False)


async def test_what_is_said_to_a_stream_that_was_handed_over_has_no_answer_here() -> None:
    """Its connection stays until another stream has ended; where the first goes on, it is said again."""
    server, peer, connection = connected()
    hub = server.hub
    for name in ("continue", "cancel"):
        hub.receive_frame("a", endless(name, on_disconnect=name), connection)
    peer.closed.set()
    endpoints = SimpleNamespace(open={"a": connection})
    ending = asyncio.create_task(_ended(hub, endpoints, grace_s=0, hands_over=True))
    reading = asyncio.create_task(connection.read())
    while len(hub.streams) > 1:
        server.clock.advance(0)
        await asyncio.sleep(0)
    for name in ("continue", "cancel"):
        said = f'{{"type": "pause", "request_id": "{name}", "ref": "{name}"}}'
        peer.said.put_nowait({"type": "", "text": said})
    await peer.said.join()
    while hub.streams:
        server.tick()
    await asyncio.wait_for(ending, 30)
    reading.cancel()
    refs = [json.loads(heard).get("ref") for heard in peer.heard]
    assert ("continue" in refs, "cancel" in refs) == (False, True)


async def test_what_waits_to_be_tokenized_for_a_stream_that_is_handed_over_has_no_answer_here() -> None:
    server, peer, connection = connected()
    hub = server.hub
    hub.receive_frame("a", endless(on_disconnect="continue"), connection)
    long = protocol.Inject(request_id="a", text="long " * (LONG_TEXT // 4), ref="r")
    hub.receive_frame("a", long, connection)
    await hub.hand_over(also_read=True)
    assert hub.streams == []
    await asyncio.wait_for(hub.wait_until_empty(), 30)
    assert [json.loads(heard)["type"] for heard in peer.heard] == ["started"]


async def test_who_steers_what_another_reads_is_told_that_it_was_handed_over() -> None:
    """Also by what waits to be tokenized, and by what comes behind."""
    server = SimulatedServer(SIZE, keeps=True)
    reader, other = RecordingListener(server), RecordingListener(server)
    reader.send(endless("a", on_disconnect="continue"))
    other.send(protocol.Pause(request_id="a", ref="pause"))
    other.send(protocol.Inject(request_id="a", text="long " * (LONG_TEXT // 4)))
    await server.hub.hand_over(also_read=True)
    await asyncio.wait_for(server.hub.wait_until_empty(), 30)
    other.send(protocol.Resume(request_id="a"))
    told = [answer for answer in other.answers if isinstance(answer, protocol.Error)] + other.errors
    assert [error.code for error in told] == ["request_taken"] * 3


async def test_who_is_handed_over_is_answered_nothing_more_and_asks_elsewhere() -> None:
    limits = ConnectionLimits(1 << 20, 10, 64, 16)
    server, peer, caller = SimulatedServer(SIZE), Peer(), Caller("websocket", tenant="a")
    hub, work = server.hub, PayerWork()
    connection = Connection(peer, peer, hub, Codec(None), caller, work, limits, {}, Observer())  # type: ignore[arg-type]
    endpoints = SimpleNamespace(open={"a": connection})
    ending = asyncio.create_task(_ended(hub, endpoints, hands_over=True))
    reading = asyncio.create_task(connection.read())
    await asyncio.sleep(0)
    for name in ("a", "b"):  # who stopped reading would have it closed as if all had been said
        peer.said.put_nowait(
            {"type": "", "text": f'{{"type": "start", "request_id": "{name}", "prompt": "x"}}'}
        )
    await asyncio.wait_for(peer.said.join(), 30)
    peer.closed.set()
    await ending
    peer.said.put_nowait({"type": "websocket.disconnect"})
    await reading
    assert b"going_away" in b"".join(peer.heard)
    assert b"draining" not in b"".join(peer.heard)
