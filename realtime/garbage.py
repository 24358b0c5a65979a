"""Garbage: when Python's collector looks for cycles, and at what.

By itself it looks at all that lives each time that a quarter more has come, and everybody waits meanwhile:
80 ms for four thousand streams. Here it looks at what has come since the last time, and what it found alive
it sees again every few minutes only, when nobody waits for a token, and where it finds next to nothing there,
more and more rarely; most of what the gateway makes is in no cycle, and goes by itself. But a connection is
in one, and a flood of them dies in seconds: where much more has come than ever lived, all is looked at
sooner, but not for a crowd that is here to stay.
"""

from __future__ import annotations

import asyncio
import gc
import math
import time
from collections.abc import Callable

ALL_AGAIN_S, RARELY_S = 300.0, 3600.0
FEW = 10_000  # objects that died late and can wait: some MB
THRESHOLDS = 700, 10, 1  # containers, looks at the youngest, and looks at those that survived these
GLANCE_S = 1.0
MUCH = 200_000  # objects: some 3,000 connections that are gone, or 30 to 100 MB
OBJECT_BYTES = 150  # of what is held for streams, and there may be an object more that lives
# But a crowd has no more: much may be held in few objects, and would let as many die unseen.
CROWD = 1_000_000


class Standing:
    """What was found alive, and is not looked at again until all is."""

    def __init__(self) -> None:
        self.held: Callable[[], int] = lambda: 0  # bytes, for streams that live
        self._times = 0  # that more came to it
        self._most_alive = 0  # beside those streams

    def let_stay(self, phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == 2:
            gc.freeze()
            self._times += 1

    def looked_at(self) -> None:
        """All of it lives."""
        self._times = 0
        self._most_alive = max(self._most_alive, gc.get_freeze_count() - self._of_streams)

    @property
    def is_much(self) -> bool:
        """To count takes a tenth of what a look does, of a million 30 ms: only where so many may have come,
        and half as many as may live."""
        may_live = self._most_alive + self._of_streams
        if self._times * math.prod(THRESHOLDS) < max(MUCH, may_live // 2):
            return False
        self._times = 0
        return gc.get_freeze_count() > may_live + max(MUCH, may_live)

    @property
    def _of_streams(self) -> int:
        return min(self.held() // OBJECT_BYTES, CROWD)


_standing = Standing()


def look_at_news_alone() -> None:
    """From now on."""
    gc.set_threshold(*THRESHOLDS)
    gc.callbacks.append(_standing.let_stay)
    _look_at_all()


def _look_at_all() -> int:
    """How many are found."""
    found = gc.collect()
    # Python waits with the next until a quarter as much has come as the last found alive: of all that lives
    # that would be a look of 40 ms. The last is one that found next to nothing now.
    gc.collect()
    _standing.looked_at()
    return found


async def _until_due(wait_s: float, is_quiet: Callable[[], bool]) -> None:
    began_s = time.monotonic()
    while True:
        await asyncio.sleep(min(GLANCE_S, wait_s))
        waited_s = time.monotonic() - began_s
        if waited_s >= (wait_s if is_quiet() else RARELY_S) or _standing.is_much:
            return


async def look_at_all_again(
    is_quiet: Callable[[], bool] = lambda: True, held: Callable[[], int] = lambda: 0
) -> None:
    """Now and then, for as long as the server runs: everybody waits for as long as it takes. `held`: how
    many bytes, for streams that live."""
    _standing.held = held
    wait_s = ALL_AGAIN_S
    while True:
        await _until_due(wait_s, is_quiet)
        gc.unfreeze()
        found = _look_at_all()
        wait_s = ALL_AGAIN_S if found > FEW else min(2 * wait_s, RARELY_S)
