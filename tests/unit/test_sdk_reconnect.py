"""The client reconnects: against a scripted server, over real WebSockets that the test cuts."""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from msgspec.structs import replace
from websockets.asyncio.client import ClientConnection
from websockets.frames import Frame as WebSocketFrame
from websockets.frames import Opcode

import midstream
from midstream.backoff import Backoff
from midstream.protocol import (
    ERRORS,
    Adjust,
    Adjusted,
    Attach,
    Attached,
    Cancel,
    CloseCode,
    Credit,
    Error,
    Frame,
    GoingAway,
    Grant,
    Inject,
    Injected,
    Params,
    Pause,
    Paused,
    Ping,
    Pong,
    Replace,
    Rewind,
    Rewound,
    Snapshot,
    SnapshotCall,
    Start,
    Token,
    TokenLogprob,
    ToolArguments,
    ToolCall,
    ToolCallDone,
    ToolResult,
)
from midstream.reconnecting import ClientState
from tests.fakes.cutting_proxy import CuttingProxy
from tests.fakes.scripted_server import READY, FakeServer, Peer, Responder, final, responder_text, started

T = TypeVar("T")
USER = {"role": "user", "content": "Hi"}
WEATHER = {"type": "function", "function": {"name": "weather"}}


class StateRecorder:
    """The states that the client reports, in order."""

    def __init__(self) -> None:
        self.states: list[ClientState] = []
        self._changed = asyncio.Event()

    def __call__(self, state: ClientState) -> None:
        self.states.append(state)
        self._changed.set()

    async def until(self, state: ClientState) -> None:
        while state not in self.states:
            self._changed.clear()
            await self._changed.wait()


@pytest.fixture
async def server() -> AsyncIterator[FakeServer]:
    async with FakeServer() as server:
        yield server


@pytest.fixture
def recorder() -> StateRecorder:
    return StateRecorder()


@pytest.fixture
async def client(server: FakeServer, recorder: StateRecorder) -> AsyncIterator[midstream.Client]:
    async with midstream.connect(server.url, on_state=recorder) as client:
        yield client


@pytest.fixture
async def peer(server: FakeServer, client: midstream.Client) -> Peer:
    return await server.peer()


async def begin(
    client: midstream.Client, peer: Peer, request_id: str = "r", window: int = 64
) -> midstream.Stream:
    stream, _ = await asyncio.gather(
        client.start(prompt="Hi", request_id=request_id, window=window), peer.accept_start()
    )
    return stream


async def reconnected(server: FakeServer, *sessions: str) -> Peer:
    """The next connection, which stands in for these sessions."""
    peer = await server.peer()
    for session_id in sessions:
        assert (await peer.receive(Replace)).session_id == session_id
    return peer


