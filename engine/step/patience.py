"""Patience: how long a step waits for the threads that follow grammars. It is mostly a hundredth of what it
may be. Streams that follow none go on in the same step: what they wait for others is a part of their time,
and is used up where somebody takes long in every step.

It knows jobs and a clock, and nothing of whose they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, wait

MOST_S, STREAM_S = 0.01, 0.0005  # at once, or for each stream where that is more
SHARE = 0.1  # of others' time

Wait = Callable[[Iterable[Future[None]], float], object]


class Patience:
    def __init__(self, wait: Wait = wait, clock: Callable[[], float] = time.perf_counter) -> None:
        self._wait = wait
        self._clock = clock
        self._left_s = MOST_S
        self._seen_s = clock()

    def wait(self, jobs: Iterable[Future[None]], streams: int) -> None:
        """For the jobs of so many streams, beside which there is nobody."""
        self._wait(jobs, max(MOST_S, STREAM_S * streams))

    def wait_beside_others(self, jobs: Iterable[Future[None]]) -> None:
        began_s = self._clock()
        self._left_s = min(MOST_S, self._left_s + SHARE * (began_s - self._seen_s))
        if self._left_s > 0:
            self._wait(jobs, self._left_s)
        self._seen_s = self._clock()
        # It may be woken later than it asked to be, as where threads keep the processors busy.
        self._left_s = max(-MOST_S, self._left_s - (self._seen_s - began_s))
