"""Garbage: when Python's collector looks for cycles, and at what.

By itself it looks at all that lives each time that a quarter more has come, and everybody waits meanwhile:
80 ms for four thousand streams. Here it looks at what has come since the last time, and what it found alive
it sees again every few minutes only, and where it finds next to nothing there, more and more rarely; most of
what the gateway makes is in no cycle, and goes by itself.
"""

from __future__ import annotations

import asyncio
import gc

ALL_AGAIN_S, RARELY_S = 300.0, 3600.0
FEW = 10_000  # objects that died late and can wait: some MB
THRESHOLDS = 700, 10, 1  # containers, looks at the youngest, and looks at those that survived these


def look_at_news_alone() -> None:
    """From now on."""
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(_let_stay)
    _look_at_all()


def _look_at_all() -> int:
    """How many are found."""
    found = gc.collect()
    # Python waits with the next until a quarter as much has come as the last found alive: of all that lives
    # that would be a look of 40 ms. The last is one that found next to nothing now.
    gc.collect()
    return found


def _let_stay(phase: str, info: dict[str, int]) -> None:
    if phase == "stop" and info["generation"] == 2:
        gc.freeze()


async def look_at_all_again() -> None:
    """Now and then, for as long as the server runs: everybody waits for as long as it takes."""
    wait_s = ALL_AGAIN_S
    while True:
        await asyncio.sleep(wait_s)
        gc.unfreeze()
        found = _look_at_all()
        wait_s = ALL_AGAIN_S if found > FEW else min(2 * wait_s, RARELY_S)
