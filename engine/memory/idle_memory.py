"""Idle memory: what the KV cache holds and nobody has used for a while goes back to the host, bit by bit.

Cached prefixes age, and are forgotten then; blocks that are used, by whoever is paused or waits, are never
touched. It tells the block cache the time, and the pool what to let go of; when all is given back, somebody
else may look for more. It knows no sequence.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from math import gcd

from engine.forward.kv_pool import KvPool
from engine.schedule.block_cache import BlockCache

MOST_BLOCKS = 64  # at once: between two steps it should not be noticed


class IdleMemory:
    def __init__(
        self,
        cache: BlockCache,
        pool: KvPool,
        idle_s: float,
        clock: Callable[[], float] = time.monotonic,
        at_rest: Callable[[], None] = lambda: None,
    ) -> None:
        self._cache = cache
        self._pool = pool
        self._idle_s = idle_s
        self._clock = clock
        self._at_rest = at_rest
        self._gave = False  # since we were at rest
        pages = pool.tokens_in_pages
        self._group = pages // gcd(pages, cache.block_size)  # the fewest blocks that fill whole pages

    @property
    def due_in_s(self) -> float | None:
        """How long until there is something to give back; None where nothing can become so."""
        since = self._cache.blocks.idle_since
        return None if since is None else max(0.0, since + self._idle_s - self._clock())

    def give_back(self) -> bool:
        """Give back a few blocks; whether there are more."""
        self._cache.blocks.now = now = self._clock()
        groups = self._cache.blocks.take_idle(now - self._idle_s, self._group, MOST_BLOCKS)
        tokens = self._group * self._cache.block_size
        for first, end in _runs(groups):
            self._pool.give_back(slice(first * tokens, end * tokens))
            self._gave = True
        return self.due_in_s == 0

    def rest(self) -> None:
        """Nothing is computed now: once all is given back there is time to look for more."""
        if self._gave and self.due_in_s is None:
            self._gave = False
            self._at_rest()


def _runs(numbers: list[int]) -> Iterator[tuple[int, int]]:
    """Neighbours among sorted numbers, as (first, end)."""
    begin = 0
    for at in range(1, len(numbers) + 1):
        if at == len(numbers) or numbers[at] != numbers[at - 1] + 1:
            yield numbers[begin], numbers[at - 1] + 1
            begin = at
