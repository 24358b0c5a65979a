"""What HTTP requests have the event loop do: in turn, and paid for by whoever asks."""

from __future__ import annotations

import asyncio
import time

import pytest
from starlette.requests import Request
from starlette.responses import Response

from realtime.http.guard import CALLER
from realtime.http.request_work import FEW, MOST_WAITING, CallerWork, RequestWork
from realtime.hub.observers import Caller
from realtime.pieces import Pieces, in_one
from realtime.refusal import Refusal
from realtime.work_budget import BURST_S, steering_s
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


async def test_a_piece_that_is_refused_is_paid_for_as_well(slept: list[float]) -> None:
    work = CallerWork()

    def refuse() -> None:
        raise Refusal("invalid_frame", "no")

    for _ in range(200):
        with pytest.raises(Refusal):
            await work.do(refuse)
    assert slept[-1] > 0


async def test_what_others_have_to_do_for_it_is_paid_for_too(slept: list[float]) -> None:
    work = CallerWork()
    await work.do(lambda: None, price_s=1.0)
    assert slept[-1] > 1


async def test_who_goes_away_leaves_what_is_owed_to_the_callers_next(slept: list[float]) -> None:
    work = CallerWork()
    paying = asyncio.create_task(work.do(lambda: None, price_s=1.0))
    await asyncio.sleep(0)
    assert slept[-1] > 1
    paying.cancel()
    await asyncio.wait([paying])
    assert paying.cancelled()
    slept.clear()

    waited_before = await work.do(lambda: list(slept))
    assert waited_before
    assert waited_before[0] > 1


def test_a_long_text_costs_what_a_thread_works_at_it() -> None:
    assert steering_s(0) < 0.001
    assert 0.01 < steering_s(1_000_000) < 0.1


async def test_a_caller_is_a_tenant_at_an_address() -> None:
    work = RequestWork()
    alice = work.of(Caller("http", address="2001:db8::1", tenant="alice"))
    assert work.of(Caller("http", "/v1/streams", "2001:db8::2", "alice")) is alice, "a /64 is one"
    assert work.of(Caller("http", address="2001:db8::1", tenant="bob")) is not alice
    assert work.of(Caller("http", address="10.0.0.1", tenant="alice")) is not alice


async def test_who_has_paid_is_forgotten_and_who_owes_is_not(slept: list[float]) -> None:
    work = RequestWork()
    debtor = Caller("http", address="debtor")
    owing = work.of(debtor)
    await owing.do(lambda: None, price_s=100.0)
    for number in range(3 * FEW):
        work.of(Caller("http", address=str(number)))
    assert work.of(debtor) is owing
    assert len(work) <= FEW + 1


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
    work.of(caller)._budget.pay(1000, time.monotonic())  # a long wait
    waiting = asyncio.create_task(work.response(request, make))
    await asyncio.sleep(0)
    gone.set()
    assert (await waiting).body == b""
    assert made == ["made"]


async def test_others_have_their_turn_between_the_pieces_of_a_request(slept: list[float]) -> None:
    def pieces() -> Pieces[str]:
        for _ in range(100):
            yield
        return "done"

    assert await CallerWork().finish(pieces()) == "done"
    assert len(slept) > 20


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
    with pytest.raises(Refusal, match="wait for their turn"):
        await ask(caller)
    assert (await ask(another)).body == b"told"
    for task in waiting:
        task.cancel()
    await asyncio.wait(waiting)
    assert not work.of(caller).waiting
