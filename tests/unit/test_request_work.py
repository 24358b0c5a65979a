"""What HTTP requests have the event loop do: in turn, and paid for by whoever asks."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import Response

from realtime.http.guard import CALLER
from realtime.http.request_work import MOST_WAITING, SMALL, RequestWork
from realtime.hub.observers import Caller
from realtime.pieces import Pieces, in_one
from realtime.refusal import Refusal
from realtime.tenants.allowance import LOCAL
from realtime.transport import http_protocol, websocket_protocol
from realtime.transport.http_protocol import HttpLimits
from realtime.transport.websocket_protocol import WebSocketLimits
from realtime.work_budget import BURST_S, steering_s
from realtime.work_ledger import WorkLedger
from tests.fakes.work_clock import a_millisecond_a_piece


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return a_millisecond_a_piece(monkeypatch)


async def test_a_caller_pays_for_all_its_requests_together(slept: list[float]) -> None:
    work = RequestWork()
    done: list[int] = []

    async def request(number: int) -> None:
        await work.of(Caller("http", address="10.0.0.1")).do(lambda: done.append(number))

    await asyncio.gather(*map(request, range(300)))
    assert done == list(range(300)), "in turn"
    free = int(BURST_S * 1000)
    assert not any(slept[: free // 5 - 1]), "a burst costs nothing, and others have their turn in between"
    assert len(slept) > free // 5 + (300 - free) - 10
    assert min(slept[-50:]) > 0, "what goes beyond it is waited for"


def test_a_long_text_costs_what_a_thread_works_at_it() -> None:
    assert steering_s(0) < 0.001
    assert 0.01 < steering_s(1_000_000) < 0.1


async def test_a_tenant_pays_for_all_its_keys_and_without_one_an_address_does() -> None:
    work = RequestWork()
    alice = work.of(Caller("http", address="10.0.0.1", tenant="alice", key="phone"))
    assert work.of(Caller("websocket", address="10.0.0.2", tenant="alice", key="laptop")) is alice
    assert work.of(Caller("http", address="10.0.0.1", tenant="bob", key="bob")) is not alice
    somebody = work.of(Caller("http", address="2001:db8::1", tenant=LOCAL))
    assert work.of(Caller("http", "/v1/streams", "2001:db8::2", LOCAL)) is somebody, "a /64 is one"
    other = work.of(Caller("http", address="10.0.0.1", tenant=LOCAL))
    assert other is not somebody
    assert len({payer.number for payer in (alice, somebody, other)}) == 3
    elsewhere = RequestWork().of(Caller("http", address="10.0.0.3", tenant="alice", key="pad"))
    assert elsewhere.number == alice.number, "engines know it by the same at each gateway"


async def test_whoever_is_gone_is_worked_for_no_longer() -> None:
    caller, gone = Caller("http", address="10.0.0.1"), asyncio.Event()

    async def receive() -> dict[str, str]:
        await gone.wait()
        return {"type": "http.disconnect"}

    request = Request({"type": "http", CALLER: caller}, receive)
    work, made = RequestWork(), list[str]()

    def make() -> Response:
        made.append("made")
        return Response("for somebody")

    assert (await work.response(request, make)).body == b"for somebody"
    work.of(caller).owe(1000)  # a long wait
    waiting = asyncio.create_task(work.response(request, make))
    await asyncio.sleep(0)
    gone.set()
    assert (await waiting).body == b""
    assert made == ["made"]


async def test_no_more_brief_requests_of_a_caller_wait_than_may() -> None:
    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    caller, another = (Caller("http", address=address) for address in ("10.0.0.1", "10.0.0.2"))
    work = RequestWork()

    def ask(who: Caller) -> asyncio.Task[Response]:
        request = Request({"type": "http", CALLER: who}, receive)
        return asyncio.create_task(work.brief_response(request, in_one(lambda: Response("told"))))

    work.of(caller).owe(1000)  # a long wait
    waiting = [ask(caller) for _ in range(MOST_WAITING)]
    await asyncio.sleep(0)
    with pytest.raises(Refusal, match="wait to be answered"):
        await ask(caller)
    assert (await ask(another)).body == b"told"
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert not work._waiting


async def test_brief_answers_of_a_caller_are_made_one_after_the_other_and_others_meanwhile(
    slept: list[float],
) -> None:
    """Of two hundred and fifty listings none is half made but one."""
    work, made = RequestWork(), list[str]()

    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    def pieces(name: str) -> Pieces[Response]:
        for _ in range(20):
            made.append(name)
            yield
        return Response()

    async def ask(name: str, address: str) -> None:
        request = Request({"type": "http", CALLER: Caller("http", address=address)}, receive)
        await work.brief_response(request, pieces(name))

    await asyncio.gather(ask("a", "10.0.0.1"), ask("b", "10.0.0.1"), ask("c", "10.0.0.2"))
    assert [name for name in made if name != "c"] == ["a"] * 20 + ["b"] * 20
    assert made.index("c") < made.index("b")


async def test_large_answers_that_nobody_reads_are_so_many_of_a_caller(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A listing may have a megabyte, and thousands of connections may wait for one."""
    monkeypatch.setattr("realtime.http.request_work.MOST_UNREAD", 2 * (SMALL + 1))
    work, caller, another = RequestWork(), Caller("http", address="a"), Caller("http", address="b")
    goes = asyncio.Event()

    async def receive() -> dict[str, str]:
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        await goes.wait()

    async def ask(who: Caller, size: int) -> asyncio.Task[None]:
        scope = {"type": "http", CALLER: who}
        told = in_one(lambda: Response(size * b"x"))
        answer = await work.brief_response(Request(scope, receive), told)
        sending = asyncio.create_task(answer(scope, receive, send))
        await asyncio.sleep(0)
        return sending

    unread = [await ask(caller, SMALL + 1), await ask(caller, SMALL + 1), await ask(caller, SMALL)]
    with pytest.raises(Refusal, match="wait to be read"):
        await ask(caller, SMALL + 1)
    unread.append(await ask(another, SMALL + 1))
    unread.pop(0).cancel()
    await asyncio.sleep(0)
    unread.append(await ask(caller, SMALL + 1))
    goes.set()
    await asyncio.gather(*unread)
    assert not work._unread


def test_bytes_and_requests_are_paid_for_from_one_ledger_though_nobody_has_paid_into_it_yet() -> None:
    ledger = WorkLedger()
    http: Any = http_protocol.protocol_class(HttpLimits(), ledger=ledger)
    websocket: Any = websocket_protocol.protocol_class(WebSocketLimits(), ledger=ledger)
    assert http.ledger is ledger
    assert websocket.ledger is ledger
    asked = RequestWork(ledger).of(Caller("http", address="10.0.0.1"))
    assert asked is ledger.of("10.0.0.1")
