"""A connection is read when more is wanted, and when what was read is paid for: only then."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from realtime.transport.read_pace import ReadPace
from realtime.work_budget import FEW, WorkBudget, WorkBudgets


class Transport:
    def __init__(self) -> None:
        self._reads = True
        self.resumed = asyncio.Event()

    def reads(self) -> bool:
        return self._reads

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        self.resumed.set()


@pytest.fixture
async def transport() -> Transport:
    return Transport()


def paced(transport: Any, share: float) -> ReadPace:
    return ReadPace(transport, WorkBudget(time.monotonic(), share))


async def test_who_has_much_parsed_is_read_again_when_that_is_paid_for(transport: Transport) -> None:
    pace = paced(transport, share=1e6)
    pace.pay(0.001)
    assert transport.reads(), "a little is free"
    pace.pay(1000)
    assert not transport.reads()
    async with asyncio.timeout(10):
        await transport.resumed.wait()


async def test_neither_reason_to_wait_ends_the_other(transport: Transport) -> None:
    pace = paced(transport, share=1e6)
    pace.pay(1000)
    pace.pause_reading()
    pace.resume_reading()
    assert not transport.reads()
    pace.pause_reading()
    pace.stop()
    assert not transport.reads()
    pace.resume_reading()
    assert transport.reads()


async def test_whoever_reads_on_in_its_place_is_not_kept_from_it(transport: Transport) -> None:
    pace = paced(transport, share=1e-6)
    pace.pay(1000)
    pace.stop()
    assert transport.reads()


def test_of_many_those_who_have_paid_are_forgotten() -> None:
    budgets = WorkBudgets[int](share=1.0)
    owing = budgets.of(-1, 0.0)
    owing.pay(10 * FEW, 0.0)
    for who in range(FEW):
        budgets.of(who, 0.0)
    assert budgets.of(-1, 0.0) is owing
    assert len(budgets) < 10
