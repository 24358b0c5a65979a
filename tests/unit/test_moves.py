"""Blocks that come back late, into memory that has another owner by then: nobody's text shows it."""

from __future__ import annotations

import pytest

from engine import api
from tests.fakes.engines import TOY, Driver, Room, engine_of, greedy
from tests.fakes.movers import LateMover
from tests.fakes.oracle import oracle

ONE, OTHER, FILLER, SMALL = ([first + at for at in range(50)] for first in (0, 100, 200, 150))
ROOM = Room(kv_tokens=64, step_tokens=64, host_blocks=32)


def mover_of(driver: Driver) -> LateMover:
    mover = driver.engine._moves._mover
    assert isinstance(mover, LateMover)
    return mover


def coming_back(overlap: bool) -> Driver:
    """Stream 1 lies in the host's memory and nowhere else, while stream 3 runs on."""
    driver = Driver(engine_of(TOY, Room(kv_tokens=64, step_tokens=64, host_blocks=32, overlap=overlap)))
    driver.settle(api.Submit(1, ONE, greedy(60), credit=3))
    driver.settle(api.Pause(1, release=True))
    driver.settle(api.Submit(2, FILLER[:42], greedy(4), credit=9))
    driver.send(api.Submit(3, SMALL[:2], greedy(14), credit=99))
    driver.until(driver.has(3, 1))
    assert mover_of(driver).saved >= 12
    driver.send(api.Resume(1), api.Grant(1, 99))
    driver.step()
    return driver


def check(driver: Driver) -> None:
    driver.settle(*(api.Grant(at, 99) for at, told in driver.told.items() if not told.finish))
    for told in driver.told.values():
        oracle(TOY).check(told)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_stream_goes_on_with_what_came_back(overlap: bool) -> None:
    driver = coming_back(overlap)
    check(driver)
    assert mover_of(driver).brought
    resumed = [change for change in driver.told[1].changes if isinstance(change, api.Resumed)]
    assert [change.recomputed for change in resumed] == [0]
    assert driver.told[1].known == 64


@pytest.mark.parametrize("overlap", [False, True])
def test_what_comes_for_a_stream_that_is_gone_harms_nobody(overlap: bool) -> None:
    driver = coming_back(overlap)
    driver.send(api.Cancel(1), api.Submit(4, OTHER[:44], greedy(9), credit=99))
    driver.step()
    assert driver.told[1].finish == api.Finish("cancelled")
    assert mover_of(driver).under_way
    check(driver)
    assert mover_of(driver).fences == 1
    assert len(driver.told[4].tokens) == 9


@pytest.mark.parametrize("overlap", [False, True])
def test_what_was_rewound_before_it_set_out_does_not_come(overlap: bool) -> None:
    driver = Driver(engine_of(TOY, Room(kv_tokens=64, step_tokens=64, host_blocks=32, overlap=overlap)))
    driver.settle(api.Submit(1, ONE[:4], greedy(60), credit=49))
    driver.settle(api.Pause(1, release=True))
    driver.settle(api.Submit(2, FILLER[:42], greedy(4), credit=9))
    driver.send(api.Submit(3, SMALL[:2], greedy(14), credit=99))
    driver.until(driver.has(3, 1))
    driver.send(api.Resume(1), api.Truncate(1, 2), api.Submit(4, OTHER[:40], greedy(9), credit=99))
    driver.step(2)
    assert mover_of(driver).brought <= 2
    check(driver)


def test_where_nobody_else_runs_it_is_waited_for() -> None:
    driver = Driver(engine_of(TOY, ROOM))
    driver.settle(api.Submit(1, ONE, greedy(60), credit=3))
    driver.settle(api.Pause(1, release=True))
    driver.settle(api.Submit(2, FILLER[:42], greedy(4), credit=9))
    driver.send(api.Resume(1), api.Grant(1, 99))
    driver.step(3)
    assert mover_of(driver).brought
    assert len(driver.told[1].tokens) == 4
    check(driver)
