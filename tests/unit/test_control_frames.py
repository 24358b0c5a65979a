"""What a body that steers a stream may be, and when it is answered."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext

import pytest
from starlette.routing import Route
from starlette.types import Message, Scope

from midstream import protocol
from midstream.protocol import Params
from realtime.access.authentication import Credentials
from realtime.access.client_secrets import ClientSecrets
from realtime.http.follow_and_steer_endpoint import ControlResponse, StreamEndpoint, read_frame
from realtime.http.guard import CALLER, HOLDER
from realtime.http.held_bodies import holding_bodies
from realtime.http.listener import HttpListener
from realtime.http.request_work import MOST_WAITING, RequestWork
from realtime.http.sse import SseTimeouts
from realtime.hub.observers import Caller
from realtime.refusal import Refusal
from realtime.tenants.allowance import Holder
from realtime.work_ledger import PayerWork
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import LONG, SIZE, TENANT, endless, rest, start
from tests.fakes.simulated_server import SimulatedServer


@pytest.mark.parametrize("body", [b'{"type":"pause"}', b'{"type":"pause","request_id":"\\u00e9"}'])
def test_the_path_says_whose_frame_it_is(body: bytes) -> None:
    assert read_frame(body, "\u00e9") == protocol.Pause(request_id="\u00e9")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"type":"ping"}',
        b'{"type":"pause","request_id":"another"}',
        b'{"type":"pause","request_id":null}',
        b'{"type":"pause","request_id":1e999}',
        b'{"type":"pause","ref":"\xff"}',
        b'{"type":"pause","request_id":"\xff"}',
        b'{"type":"pause","\xff":1}',
        b'{"type":"\xff"}',
        b'{"type":"pause","ref":"\\ud800"}',
        b'{"type":' + b"[" * 100_000,
    ],
)
def test_whatever_is_no_frame_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        read_frame(body, "x")
    assert refused.value.status == 400


def test_nonsense_is_not_made_objects_of() -> None:
    body = b'{"type":"pause","x":[' + b"[]," * 60_000 + b"[]]}"
    tracemalloc.start()
    try:
        assert read_frame(body, "x") == protocol.Pause(request_id="x")
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body)
    finally:
        tracemalloc.stop()


# -- when it is answered -----------------------------------------------------------------------------


async def status(
    server: SimulatedServer,
    frame: protocol.StreamFrame,
    waiting: Callable[[], AbstractContextManager[None]] = nullcontext,
) -> int:
    """Of the answer to a frame that is sent by HTTP."""
    work, sent = PayerWork(), list[Message]()
    listener = HttpListener(server.hub, Caller("http", tenant=TENANT), work, keeps_events=False)
    scope: Scope = {"type": "http"}

    async def nothing_more() -> Message:
        return await asyncio.get_running_loop().create_future()  # type: ignore[no-any-return]

    async def send(message: Message) -> None:
        sent.append(message)

    await ControlResponse(server.hub, TENANT, frame, listener, waiting)(scope, nothing_more, send)
    return int(sent[0]["status"])


async def test_a_cancel_waits_for_the_text_that_it_came_behind() -> None:
    server = SimulatedServer(SIZE)
    listener = RecordingListener(server)
    listener.send(endless(prompt=LONG))  # others have their turn between the text and the cancel: it may run
    cancelled = asyncio.create_task(status(server, protocol.Cancel(request_id="a")))
    while not cancelled.done():
        rest(server)
        await asyncio.sleep(0)
    assert listener.final.finish_reason == "cancelled"
    assert await cancelled == 200


async def test_of_frames_that_wait_for_their_answer_there_are_so_many_of_a_payer() -> None:
    """As where an engine hangs."""
    server, requests, payer = SimulatedServer(SIZE), RequestWork(), PayerWork()
    listener = RecordingListener(server)
    listener.send(endless())
    rest(server)

    def ask() -> asyncio.Task[int]:
        pause = protocol.Pause(request_id="a")  # so many adjusts would be too much for its stream
        return asyncio.create_task(status(server, pause, lambda: requests.waiting(payer)))

    asked = [ask() for _ in range(MOST_WAITING)]
    await asyncio.sleep(0)
    assert await ask() == 429
    assert not any(one.done() for one in asked)
    for one in asked:
        one.cancel()
    await asyncio.wait(asked)
    assert not requests._waiting


async def test_a_cancel_is_not_refused_for_what_else_of_its_payer_waits_but_for_other_cancels() -> None:
    """Also before it is its turn to be read."""
    server, requests = SimulatedServer(SIZE), RequestWork()
    credentials = Credentials(ClientSecrets(server.hub.deposits))
    listener = RecordingListener(server)
    listener.send(endless())
    rest(server)
    most = 1 << 20
    endpoint = StreamEndpoint(server.hub, credentials, requests, most, SseTimeouts())
    control = holding_bodies(most, Route("/", endpoint.control, methods=["POST"])).app

    async def said(body: bytes) -> int:
        holder, caller = Holder(TENANT), Caller("http", tenant=TENANT)
        asked = {"type": "http", "method": "POST", "path": "/", "headers": [], "query_string": b""}
        scope: Scope = asked | {"path_params": {"request_id": "a"}, HOLDER: holder, CALLER: caller}
        parts, sent = [body], list[Message]()

        async def receive() -> Message:
            if not parts:
                await asyncio.get_running_loop().create_future()
            return {"type": "http.request", "body": parts.pop(), "more_body": False}

        async def send(message: Message) -> None:
            sent.append(message)

        await control(scope, receive, send)
        return int(sent[0]["status"])

    payer = requests.of(Caller("http", tenant=TENANT))
    with ExitStack() as others:
        for _ in range(MOST_WAITING):
            others.enter_context(requests.waiting(payer))
        with pytest.raises(Refusal, match="wait to be answered"):
            await said(b'{"type": "pause"}')
        cancelled = asyncio.create_task(said(b'{"type": "cancel"}'))
        while not cancelled.done():
            rest(server)
            await asyncio.sleep(0)
        assert await cancelled == 200
    assert listener.final.finish_reason == "cancelled"
    with ExitStack() as others:
        for _ in range(MOST_WAITING):
            others.enter_context(requests.waiting(payer, is_stop=True))
        with pytest.raises(Refusal, match="wait to be answered"):
            await said(b'{"type": "cancel"}')


async def test_what_has_no_answer_takes_effect_before_that_is_said() -> None:
    server = SimulatedServer(SIZE)
    listener = RecordingListener(server)
    listener.send(start(prompt=LONG, credit=protocol.Credit(limit=1)))
    assert await status(server, protocol.Grant(request_id="a", limit=3)) == 204
    rest(server)
    assert [type(event).__name__ for event in listener.heard].count("Token") == 3


async def test_a_cancel_of_what_ends_before_its_turn_is_answered() -> None:
    server = SimulatedServer(SIZE)
    listener = RecordingListener(server)
    listener.send(start(params=Params(max_tokens=2, ignore_eos=True)))
    listener.send(protocol.Inject(request_id="a", text=LONG))
    cancelled = asyncio.create_task(status(server, protocol.Cancel(request_id="a")))
    await asyncio.sleep(0)  # until it waits behind the text
    rest(server)
    assert listener.final.finish_reason == "length"
    assert await asyncio.wait_for(cancelled, 10) == 204
