"""The collector sees what lives once, and what died late in the end."""

from __future__ import annotations

import gc
import math
import subprocess
import sys

import pytest

from realtime import garbage
from realtime.garbage import ALL_AGAIN_S, FEW, RARELY_S

MANY = 200_000
SEEN = f"""
import asyncio, gc, weakref
from realtime import garbage

standing = [[] for _ in range({MANY})]
garbage.look_at_news_alone()
alive, most = [], 0
for _ in range({MANY}):
    alive.append([])
    if len(alive) % 100 == 0:
        most = max(most, len(gc.get_objects()))

class Ring:
    def __init__(self):
        self.ring = self

ring = Ring()
gone = weakref.ref(ring)
gc.collect()
del ring
gc.collect()
before = gone() is not None

async def later():
    garbage.ALL_AGAIN_S = 0
    task = asyncio.create_task(garbage.look_at_all_again())
    while gone() is not None:
        await asyncio.sleep(0)
    task.cancel()

asyncio.run(later())
print(most, before, gone())
"""


FLOOD = f"""
import asyncio, gc
from realtime import garbage

class Ring:
    alive = 0
    def __init__(self):
        self.ring = self
        Ring.alive += 1
    def __del__(self):
        Ring.alive -= 1

garbage.MUCH, garbage.GLANCE_S = {MANY // 10}, 0
garbage.look_at_news_alone()
most = 0

async def flood():
    global most
    task = asyncio.create_task(garbage.look_at_all_again())
    alive = []
    for number in range({MANY}):
        alive.append(Ring())
        if number % 1000 == 0:
            gc.collect()
            alive.clear()
            most = max(most, Ring.alive)
            await asyncio.sleep(0)
    task.cancel()

asyncio.run(flood())
print(most)
"""


def test_what_dies_in_a_flood_is_not_kept_for_minutes() -> None:
    done = subprocess.run([sys.executable, "-c", FLOOD], capture_output=True, text=True, check=True)
    assert int(done.stdout) < MANY / 2


def test_each_look_is_short_and_nothing_is_kept_for_ever() -> None:
    done = subprocess.run([sys.executable, "-c", SEEN], capture_output=True, text=True, check=True)
    most, late, gone = done.stdout.split()
    assert int(most) < MANY / 8, "what a look may have before it"
    assert late == "True", "what was found alive is not seen again at once"
    assert gone == "None"


def test_the_more_live_the_more_rarely_they_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    counts, alive = 0, 10 * garbage.MUCH

    def counted() -> int:
        nonlocal counts
        counts += 1
        return alive

    monkeypatch.setattr(gc, "get_freeze_count", counted)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    standing = garbage.Standing()
    standing.looked_at()
    counts = 0
    for _ in range(alive // math.prod(garbage.THRESHOLDS)):
        standing.let_stay("stop", {"generation": 2})
        assert not standing.is_much
    assert counts == 1
    alive = 21 * garbage.MUCH
    for _ in range(alive // math.prod(garbage.THRESHOLDS)):
        standing.let_stay("stop", {"generation": 2})
    assert standing.is_much


def test_a_crowd_that_stays_is_not_looked_at_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    standing, alive = garbage.Standing(), garbage.MUCH // 4
    monkeypatch.setattr(gc, "get_freeze_count", lambda: alive)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    standing.looked_at()
    standing.held = lambda: 2 * garbage.MUCH * garbage.OBJECT_BYTES
    alive += 2 * garbage.MUCH
    for _ in range(alive // math.prod(garbage.THRESHOLDS)):
        standing.let_stay("stop", {"generation": 2})
        assert not standing.is_much
    standing.held = lambda: 0  # they have gone, and what they were has not
    for _ in range(alive // math.prod(garbage.THRESHOLDS)):
        standing.let_stay("stop", {"generation": 2})
    assert standing.is_much


def test_what_is_held_in_few_objects_lets_no_more_die_unseen_than_a_crowd_has(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    standing, alive = garbage.Standing(), garbage.MUCH
    monkeypatch.setattr(gc, "get_freeze_count", lambda: alive)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    standing.held = lambda: 0
    standing.looked_at()
    standing.held = lambda: 1 << 30
    alive += 2 * garbage.CROWD + garbage.MUCH
    for is_much in (False, True):
        for _ in range(alive // math.prod(garbage.THRESHOLDS)):
            standing.let_stay("stop", {"generation": 2})
        assert standing.is_much == is_much
        alive += 1


async def test_where_nothing_is_found_it_looks_more_and_more_rarely(monkeypatch: pytest.MonkeyPatch) -> None:
    found, waits = iter([0, 0, FEW + 1, 0, 0, 0, 0, 0]), list[float]()

    async def until_due(wait_s: float, is_quiet: object) -> None:
        waits.append(wait_s)

    monkeypatch.setattr(garbage, "_until_due", until_due)
    monkeypatch.setattr(gc, "unfreeze", lambda: None)
    monkeypatch.setattr(garbage, "_look_at_all", lambda: next(found))
    with pytest.raises(RuntimeError, match="StopIteration"):
        await garbage.look_at_all_again()
    assert [wait / ALL_AGAIN_S for wait in waits[:6]] == [1, 2, 4, 1, 2, 4]
    assert waits[-1] == RARELY_S


async def test_it_looks_when_nobody_waits_for_a_token_or_else_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    quiet = iter([False, False, True])
    monkeypatch.setattr(garbage, "GLANCE_S", 0)
    await garbage._until_due(0, lambda: next(quiet))
    assert next(quiet, None) is None
    monkeypatch.setattr(garbage, "RARELY_S", 0)
    await garbage._until_due(0, lambda: False)
