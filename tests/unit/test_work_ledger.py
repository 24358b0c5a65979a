"""What anybody has the event loop do: in turn, and paid for in one place."""

from __future__ import annotations

import asyncio
import gc

import pytest

from realtime.pieces import Pieces
from realtime.refusal import Refusal
from realtime.work_budget import TURN_S
from realtime.work_ledger import FEW, PayerWork, WorkLedger
from tests.fakes.work_clock import a_millisecond_a_piece


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    return a_millisecond_a_piece(monkeypatch)


async def test_a_piece_that_is_refused_is_paid_for_as_well(slept: list[float]) -> None:
    work = PayerWork()

    def refuse() -> None:
        raise Refusal("invalid_frame", "no")

    for _ in range(200):
        with pytest.raises(Refusal):
            await work.do(refuse)
    assert slept[-1] > 0


async def test_what_others_have_to_do_for_it_is_paid_for_too(slept: list[float]) -> None:
    work = PayerWork()
    await work.do(lambda: None, price_s=1.0)
    assert slept[-1] > 1


async def test_who_goes_away_leaves_what_is_owed_to_the_payers_next(slept: list[float]) -> None:
    work = PayerWork()
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


async def test_others_have_their_turn_between_the_pieces_of_a_request(slept: list[float]) -> None:
    def pieces() -> Pieces[str]:
        for _ in range(100):
            yield
        return "done"

    assert await PayerWork().finish(pieces()) == "done"
    assert len(slept) > 20


async def test_whoever_had_much_done_in_a_turn_is_free_again_in_the_next() -> None:
    work = PayerWork()
    assert work.owe(TURN_S / 2) is None
    free = [work.is_free]
    assert work.owe(TURN_S / 2) == 0
    free.append(work.is_free)
    await asyncio.sleep(0)
    free.append(work.is_free)
    work.owe(1000)
    await asyncio.sleep(0)
    free.append(work.is_free)
    assert free == [True, False, True, False], "at last until it is paid for"


async def test_who_has_paid_and_gone_is_forgotten_and_who_owes_or_is_here_is_not() -> None:
    ledger = WorkLedger()
    here = ledger.of("here")
    ledger.of("debtor").owe(100.0)
    for number in range(3 * FEW):
        ledger.of(number)
    gc.collect()
    assert ledger.of("here") is here
    assert not ledger.of("debtor").is_unspent
    assert len(ledger) <= FEW + 2
