"""Reading: no text of a client, and no list, takes the event loop longer than it must, or grows dearer as it
grows.

Each reader of `worst_texts.py` reads each of its texts, as much of it as is read at once, and by the time of
the processor that its thread had. What takes long reads a quarter of it as well.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from typing import Any, NamedTuple

from bench.reliability.growth import LONG_MS, MOST_GROWTH, MOST_MS, QUARTER, TOLD, TRIES, WORKERS
from bench.reliability.worst_texts import READERS, REFUSED, Work


class Cost(NamedTuple):
    what: str
    ms: float
    of_a_quarter_ms: float | None  # None where it is too little to be looked at
    in_a_turn: bool

    @property
    def is_too_much(self) -> bool:
        grown = self.of_a_quarter_ms is not None and self.ms > MOST_GROWTH * self.of_a_quarter_ms
        return grown or (self.in_a_turn and self.ms > MOST_MS)

    def __str__(self) -> str:
        quarter = "" if self.of_a_quarter_ms is None else f", {self.of_a_quarter_ms:.1f} ms a quarter"
        return f"{self.what}: {self.ms:.1f} ms{quarter}"


async def measure(scale: float) -> dict[str, Any]:
    loop, costs = asyncio.get_running_loop(), list[Cost]()
    with ProcessPoolExecutor(WORKERS) as pool:
        jobs = [loop.run_in_executor(pool, tried, name, scale) for name in READERS]
        for at, job in enumerate(asyncio.as_completed(jobs), 1):
            costs += (found := await job)
            print(f"{at} of {len(jobs)}: {max(found, key=lambda one: one.ms)}", file=sys.stderr, flush=True)
    costs.sort(key=lambda cost: cost.ms, reverse=True)
    too_much = [str(cost) for cost in costs if cost.is_too_much]
    return {
        "name": "reading",
        "readers": len(READERS),
        "texts and lists": len(costs),
        "the longest": [str(cost) for cost in costs[:TOLD]],
        "too much": too_much,
        "goal": f"none takes a turn of more than {MOST_MS:g} ms, and none that takes over {LONG_MS:g} ms "
        f"more than {MOST_GROWTH:g} times as long where it is {QUARTER} times as long",
        "met": not too_much,
    }


def tried(name: str, scale: float) -> list[Cost]:
    costs = []
    gc.disable()  # what it would look at is of others
    for what, made, _, most, in_a_turn in READERS[name]():
        times = max(QUARTER, int(scale * most))
        ms = _ms(made(times))
        quarter = _ms(made(times // QUARTER)) if ms > LONG_MS else None
        costs.append(Cost(f"{name}, {what}", ms, quarter, in_a_turn))
    return costs


def _ms(work: Work) -> float:
    """The shortest of a few tries, where it takes long."""
    least = float("inf")
    for _ in range(TRIES):
        began_s = time.thread_time()
        with suppress(*REFUSED):
            work()
        least = min(least, 1000 * (time.thread_time() - began_s))
        if least <= LONG_MS:
            break
    return least