async def come_back(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> tuple[midstream.Stream, Peer, Attach]:
    """A stream whose connection was cut; the next one, and what asks for the stream there."""
    stream = await begin(client, peer)
    cut(peer)
    peer = await reconnected(server, "s1")
    return stream, peer, await peer.receive(Attach)


async def attach(peer: Peer, after: int, request_id: str = "r", pending: list[str] | None = None) -> None:
    """Receive the next `attach`, which has all events up to `after`, and answer that nothing came since."""
    frame = await peer.receive(Attach)
    assert (frame.request_id, frame.after) == (request_id, after)
    peer.seqs[request_id] = after + 1
    await peer.send(Attached(request_id=request_id, pending=pending or [], ref=frame.ref))


async def pong(peer: Peer) -> None:
    ping = await peer.receive(Ping)
    await peer.send(Pong(ref=ping.ref))


def cut(peer: Peer) -> None:
    peer.socket.transport.abort()


def error(code: str, request_id: str | None = None, ref: str | None = None) -> Error:
    status, retryable = ERRORS[code]
    return Error(
        status=status, code=code, message="so it is", retryable=retryable, request_id=request_id, ref=ref
    )


def snapshot(request_id: str, index: int, text: str) -> Snapshot:
    return Snapshot(
        request_id=request_id, index=index, text=text, model="toy", prompt_tokens=3, params=Params()
    )


def token(index: int, delta: str, request_id: str = "r") -> Token:
    return Token(request_id=request_id, index=index, count=1, delta=delta)


# -- streams go on -------------------------------------------------------------------------------------


async def test_a_loop_notices_nothing(
    server: FakeServer, client: midstream.Client, peer: Peer, recorder: StateRecorder
) -> None:
    stream = await begin(client, peer)
    await peer.send(token(0, "a"))
    await peer.send(token(1, "b"))
    assert await stream.next()
    reading = asyncio.create_task(_read(stream))
    cut(peer)
    peer = await reconnected(server, "s1")
    assert (client.state, stream.state) == ("reconnecting", "running")
    await attach(peer, 2)
    await pong(peer)
    await peer.send(token(2, "c"))
    await peer.send(final("r", 3, "stop"))
    assert await reading == ["b", "c"]
    assert stream.text == "abc"
    assert (client.ready.session_id, client.state, recorder.states) == (
        "s2",
        "open",
        ["reconnecting", "open"],
    )


async def _read(stream: midstream.Stream) -> list[str]:
    return [chunk.text async for chunk in stream]


async def test_what_was_missed_comes_before_the_rest(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream, peer, frame = await come_back(server, client, peer)
    peer.seqs["r"] = 1
    await peer.send(token(0, "missed"))
    await peer.send(Attached(request_id="r", ref=frame.ref))
    await peer.send(final("r", 1, "stop"))
    assert await _read(stream) == ["missed"]


async def test_the_end_may_be_what_was_missed(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream, peer, frame = await come_back(server, client, peer)
    peer.seqs["r"] = 1
    await peer.send(final("r", 0, "stop"))
    await peer.send(Attached(request_id="r", ref=frame.ref))
    await pong(peer)
    assert await _read(stream) == []
    assert stream.state == "finished"


async def test_the_latest_limit_is_said_again(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream = await begin(client, peer, window=1)
    reading = asyncio.create_task(stream.next())
    assert (await peer.receive(Grant)).limit == 1
    cut(peer)
    peer = await reconnected(server, "s1")
    await attach(peer, 0)
    await pong(peer)
    assert (await peer.receive(Grant)).limit == 1
    await peer.send(token(0, "a"))
    assert await reading == midstream.Chunk(0, 1, "a")


async def test_automatic_credit_says_no_limit(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    await asyncio.gather(client.start(prompt="Hi", request_id="r", credit="auto"), peer.accept_start())
    cut(peer)
    peer = await reconnected(server, "s1")
    frame = await peer.receive_frame()
    assert isinstance(frame, Attach)
    await peer.send(Attached(request_id="r", ref=frame.ref))
    assert isinstance(await peer.receive_frame(), Ping)


async def test_cut_again_before_it_is_back(
    server: FakeServer, client: midstream.Client, peer: Peer, recorder: StateRecorder
) -> None:
    """The server may still hold any session open of which it is not known that it was replaced."""
    stream = await begin(client, peer)
    cut(peer)
    cut(await server.peer())
    peer = await reconnected(server, "s1", "s2")
    await attach(peer, 0)
    await pong(peer)
    await recorder.until("open")
    cut(peer)
    peer = await reconnected(server, "s3")
    await attach(peer, 0)
    await peer.send(token(0, "a"))
    assert await stream.next() == midstream.Chunk(0, 1, "a")


async def test_a_server_that_restarts_is_waited_for(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream = await begin(client, peer)
    await peer.send(GoingAway(deadline_ms=10))
    await peer.send(token(0, "a"))
    assert await stream.next()
    assert client.draining
    server.status = 503
    await peer.socket.close(CloseCode.DRAINING)
    await server.refused()
    await server.refused()
    server.status = 101
    peer = await reconnected(server, "s1")
    await attach(peer, 1)
    assert not client.draining


# -- streams that were not there yet -------------------------------------------------------------------


async def test_an_unanswered_start_is_said_again(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    starting = asyncio.create_task(client.start(prompt="Hi"))
    first = await peer.receive(Start)
    cut(peer)
    peer = await reconnected(server, "s1")
    again = await peer.accept_start()
    assert again == first
    await peer.send_tokens(again, 0, "a")
    assert await (await starting).next() == midstream.Chunk(0, 1, "a")


async def test_a_start_that_was_heard_is_answered_by_what_was_missed(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    starting = asyncio.create_task(client.start(prompt="Hi"))
    await peer.receive(Start)
    cut(peer)
    peer = await reconnected(server, "s1")
    again = await peer.accept_start()
    stream = await starting
    await pong(peer)
    pausing = asyncio.create_task(stream.pause())
    pause = await peer.receive(Pause)
    await peer.send_tokens(again, 0, "a")
    await peer.send(Attached(request_id=again.request_id, ref=again.ref))
    assert await stream.next()
    pinging = asyncio.create_task(client.ping())
    await pong(peer)  # the pause is on its way, and was not said twice: this comes right behind it
    await pinging
    await peer.send(Paused(request_id=again.request_id, ref=pause.ref, index=1, reason="client"))
    assert await pausing == 1


async def said_again_for_a_snapshot(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> tuple[asyncio.Task[midstream.Stream], Peer, Start]:
    """A start that was heard long ago, and is said again on another connection: that has told a snapshot."""
    starting = asyncio.create_task(client.start(prompt="Hi", request_id="r"))
    await peer.receive(Start)
    cut(peer)
    peer = await reconnected(server, "s1")
    again = await peer.receive(Start)
    peer.seqs["r"] = 7
    await peer.send(snapshot("r", 4, "long ago"))
    return starting, peer, again


async def test_a_start_that_was_heard_long_ago_is_answered_by_a_snapshot(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    starting, peer, again = await said_again_for_a_snapshot(server, client, peer)
    await peer.send(Attached(request_id="r", ref=again.ref))
    stream = await starting
    assert (stream.text, stream.model, stream.index) == ("long ago", "toy", 4)


async def test_a_start_that_was_heard_may_have_come_to_its_end(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    starting, peer, _ = await said_again_for_a_snapshot(server, client, peer)
    await peer.send(final("r", 4, "stop"))
    assert await _read(await starting) == ["long ago"]


async def test_a_start_asked_for_meanwhile_waits(
    server: FakeServer, client: midstream.Client, peer: Peer, recorder: StateRecorder
) -> None:
    cut(peer)
    await recorder.until("reconnecting")
    names = ["a", "b", "c"]
    starting = [asyncio.create_task(client.start(prompt="Hi", request_id=name)) for name in names]
    peer = await reconnected(server, "s1")
    heard = [(await peer.accept_start()).request_id for _ in names]
    await asyncio.gather(*starting)
    assert heard == names


async def test_a_message_that_the_server_would_not_take_fails_alone() -> None:
    limits, states = {"max_message_bytes": 1000}, StateRecorder()
    large = 1000 * "x"
    async with (
        FakeServer(first_event=replace(READY, limits=limits)) as server,
        midstream.connect(server.url, on_state=states) as client,
    ):
        peer = await server.peer()
        stream = await begin(client, peer)
        with pytest.raises(
            midstream.TooLarge, match=r"of 1\d\d\d bytes, and the server takes 1000 at"
        ) as why:
            await client.start(prompt=large, request_id="large")
        assert why.value.request_id == "large"
        with pytest.raises(midstream.TooLarge):
            await stream.inject(text=large)
        await peer.send(token(0, "a"))
        assert await stream.next() == midstream.Chunk(0, 1, "a")
        cut(peer)
        await states.until("reconnecting")
        waiting = [stream.inject(text=large), client.start(prompt=large)]
        refusals = asyncio.gather(*waiting, return_exceptions=True)
        peer = await reconnected(server, "s1")
        await attach(peer, 1)
        assert [type(refusal) for refusal in await refusals] == [midstream.TooLarge] * 2
        await peer.send(token(1, "b"))
        assert await stream.next() == midstream.Chunk(1, 1, "b")


endless: dict[str, object] = {}
endless["properties"] = endless


@pytest.mark.parametrize(
    "options",
    [
        {"prompt": "cut \ud83d"},
        {"prompt": "Hi", "grammar": {"json_schema": endless}},
        {"prompt": "Hi", "grammar": {"json_schema": {"const": 2**70}}},
        {"prompt": "Hi", "grammar": {"json_schema": {"const": print}}},
    ],
)
async def test_what_cannot_be_sent_is_refused_and_fails_no_reconnecting(
    server: FakeServer, client: midstream.Client, peer: Peer, recorder: StateRecorder, options: Any
) -> None:
    stream = await begin(client, peer)
    cut(peer)
    await recorder.until("reconnecting")
    with pytest.raises(midstream.InvalidFrame, match="`start` cannot be sent"):
        await client.start(**options)
    with pytest.raises(midstream.InvalidFrame, match="`inject` cannot be sent"):
        await stream.inject(text="cut \ud83d")
    peer = await reconnected(server, "s1")
    await attach(peer, 0)
    await peer.send(token(0, "a"))
    assert await stream.next() == midstream.Chunk(0, 1, "a")


@pytest.mark.parametrize("code", ["overloaded", "too_many_streams"])
async def test_a_start_said_again_is_tried_while_there_is_time(
    server: FakeServer, client: midstream.Client, peer: Peer, code: str
) -> None:
    starting = asyncio.create_task(client.start(prompt="Hi", request_id="r"))
    await peer.receive(Start)
    cut(peer)
    peer = await reconnected(server, "s1")
    start = await peer.receive(Start)
    await peer.send(error(code, "r", start.ref))
    await pong(peer)
    await peer.accept_start()
    assert (await starting).state == "running"


async def refuse_start(peer: Peer) -> str:
    start = await peer.receive(Start)
    await peer.send(error("draining", start.request_id, start.ref))
    return start.request_id


async def test_a_start_that_a_server_refuses_as_it_goes_is_said_to_the_next(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    starting = [asyncio.create_task(client.start(prompt="Hi", request_id=name)) for name in "ab"]
    refused = [await refuse_start(peer) for _ in starting]
    await peer.socket.wait_closed()
    peer = await reconnected(server, "s1")
    assert [(await peer.accept_start()).request_id for _ in starting] == refused
    assert [(await task).state for task in starting] == ["running"] * 2


async def test_it_waits_for_streams_that_are_still_there(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream = await begin(client, peer)
    starting = asyncio.create_task(client.start(prompt="Hi", request_id="next"))
    await refuse_start(peer)
    await peer.send(token(0, "a"))
    assert await stream.next()
    assert client.draining
    assert not starting.done()
    await peer.send(final("r", 1, "stop"))
    peer = await reconnected(server, "s1")
    assert (await peer.accept_start()).request_id == "next"
    assert (await starting).state == "running"


@pytest.mark.parametrize("reconnect_s", [0, 0.2])
async def test_where_nobody_takes_it_in_time_it_is_refused(server: FakeServer, reconnect_s: float) -> None:
    async with midstream.connect(server.url, reconnect_s=reconnect_s) as client:
        peer = await server.peer()
        stream = await begin(client, peer)
        starting = asyncio.create_task(client.start(prompt="Hi", request_id="next"))
        await refuse_start(peer)
        with pytest.raises(midstream.Draining):
            await starting
        await peer.send(token(0, "a"))
        assert await stream.next()


def timed(monkeypatch: pytest.MonkeyPatch, call: Callable[..., None]) -> list[Callable[[], object]]:
    """What is to be called later, of these calls, for a test to call now."""
    loop, later = asyncio.get_running_loop(), list[Callable[[], object]]()
    call_at = loop.call_at

    def at(when: float, what: Any, *of: Any, **context: Any) -> asyncio.TimerHandle:
        later.extend([partial(what, *of)] if what == call else [])
        return call_at(when, what, *of, **context)

    monkeypatch.setattr(loop, "call_at", at)
    return later


async def test_what_is_held_once_more_is_held_as_long_again(
    server: FakeServer, client: midstream.Client, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another server that goes away refuses it, when it has begun elsewhere and comes back."""
    over = timed(monkeypatch, client._session._give_up)
    starting = asyncio.create_task(client.start(prompt="Hi", request_id="r"))
    await refuse_start(peer)
    peer = await reconnected(server, "s1")
    await peer.accept_start()
    stream = await starting
    await pong(peer)
    cut(peer)
    peer = await reconnected(server, "s2")
    await peer.send(error("draining", "r", (await peer.receive(Attach)).ref))
    peer = await reconnected(server, "s2", "s3")
    over[0]()
    await attach(peer, 0)
    await peer.send(token(0, "a"))
    assert await stream.next()


async def test_what_had_begun_and_is_held_in_vain_is_lost_and_not_refused(
    server: FakeServer, client: midstream.Client, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    over = timed(monkeypatch, client._session._give_up)
    stream, peer, frame = await come_back(server, client, peer)
    await peer.send(error("draining", "r", frame.ref))
    await reconnected(server, "s1", "s2")
    over[0]()
    with pytest.raises(midstream.ConnectionLost):
        await stream.next()


async def test_what_was_refused_at_last_is_not_tried_on(
    server: FakeServer, client: midstream.Client, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would begin, and nobody knows it any more."""
    over, tries = timed(monkeypatch, client._session._give_up), timed(monkeypatch, client._session._retry)
    starting = asyncio.create_task(client.start(prompt="Hi", request_id="r"))
    await refuse_start(peer)
    peer = await reconnected(server, "s1")
    put_off = error("overloaded", "r", (await peer.receive(Start)).ref)
    await peer.send(replace(put_off, retry_after_ms=30_000))
    await pong(peer)
    pinging = asyncio.create_task(client.ping())
    await pong(peer)
    await pinging
    (refuse,), (try_on,) = over, tries
    refuse()
    with pytest.raises(midstream.Draining):
        await starting
    try_on()
    pinging = asyncio.create_task(client.ping())
    await pong(peer)
    await pinging


async def test_a_start_said_again_is_refused_at_last(server: FakeServer) -> None:
    async with midstream.connect(server.url, reconnect_s=0.5) as client:
        peer = await server.peer()
        starting = asyncio.create_task(client.start(prompt="Hi", request_id="r"))
        await peer.receive(Start)
        cut(peer)
        peer = await reconnected(server, "s1")
        answering = asyncio.create_task(_refuse_all(peer))
        with pytest.raises(midstream.Overloaded):
            await starting
        answering.cancel()
        assert client.state == "open"


async def _refuse_all(peer: Peer) -> None:
    while True:
        match await peer.receive_frame():
            case Start() as start:
                await peer.send(error("overloaded", start.request_id, start.ref))
            case Ping() as ping:
                await peer.send(Pong(ref=ping.ref))


async def test_a_time_beyond_all_bounds_makes_no_sense(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream, peer, frame = await come_back(server, client, peer)
    refusal = json.loads(msgspec.json.encode(error("overloaded", "r", frame.ref)))
    await peer.socket.send(json.dumps(refusal | {"retry_after_ms": 10**400}))
    with pytest.raises(midstream.ConnectionLost, match="an event that makes no sense") as caught:
        await stream.next()
    assert (caught.value.code, caught.value.retryable) == (1002, False)


@pytest.mark.parametrize("how", ["start", "attach"])
async def test_what_was_given_up_before_it_was_said_touches_no_stream_of_its_name(
    server: FakeServer, client: midstream.Client, peer: Peer, recorder: StateRecorder, how: str
) -> None:
    cut(peer)
    await recorder.until("reconnecting")
    asked = client.attach("r") if how == "attach" else client.start(prompt="Hi", request_id="r")
    asking = asyncio.create_task(asked)
    await asyncio.sleep(0)  # it has begun
    asking.cancel()
    await asyncio.wait([asking])
    peer = await reconnected(server, "s1")
    await pong(peer)  # nothing stood before it
    begun = await begin(client, peer)
    assert begun.state == "running", "the name is free, too"


@pytest.mark.parametrize("how", ["given up", "closed"])
async def test_what_a_server_that_goes_away_has_refused_touches_no_stream_of_its_name(
    server: FakeServer, client: midstream.Client, peer: Peer, how: str
) -> None:
    """Whoever gave it up may have begun it anew elsewhere."""
    stream = await begin(client, peer)
    starting = asyncio.create_task(client.start(prompt="Hi", request_id="next"))
    await refuse_start(peer)
    await asyncio.gather(client.ping(), pong(peer))
    if how == "closed":
        closing = asyncio.create_task(client.close())
        assert await _all(peer) == [Cancel(request_id="r")]
        await closing
        with pytest.raises(midstream.ConnectionLost):
            await starting
        return
    starting.cancel()
    await asyncio.wait([starting])
    cut(peer)
    peer = await reconnected(server, "s1")
    await attach(peer, 0)
    await pong(peer)  # nothing stood before it
    begun = await begin(client, peer, "next")
    assert (stream.state, begun.state) == ("running", "running"), "the name is free, too"


@pytest.mark.parametrize("code", ["draining", "overloaded"])
async def test_nor_does_what_the_next_has_refused_too(
    server: FakeServer, client: midstream.Client, peer: Peer, code: str
) -> None:
    stream = await begin(client, peer)
    starting = asyncio.create_task(client.start(prompt="Hi", request_id="next"))
    await refuse_start(peer)
    cut(peer)
    peer = await reconnected(server, "s1")
    await attach(peer, 0)
    start = await peer.receive(Start)
    await pong(peer)
    await peer.send(replace(error(code, "next", start.ref), retry_after_ms=30_000))
    await asyncio.gather(client.ping(), pong(peer))
    starting.cancel()
    await asyncio.wait([starting])
    cut(peer)
    peer = await reconnected(server, "s2")
    await attach(peer, 0)
    await pong(peer)  # nothing stood before it
    begun = await begin(client, peer, "next")
    assert (stream.state, begun.state) == ("running", "running")


@pytest.mark.parametrize("code", ["draining", "overloaded"])
async def test_nor_what_is_refused_as_it_is_given_up(
    server: FakeServer, client: midstream.Client, peer: Peer, code: str
) -> None:
    """The next would be asked for it, to cancel it there."""
    starting = asyncio.create_task(client.start(prompt="Hi", request_id="next"))
    if code == "overloaded":  # else it fails with that
        await refuse_start(peer)
        peer = await reconnected(server, "s1")
    start = await peer.receive(Start)
    starting.cancel()
    await asyncio.wait([starting])
    await peer.send(error(code, "next", start.ref))
    await pong(peer) if code == "overloaded" else await peer.receive(Cancel)
    await asyncio.gather(client.ping(), pong(peer))
    begun = await begin(client, peer, "next")
    assert begun.state == "running", "the name is free"


async def test_a_start_given_up_meanwhile_is_cancelled(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    starting = asyncio.create_task(client.start(prompt="Hi", request_id="r"))
    await peer.receive(Start)
    cut(peer)
    starting.cancel()
    await asyncio.wait([starting])
    peer = await reconnected(server, "s1")
    await attach(peer, -1)
    await pong(peer)
    assert (await peer.receive(Cancel)).request_id == "r"


# -- steering ------------------------------------------------------------------------------------------


async def test_exactly_what_was_never_heard_is_said_again_in_order_and_by_its_name(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream = await begin(client, peer)
    calls = [stream.pause(), stream.adjust(top_k=1), stream.inject(text="x"), stream.rewind(0)]
    steering = [asyncio.create_task(call) for call in calls]
    frames = [await peer.receive(kind) for kind in (Pause, Adjust, Inject, Rewind)]
    pause, adjust, inject, rewind = frames
    cut(peer)
    peer = await reconnected(server, "s1")
    frame = await peer.receive(Attach)
    peer.seqs["r"] = 1
    await peer.send(Paused(request_id="r", ref=pause.ref, index=0, reason="client"))
    assert adjust.ref
    await peer.send(Attached(request_id="r", pending=[adjust.ref], ref=frame.ref))
    await peer.receive(Ping)  # said with the attach, before its answer
    assert await peer.receive(Inject) == inject
    assert await peer.receive(Rewind) == rewind
    await peer.send(Adjusted(request_id="r", ref=adjust.ref, index=0, params=Params(top_k=1)))
    await peer.send(Injected(request_id="r", ref=inject.ref, index=0, count=1))
    await peer.send(error("request_finished", "r", rewind.ref))
    answers = await asyncio.gather(*steering, return_exceptions=True)
    assert answers[:3] == [0, 0, 0]
    assert isinstance(answers[3], midstream.RequestFinished)


@pytest.mark.parametrize("becomes", ["goes on", "is not to be had", "cannot be reached"])
async def test_whatever_is_said_to_a_stream_that_was_handed_over_is_answered_in_the_end(becomes: str) -> None:
    """The server that had it answers nothing, and closes the connection."""
    reconnect_s = 0.001 if becomes == "cannot be reached" else 600
    async with FakeServer() as server, midstream.connect(server.url, reconnect_s=reconnect_s) as client:
        peer = await server.peer()
        stream = await begin(client, peer)
        calls = [
            *(stream.pause(), stream.resume(), stream.adjust(top_k=1), stream.inject(text="x")),
            *(stream.rewind(0), stream.tool_result("c", "so"), stream.approve("c"), stream.amend("c", {})),
            stream.cancel(),
        ]
        saying = [asyncio.create_task(call) for call in calls]
        said = [await peer.receive(Frame) for _ in saying]
        if becomes == "cannot be reached":
            await server.__aexit__(None, None, None)
            answers = await asyncio.wait_for(asyncio.gather(*saying, return_exceptions=True), 30)
            assert all(isinstance(answer, midstream.ConnectionLost) for answer in answers)
            return
        await peer.socket.close(CloseCode.DRAINING)
        peer = await reconnected(server, "s1")
        frame = await peer.receive(Attach)
        if becomes == "goes on":
            await peer.send(Attached(request_id="r", ref=frame.ref))
            await peer.receive(Ping)
            assert [await peer.receive(Frame) for _ in said] == said
            peer.seqs["r"] = 1
            await peer.send(final("r", 0, "cancelled", ref=said[-1].ref))
        else:
            await peer.send(error("request_taken", "r", frame.ref))
        answers = await asyncio.wait_for(asyncio.gather(*saying, return_exceptions=True), 30)
        failed = sum(isinstance(answer, midstream.MidstreamError) for answer in answers)
        assert failed == len(calls) - (becomes == "goes on")


async def test_after_a_snapshot_only_what_does_no_harm_twice_is_said_again(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream = await begin(client, peer)
    calls = [stream.inject(text="x"), stream.adjust(top_k=1, at=0), stream.rewind(0), stream.adjust(top_k=2)]
    steering = [asyncio.create_task(call) for call in calls]
    frames = [await peer.receive(kind) for kind in (Inject, Adjust, Rewind, Adjust)]
    cut(peer)
    peer = await reconnected(server, "s1")
    frame = await peer.receive(Attach)
    peer.seqs["r"] = 9
    await peer.send(snapshot("r", 2, "hm"))
    await peer.send(Attached(request_id="r", ref=frame.ref))
    await peer.receive(Ping)
    assert await peer.receive(Adjust) == frames[3]
    await peer.send(Adjusted(request_id="r", ref=frames[3].ref, index=2, params=Params(top_k=2)))
    answers = await asyncio.gather(*steering, return_exceptions=True)
    assert answers[3] == 2
    for answer, kind in zip(answers, ("inject", "adjust", "rewind"), strict=False):
        assert isinstance(answer, midstream.ConnectionLost)
        assert f"`{kind}`" in str(answer)
        assert "not known" in str(answer)
    assert (stream.text, stream.state) == ("hm", "running")


async def test_a_snapshot_that_tells_of_answers_leaves_nothing_unknown(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    """What it does not tell of was never heard."""
    stream = await begin(client, peer)
    calls = [stream.inject(text="x"), stream.rewind(0), stream.adjust(top_k=1, at=0), stream.inject(text="y")]
    steering = [asyncio.create_task(call) for call in calls]
    frames = [await peer.receive(kind) for kind in (Inject, Rewind, Adjust, Inject)]
    cut(peer)
    peer = await reconnected(server, "s1")
    frame = await peer.receive(Attach)
    peer.seqs["r"] = 9
    told = snapshot("r", 2, "hm")
    told.answered = [
        Injected(request_id="r", ref=frames[0].ref, index=7, count=1),
        Rewound(request_id="r", ref=frames[1].ref, index=0, text_length=0),
        error("invalid_params", "r", frames[2].ref),
    ]
    await peer.send(told)
    await peer.send(Attached(request_id="r", ref=frame.ref))
    await peer.receive(Ping)
    assert await peer.receive(Inject) == frames[3]
    await peer.send(Injected(request_id="r", ref=frames[3].ref, index=2, count=1))
    answers = await asyncio.gather(*steering, return_exceptions=True)
    assert (answers[0], answers[1], answers[3]) == (7, 0, 2)
    assert isinstance(answers[2], midstream.InvalidParams)


async def test_a_snapshot_and_the_end_leave_an_injection_unknown(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream = await begin(client, peer)
    injecting = asyncio.create_task(stream.inject(text="x"))
    await peer.receive(Inject)
    cut(peer)
    peer = await reconnected(server, "s1")
    await peer.receive(Attach)
    peer.seqs["r"] = 9
    await peer.send(snapshot("r", 2, "hm"))
    await peer.send(final("r", 2, "stop"))
    with pytest.raises(midstream.ConnectionLost, match="not known"):
        await injecting
    assert stream.state == "finished"


async def test_frames_asked_for_meanwhile_wait_for_their_stream(
    server: FakeServer, client: midstream.Client, peer: Peer, recorder: StateRecorder
) -> None:
    stream = await begin(client, peer)
    sent = asyncio.create_task(stream.pause())
    refs = [(await peer.receive(Pause)).ref]
    cut(peer)
    await recorder.until("reconnecting")
    steering = [sent, asyncio.create_task(stream.inject(text="x")), asyncio.create_task(client.ping())]
    await asyncio.sleep(0)
    peer = await reconnected(server, "s1")
    frame = await peer.receive(Attach)
    refs += [frame.ref, (await peer.receive(Ping)).ref, (ping := await peer.receive(Ping)).ref]
    steering.append(asyncio.create_task(stream.rewind(0)))
    peer.seqs["r"] = 9
    await peer.send(snapshot("r", 2, "hm"))  # what was never said can be said, whatever the replay shows
    await peer.send(Attached(request_id="r", ref=frame.ref))
    assert (await peer.receive(Pause)).ref == refs[0]
    refs += [(await peer.receive(Inject)).ref, (await peer.receive(Rewind)).ref]
    assert len(set(refs)) == len(refs)
    await peer.send(Pong(ref=ping.ref))
    await peer.send(final("r", 2, "stop"))
    assert await steering[2] is None
    assert {type(e) for e in await asyncio.gather(*steering[:2], steering[3], return_exceptions=True)} == {
        midstream.RequestFinished
    }


# -- streams that do not come back ---------------------------------------------------------------------


async def test_what_a_snapshot_stands_for_is_unknown_though_it_is_counted_right_behind_what_had_come(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    """As one is by a server that has the stream from another. What somebody else has put in meanwhile can not
    be said again."""
    stream, peer, frame = await come_back(server, client, peer)
    await pong(peer)
    peer.seqs["r"] = 1
    told = replace(snapshot("r", 0, ""), injected_tokens=3, answered=[], epoch=1)
    await peer.send(told)
    await peer.send(Attached(request_id="r", ref=frame.ref, epoch=1))
    await asyncio.gather(client.ping(), pong(peer))
    cut(peer)
    peer = await reconnected(server, "s2")
    await peer.send(error("unknown_request", "r", (await peer.receive(Attach)).ref))
    with pytest.raises(midstream.ConnectionLost):
        await stream.next()


@pytest.mark.parametrize("code", ["unknown_request", "request_expired"])
async def test_a_forgotten_stream_fails_alone(
    server: FakeServer, client: midstream.Client, peer: Peer, code: str
) -> None:
    lost, kept = await begin(client, peer, "lost"), await begin(client, peer, "kept")
    await peer.send(token(0, "a", "lost"))
    assert await lost.next()
    pausing = asyncio.create_task(lost.pause())
    await peer.receive(Pause)
    cut(peer)
    peer = await reconnected(server, "s1")
    await peer.send(error(code, "lost", (await peer.receive(Attach)).ref))
    await attach(peer, 0, "kept")
    await peer.send(token(0, "b", "kept"))
    for waiting in (lost.next(), pausing):
        with pytest.raises(midstream.ConnectionLost, match=r"so it is.*started again"):
            await waiting
    assert (lost.text, await kept.next()) == ("a", midstream.Chunk(0, 1, "b"))


@pytest.mark.parametrize("becomes", ["attached", "ended", "lost"])
async def test_a_fork_waits_until_it_is_known_what_becomes_of_its_stream(
    server: FakeServer, client: midstream.Client, peer: Peer, becomes: str
) -> None:
    """It may have to be started again first."""
    stream, peer, frame = await come_back(server, client, peer)
    forking = asyncio.create_task(client.fork(stream, request_id="f"))
    await pong(peer)
    await asyncio.gather(client.ping(), pong(peer))  # which comes behind all that was asked
    peer.seqs["r"] = 1
    match becomes:
        case "attached":
            await peer.send(Attached(request_id="r", pending=[], ref=frame.ref))
        case "ended":
            await peer.send(final("r", 0, "stop"))
        case _:
            await peer.send(error("request_expired", "r", frame.ref))
    asked = await peer.accept_start()
    assert asked.fork is not None
    assert asked.fork.request_id == "r"
    assert (await forking).request_id == "f"


async def test_a_fork_that_waits_keeps_nobody_at_a_server_that_goes_away(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream, peer, frame = await come_back(server, client, peer)
    forking = asyncio.create_task(client.fork(stream, request_id="f"))
    await pong(peer)
    await peer.send(error("unknown_request", "r", frame.ref))
    await peer.send(error("draining", "r", (await peer.receive(Start)).ref))
    peer = await reconnected(server, "s2")
    await peer.accept_start()
    await pong(peer)
    await peer.send(snapshot("r", 0, ""))
    assert (await peer.accept_start()).fork is not None
    assert (await forking).request_id == "f"


async def test_a_fork_of_one_that_waits_waits_for_that(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream, peer, frame = await come_back(server, client, peer)
    asked: list[tuple[Any, str]] = [(stream, "f"), ("f", "g")]
    forking = [asyncio.create_task(client.fork(of, request_id=name)) for of, name in asked]
    await pong(peer)
    await asyncio.gather(client.ping(), pong(peer))
    await peer.send(Attached(request_id="r", pending=[], ref=frame.ref))
    for name in ("f", "g"):
        assert (await peer.accept_start()).request_id == name
    assert [fork.request_id for fork in await asyncio.gather(*forking)] == ["f", "g"]


async def test_forks_of_what_will_never_be_are_asked_for_and_refused(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream, peer, _ = await come_back(server, client, peer)
    forking = asyncio.create_task(client.fork(stream, request_id="f"))
    lost = [asyncio.create_task(client.fork(of, request_id=name)) for of, name in (("f", "g"), ("h", "h"))]
    await pong(peer)
    assert (await peer.receive(Start)).request_id == "h"
    await asyncio.gather(client.ping(), pong(peer))
    cut(peer)
    peer = await reconnected(server, "s2")
    await peer.receive(Attach)
    asked = [await peer.receive(Start)]
    await pong(peer)
    forking.cancel()
    asked.append(await peer.receive(Start))
    assert [start.request_id for start in asked] == ["h", "g"]
    for start in asked:
        await peer.send(error("unknown_request", start.request_id, start.ref))
    for one in lost:
        with pytest.raises(midstream.UnknownRequest):
            await one


async def test_one_that_has_begun_is_not_left_with_its_stream_that_another_server_is_to_start(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream = await begin(client, peer)
    forking = asyncio.create_task(client.fork(stream, request_id="f"))
    await peer.accept_start()
    fork = await forking
    cut(peer)
    peer = await reconnected(server, "s1")
    asked = [await peer.receive(Attach), await peer.receive(Attach)]
    await pong(peer)
    await peer.send(error("unknown_request", "r", asked[0].ref))
    await peer.send(error("draining", "r", (await peer.receive(Start)).ref))
    await asyncio.gather(client.ping(), pong(peer))  # it is still here
    peer.seqs["f"] = 1
    await peer.send(Attached(request_id="f", pending=[], ref=asked[1].ref))
    await peer.send(Token(request_id="f", index=0, count=1, delta="a"))
    assert await fork.next() == midstream.Chunk(0, 1, "a")


async def test_a_stream_cancelled_because_nobody_came_back_does_not_seem_whole(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream = await begin(client, peer)
    cut(peer)
    peer = await reconnected(server, "s1")
    await peer.receive(Attach)
    peer.seqs["r"] = 1
    await peer.send(token(0, "a"))
    await peer.send(final("r", 1, "cancelled", stop_reason="detached"))
    assert await stream.next()
    with pytest.raises(midstream.ConnectionLost, match="nobody came back"):
        await stream.next()


async def test_a_stream_that_had_gone_on_when_it_was_here_again_is_recorded_as_far_as_it_was_told(
    server: FakeServer, client: midstream.Client, peer: Peer, tmp_path: Path
) -> None:
    def recorded(index: int, delta: str) -> Token:
        return replace(token(index, delta), tokens=[index], logprobs=[TokenLogprob(index, -1.0)])

    with client.record(tmp_path / "r"):
        stream = await begin(client, peer)
        await peer.send(recorded(0, "a"))
        assert await stream.next()
        cut(peer)
        peer = await reconnected(server, "s1")
        frame = await peer.receive(Attach)
        await pong(peer)
        await peer.send(error("unknown_request", "r", frame.ref))
        await peer.receive(Start)
        cut(peer)
        peer = await reconnected(server, "s2")
        await peer.accept_start()
        await peer.send(replace(snapshot("r", 3, "abc"), tokens=[0, 1, 2]))
        await peer.send(recorded(3, "d"))
        await peer.send(final("r", 4, "stop"))
        assert await _read(stream) == ["bc", "d"]
    (record,) = midstream.read_records(tmp_path / "r")
    assert [type(line).__name__ for line in record.lines] == ["Tokens", "Lost"]


@pytest.mark.parametrize("how", ["refused for now", "not heard"])
async def test_a_result_that_waited_is_told_until_it_is_heard_where_the_stream_was_started_again(
    server: FakeServer, client: midstream.Client, peer: Peer, how: str
) -> None:
    """Whoever gave it has had his answer."""
    options: Any = {"tools": [WEATHER], "on_tool_call": "pause", "return_tokens": True}
    starting = asyncio.create_task(client.start(messages=[USER], request_id="r", **options))
    await peer.accept_start()
    stream = await starting
    calls = [
        SnapshotCall(index=at, call_id=name, name="weather", arguments="{}", end=at + 1)
        for at, name in enumerate("ab")
    ]
    for call in calls:
        where: dict[str, Any] = {"request_id": "r", "index": call.index, "call_id": call.call_id}
        await peer.send(Token(request_id="r", index=call.index, count=1, delta="", tokens=[7]))
        await peer.send(ToolCall(**where, name="weather"))
        await peer.send(ToolArguments(**where, count=1, delta="{}"))
        await peer.send(ToolCallDone(**where, end=call.end or 0))
    giving = asyncio.create_task(stream.tool_result("a", "mild"))
    given = await peer.receive(ToolResult)
    await peer.send(Injected(request_id="r", index=2, count=0, ref=given.ref))
    await giving
    cut(peer)
    peer = await reconnected(server, "s1")
    frame = await peer.receive(Attach)
    await pong(peer)
    await peer.send(error("unknown_request", "r", frame.ref))
    peer.seqs["r"] = 0
    await peer.accept_start()
    begun = replace(snapshot("r", 2, ""), tokens=[7, 7], tool_calls=calls, paused="tool_call")
    await peer.send(begun)
    again = await peer.receive(ToolResult)
    if how == "refused for now":
        await peer.send(error("rate_limited", "r", again.ref))
    else:
        cut(peer)
        peer = await reconnected(server, "s2")
        await attach(peer, 1)
        await pong(peer)
    assert await peer.receive(ToolResult) == given
    await peer.send(Injected(request_id="r", index=2, count=0, ref=given.ref))
    await peer.send(final("r", 2, "stop"))
    assert await _read(stream) == ["", ""]


async def test_a_run_that_fails_while_the_connection_is_gone_says_so_at_once(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    asked, refused = asyncio.Event(), asyncio.Event()

    async def approve(call: midstream.Call) -> bool:
        asked.set()
        await refused.wait()
        raise OSError("nobody is there")

    agent = midstream.Agent(tools=[WEATHER], approve=approve)
    running = asyncio.create_task(client.run(agent, "Hi", request_id="r"))
    await peer.accept_start()
    run = await running
    where: dict[str, Any] = {"request_id": "r", "index": 0, "call_id": "a"}
    await peer.send(token(0, ""))
    await peer.send(ToolCall(**where, name="weather"))
    await peer.send(ToolArguments(**where, count=1, delta="{}"))
    await peer.send(ToolCallDone(**where, end=1, approval=True))
    answering = asyncio.create_task(run.answer())
    await asked.wait()
    cut(peer)
    await reconnected(server, "s1")  # and nothing is said of the stream
    refused.set()
    with pytest.raises(OSError, match="nobody is there"):
        await answering


async def test_a_word_that_ends_it_may_be_any(client: midstream.Client, peer: Peer) -> None:
    stream = await begin(client, peer)
    await peer.send(final("r", 0, "stop", stop_reason="detached"))
    assert await stream.next() is None


async def test_a_stream_that_another_client_took_over_fails_here(
    client: midstream.Client, peer: Peer
) -> None:
    stream = await begin(client, peer)
    await peer.send(error("request_taken", "r"))
    with pytest.raises(midstream.RequestTaken):
        await stream.next()
    again = await begin(client, peer, "r2")
    assert again.state == "running"


async def test_what_another_client_took_over_is_neither_steered_nor_cancelled_from_here(
    client: midstream.Client, peer: Peer
) -> None:
    async with await begin(client, peer) as stream:
        await peer.send(error("request_taken", "r"))
        with pytest.raises(midstream.RequestTaken):
            await stream.next()
        for steering in (stream.pause(), stream.adjust(temperature=0), stream.cancel()):
            with pytest.raises(midstream.RequestTaken):
                await steering
        with pytest.raises(midstream.RequestTaken):
            stream.grant(100)
    pinging = asyncio.create_task(client.ping())
    ping = await peer.receive_frame()
    assert isinstance(ping, Ping), "nothing was said of the stream that another client has"
    await peer.send(Pong(ref=ping.ref))
    await pinging


# -- connections that do not come back -----------------------------------------------------------------


@pytest.mark.parametrize("code", [CloseCode.POLICY, CloseCode.TOO_LARGE, CloseCode.TAKEN_OVER, 4401, 1000])
async def test_what_is_not_worth_a_try_fails_at_once(
    server: FakeServer, client: midstream.Client, peer: Peer, code: int
) -> None:
    stream = await begin(client, peer)
    await peer.socket.close(code)
    with pytest.raises(midstream.ConnectionLost) as caught:
        await stream.next()
    assert (caught.value.code, caught.value.retryable, client.state) == (code, False, "closed")
    assert len(server.requests) == 1


async def test_trying_has_an_end(server: FakeServer, recorder: StateRecorder) -> None:
    async with midstream.connect(server.url, reconnect_s=0.3, on_state=recorder) as client:
        peer = await server.peer()
        stream = await begin(client, peer)
        server.status = 502
        cut(peer)
        with pytest.raises(midstream.ConnectionLost, match=r"could not be made again: .* 502") as caught:
            await stream.next()
        with pytest.raises(midstream.ConnectionLost):
            await client.ping()
        await recorder.until("closed")
    assert (caught.value.code, caught.value.retryable) == (1006, True)
    assert recorder.states == ["reconnecting", "closed"]
    assert len(server.requests) > 1


async def test_a_try_that_hangs_ends_with_the_time_for_trying() -> None:
    async with FakeServer() as server, CuttingProxy(port(server)) as proxy:
        client = await midstream.connect(proxy.url, reconnect_s=0.4)
        peer = await server.peer()
        stream = await begin(client, peer)
        proxy.cut_every_new("silence")
        cut(peer)
        with pytest.raises(midstream.ConnectionLost, match="could not be made again"):
            await stream.next()


@pytest.mark.parametrize(
    ("status", "headers", "said"),
    [(401, {}, "HTTP 401"), (404, {}, "HTTP 404"), (503, {"Retry-After": "3600"}, "HTTP 503")],
)
async def test_a_refusal_that_time_will_not_mend(
    server: FakeServer, client: midstream.Client, peer: Peer, status: int, headers: dict[str, str], said: str
) -> None:
    stream = await begin(client, peer)
    server.status, server.headers = status, headers
    cut(peer)
    with pytest.raises(midstream.ConnectionLost, match=said):
        await stream.next()
    assert len(server.requests) == 2


async def test_a_refused_client_is_told_when_to_come_again(server: FakeServer) -> None:
    server.status, server.headers = 429, {"Retry-After": "7"}
    with pytest.raises(midstream.RateLimited) as caught:
        await midstream.connect(server.url)
    assert caught.value.retry_after_ms == 7000


async def test_another_protocol_behind_the_address(server: FakeServer) -> None:
    async with FakeServer(first_event=error("forbidden")) as other, CuttingProxy(port(server)) as proxy:
        client = await midstream.connect(proxy.url)
        peer = await server.peer()
        stream = await begin(client, peer)
        proxy.redirect(port(other))
        cut(peer)
        with pytest.raises(midstream.ConnectionLost, match="so it is"):
            await stream.next()


@pytest.mark.parametrize("times", [{"reconnect_s": -1}, {"silence_s": 0}])
@pytest.mark.parametrize("number", [None, math.nan])
def test_times_are_checked(times: dict[str, float], number: float | None) -> None:
    (name,) = times
    wrong: Any = times if number is None else {name: number}
    with pytest.raises(ValueError, match=name):
        midstream.connect("http://h", **wrong)


async def test_a_silent_server_is_lost() -> None:
    async with FakeServer() as server, CuttingProxy(port(server)) as proxy:
        client = await midstream.connect(proxy.url, silence_s=0.3)
        stream = await begin(client, await server.peer())
        proxy.cut("silence")
        peer = await reconnected(server, "s1")
        await attach(peer, 0)
        await peer.send(token(0, "a"))
        assert await stream.next() == midstream.Chunk(0, 1, "a")
        await client.close()


async def test_so_is_one_that_takes_nothing_of_what_is_sent() -> None:
    """A ping would wait behind that, and never be missed."""
    async with FakeServer() as server:
        client = await midstream.connect(server.url, silence_s=0.3, reconnect_s=0)
        peer = await server.peer()
        peer.socket.transport.pause_reading()
        with pytest.raises(midstream.ConnectionLost):
            await client.start(prompt="x" * 2**24)
        await client.close()
        cut(peer)


async def test_one_is_there_whose_answers_wait_behind_what_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As behind a whole output on a slow line: any byte of that is a sign of life."""
    pinged = asyncio.Queue[None]()
    ping = ClientConnection.ping

    async def told(socket: ClientConnection, data: Any = None) -> Any:
        pinged.put_nowait(None)
        return await ping(socket, data)

    monkeypatch.setattr(ClientConnection, "ping", told)
    async with FakeServer() as server:
        client = await midstream.connect(server.url, silence_s=0.3, reconnect_s=0)
        peer = await server.peer()
        stream = await begin(client, peer)
        peer.socket.transport.pause_reading()  # no ping is answered
        long = msgspec.json.encode(replace(token(0, "a" * 1000), seq=1))
        message = WebSocketFrame(Opcode.TEXT, long).serialize(mask=False)
        reading = asyncio.create_task(stream.next())
        for at in range(0, len(message), 200):
            pinging = asyncio.create_task(pinged.get())
            await asyncio.wait((pinging, reading), return_when=asyncio.FIRST_COMPLETED)
            peer.socket.transport.write(message[at : at + 200])
        assert await reading == midstream.Chunk(0, 1, "a" * 1000)
        cut(peer)
        await client.close()


async def test_a_client_closes_though_its_server_takes_nothing() -> None:
    async with FakeServer() as server:
        client = await midstream.connect(server.url, silence_s=0.3)
        peer = await server.peer()
        peer.socket.transport.pause_reading()
        starting = asyncio.create_task(client.start(prompt="x" * 2**24))
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(midstream.ConnectionLost):
            await starting
        cut(peer)


@pytest.mark.parametrize(("moves", "waited"), [(False, [1, 2, 4]), (True, [1, 1, 1])])
async def test_what_dies_of_its_answer_is_asked_again_ever_later_where_no_stream_moves_on(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch, moves: bool, waited: list[float]
) -> None:
    waits: list[float | None] = []
    wait_s = Backoff.wait_s

    def at_once(backoff: Backoff, now: float, jitter: float, after_s: float) -> float:
        waits.append(wait_s(backoff, now, 1.0, after_s))
        return 0.0

    monkeypatch.setattr("midstream.backoff.BASE_S", 1.0)
    monkeypatch.setattr(Backoff, "wait_s", at_once)
    async with midstream.connect(server.url) as client:
        peer = await server.peer()
        stream = await begin(client, peer)
        for place in range(3):
            await peer.socket.close(CloseCode.INTERNAL)
            peer = await reconnected(server, f"s{place + 1}")
            await attach(peer, stream.index)
            await pong(peer)
            if moves:
                await peer.send(token(place, "a"))
                assert await stream.next()
    assert waits == waited


def port(server: FakeServer) -> int:
    return int(server.url.rpartition(":")[2])


# -- what is asked of the server for this --------------------------------------------------------------


async def test_a_stream_waits_for_its_client_as_long_as_that_tries(server: FakeServer) -> None:
    async with midstream.connect(server.url, reconnect_s=12.3) as client:
        peer = await server.peer()
        default = asyncio.create_task(client.start(prompt="Hi"))
        named = asyncio.create_task(client.start(prompt="Hi", on_disconnect="continue"))
        graced = asyncio.create_task(client.start(prompt="Hi", grace_ms=5))
        starts = [await peer.accept_start() for _ in range(3)]
        await asyncio.gather(default, named, graced)
    asked = [(start.on_disconnect, start.grace_ms) for start in starts]
    assert asked == [("pause", 12300), ("continue", None), ("pause", 5)]


@pytest.mark.parametrize("reconnect_s", [60, math.inf])
async def test_it_waits_no_longer_than_the_server_lets_any_stream_wait(reconnect_s: float) -> None:
    ready = replace(READY, limits={"max_grace_ms": 2000})
    async with (
        FakeServer(first_event=ready) as server,
        midstream.connect(server.url, reconnect_s=reconnect_s) as client,
    ):
        peer = await server.peer()
        default = asyncio.create_task(client.start(prompt="Hi"))
        graced = asyncio.create_task(client.start(prompt="Hi", grace_ms=3000))
        starts = [await peer.accept_start() for _ in range(2)]
        await asyncio.gather(default, graced)
    assert [start.grace_ms for start in starts] == [2000, 3000], "what is asked for is asked for"


async def test_a_client_that_does_not_come_back_asks_for_nothing(server: FakeServer) -> None:
    async with midstream.connect(server.url, reconnect_s=0) as client:
        peer = await server.peer()
        _, start = await asyncio.gather(client.start(prompt="Hi"), peer.accept_start())
    assert (start.on_disconnect, start.grace_ms) == ("cancel", None)


async def test_closing_cancels_what_nobody_asked_to_keep(server: FakeServer) -> None:
    async with midstream.connect(server.url) as client:
        peer = await server.peer()
        kept = client.start(prompt="Hi", request_id="kept", on_disconnect="pause")
        streams = [(await asyncio.gather(kept, peer.accept_start()))[0], await begin(client, peer, "dropped")]
        hearing = asyncio.create_task(_all(peer))
    assert await hearing == [Cancel(request_id="dropped")]
    assert peer.socket.close_code == 1000
    assert {stream.state for stream in streams} == {"running"}


async def test_closing_touches_no_stream_whose_name_was_never_said(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    stream, peer, _ = await come_back(server, client, peer)
    forking = asyncio.create_task(client.fork(stream, request_id="f"))
    await pong(peer)
    await asyncio.gather(client.ping(), pong(peer))  # which comes behind all that was asked
    closing = asyncio.create_task(client.close())
    assert await _all(peer) == [Cancel(request_id="r")]
    await closing
    with pytest.raises(midstream.ConnectionLost):
        await forking


async def _all(peer: Peer) -> list[object]:
    heard: list[object] = []
    try:
        while True:
            heard.append(await peer.receive_frame())
    except Exception as end:  # noqa: BLE001 - looked at
        assert type(end).__name__ == "ConnectionClosedOK"  # noqa: PT017 - it is the way out
    return heard


async def test_a_client_can_be_closed_while_it_tries(server: FakeServer, recorder: StateRecorder) -> None:
    client = await midstream.connect(server.url, on_state=recorder)
    peer = await server.peer()
    stream = await begin(client, peer)
    server.status = 503
    cut(peer)
    await recorder.until("reconnecting")
    await client.close()
    with pytest.raises(midstream.ConnectionLost) as caught:
        await stream.next()
    assert (caught.value.code, client.state) == (1000, "closed")


# -- no longer wanted ----------------------------------------------------------------------------------


async def test_a_stream_dropped_meanwhile_is_cancelled_when_it_is_back(
    server: FakeServer, client: midstream.Client, peer: Peer, recorder: StateRecorder
) -> None:
    stream = await begin(client, peer)
    cut(peer)
    await recorder.until("reconnecting")
    del stream
    peer = await reconnected(server, "s1")
    await attach(peer, 0)
    await peer.receive(Ping)
    assert (await peer.receive(Cancel)).request_id == "r"


async def test_leaving_a_with_block_meanwhile_waits_for_nobody(
    server: FakeServer, client: midstream.Client, peer: Peer, recorder: StateRecorder
) -> None:
    stream = await begin(client, peer)
    async with stream:
        cut(peer)
        await recorder.until("reconnecting")
    assert stream.final is None
    peer = await reconnected(server, "s1")
    await attach(peer, 0)
    await peer.receive(Ping)
    assert (await peer.receive(Cancel)).request_id == "r"


# -- taking over ---------------------------------------------------------------------------------------


async def test_a_stream_is_taken_over_from_its_first_token_on(
    server: FakeServer, client: midstream.Client, peer: Peer
) -> None:
    attaching = asyncio.create_task(client.attach("r", window=8))
    frame = await peer.receive(Attach)
    assert frame.after == -1
    await peer.send(started(Start(request_id="r", prompt="Hi")))
    await peer.send(token(0, "a"))
    await peer.send(Attached(request_id="r", ref=frame.ref))
    stream = await attaching
    assert (stream.text, stream.model, await stream.next()) == ("a", "toy", midstream.Chunk(0, 1, "a"))
    assert (await peer.receive(Grant)).limit == 8
    cut(peer)
    await attach(await reconnected(server, "s1"), 1)


async def test_one_that_was_not_to_be_had_in_time_is_left_as_it_was_and_had_by_whoever_asks_again(
    client: midstream.Client, peer: Peer
) -> None:
    taking = asyncio.create_task(client.attach("r"))
    asked = await peer.receive(Attach)
    taking.cancel()
    await asyncio.wait([taking])
    await peer.send(started(Start(request_id="r", prompt="Hi")))
    await peer.send(token(0, "a"))
    await peer.send(Attached(request_id="r", ref=asked.ref))
    pinging = asyncio.create_task(client.ping())
    await pong(peer)  # nothing stood before it
    await pinging
    taking = asyncio.create_task(client.attach("r"))
    again = await peer.receive(Attach)
    await peer.send(token(1, "b"))
    await peer.send(Attached(request_id="r", ref=again.ref))
    stream = await taking
    await peer.send(final("r", 2, "stop"))
    assert await _read(stream) == ["a", "b"]


async def test_one_that_has_ended_can_be_had_too(client: midstream.Client, peer: Peer) -> None:
    attaching = asyncio.create_task(client.attach("r", credit="auto"))
    frame = await peer.receive(Attach)
    peer.seqs["r"] = 3
    await peer.send(snapshot("r", 2, "hm"))
    await peer.send(final("r", 2, "stop"))
    await peer.send(Attached(request_id="r", ref=frame.ref))
    stream = await attaching
    assert await _read(stream) == ["hm"]


async def test_one_that_there_is_not(client: midstream.Client, peer: Peer) -> None:
    attaching = asyncio.create_task(client.attach("r"))
    await peer.send(error("unknown_request", "r", (await peer.receive(Attach)).ref))
    with pytest.raises(midstream.UnknownRequest):
        await attaching
    with pytest.raises(ValueError, match="window"):
        await client.attach("r", window=0)


async def test_taking_over_survives_a_loss(server: FakeServer, client: midstream.Client, peer: Peer) -> None:
    attaching = asyncio.create_task(client.attach("r"))
    frame = await peer.receive(Attach)
    await peer.send(started(Start(request_id="r", prompt="Hi")))
    cut(peer)
    peer = await reconnected(server, "s1")
    again = await peer.receive(Attach)
    assert (again.ref, again.after) == (frame.ref, 0)
    peer.seqs["r"] = 1
    await peer.send(Attached(request_id="r", ref=again.ref))
    assert (await attaching).state == "running"


# -- without async and await ---------------------------------------------------------------------------


async def test_the_synchronous_client_comes_back_too() -> None:
    states: list[str] = []

    def script(url: str) -> tuple[str, str]:
        with midstream.sync.connect(url, on_state=states.append) as client:
            assert client.complete(prompt="Hi", max_tokens=3).text == responder_text(3)
            loop.call_soon_threadsafe(proxy.cut, "reset")
            client.ping()
            while client.ready.session_id == "s1":
                client.ping()
            return client.complete(prompt="Hi", max_tokens=4).text, client.state

    loop = asyncio.get_running_loop()
    async with FakeServer(Responder()) as server, CuttingProxy(port(server)) as proxy:
        assert await asyncio.to_thread(script, proxy.url) == (responder_text(4), "open")
    assert states == ["reconnecting", "open", "closed"]


def test_credit_to_begin_with_is_no_limit_said_again() -> None:
    assert midstream.stream_core.StreamCore(None).limit is None
    assert midstream.stream_core.StreamCore(4, credit=Credit(limit=3)).limit == 3


# -- several servers -------------------------------------------------------------------------------


async def test_of_several_servers_each_has_its_turn() -> None:
    async with FakeServer() as one, FakeServer() as other, FakeServer(status=503) as full:
        waiting = {server: asyncio.create_task(server.peer()) for server in (one, other)}

        async def met() -> tuple[FakeServer, Peer]:
            done, _ = await asyncio.wait(waiting.values(), return_when=asyncio.FIRST_COMPLETED)
            server = next(server for server, task in waiting.items() if task in done)
            peer = waiting[server].result()
            waiting[server] = asyncio.create_task(server.peer())
            return server, peer

        async with midstream.connect([one.url, full.url, other.url]) as client:
            first, peer = await met()
            await begin(client, peer)
            cut(peer)
            second, peer = await met()
            assert second is not first
            assert (await peer.receive(Replace)).session_id
            await attach(peer, after=0)
            await pong(peer)
            cut(peer)
            third, peer = await met()
            assert third is first
            assert full.requests, "which was tried, too"
        for task in waiting.values():
            task.cancel()


async def test_a_first_connection_fails_where_no_server_is_there() -> None:
    async with FakeServer(status=503) as one, FakeServer(status=503) as other:
        with pytest.raises(midstream.Overloaded):
            await midstream.connect([one.url, other.url])
        assert (len(one.requests), len(other.requests)) == (1, 1)
    async with FakeServer(status=401) as one, FakeServer(status=401) as other:
        with pytest.raises(midstream.Unauthenticated):
            await midstream.connect([one.url, other.url])
        assert len(one.requests) + len(other.requests) == 1, "which the other would say, too"
    with pytest.raises(ValueError, match="expected at least one"):
        midstream.connect([])
