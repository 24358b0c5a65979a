"""What it costs to take a block and to give it back, where there are a million and most were in use before.

Tables of a few blocks live all over the cache, and others come and go among them: free runs are as many and
as small as they get. No names: to find blocks and to evict them is part of what `schedule` measures.
"""

from __future__ import annotations

import random
import statistics
import sys
import time

from bench.result_tables import Figure
from engine.schedule.blocks import Blocks

BLOCKS, BLOCK = 1_000_000, 16
TURN, TURNS = 1000, 60  # tables that are given back and taken together, and how often
GOAL_US = 2.0
LIVES = {  # tables that live, and the most blocks of one
    "100,000 tables of one block": (100_000, 1),
    "100,000 of one to three": (100_000, 3),
    "400,000 of one to three": (400_000, 3),
}


class Tables:
    """Many that live, of few blocks each."""

    def __init__(self, live: int, most: int) -> None:
        self.random = random.Random(1)
        self.most = most
        self.blocks = Blocks(BLOCKS, BLOCK, runs=True)
        # All blocks are taken once, and those that stay lie at random.
        tables = [self.blocks.take(count, []) for count in self._counts(BLOCKS)]
        self.random.shuffle(tables)
        for table in tables[live:]:
            self.blocks.drop(table)
        self.live = tables[:live]

    def _counts(self, blocks: int) -> list[int]:
        counts: list[int] = []
        while blocks >= self.most:
            counts.append(self.random.randint(1, self.most))
            blocks -= counts[-1]
        return counts

    def _leaves(self) -> list[int]:
        at = self.random.randrange(len(self.live))
        self.live[at], self.live[-1] = self.live[-1], self.live[at]
        return self.live.pop()

    def turn(self) -> tuple[float, float]:
        """What it takes to take a block and to give one, in microseconds of the processor's time."""
        gone = [self._leaves() for _ in range(TURN)]
        counts = [self.random.randint(1, self.most) for _ in range(TURN)]
        since = time.thread_time()
        for table in gone:
            self.blocks.drop(table)
        given = time.thread_time()
        come = [self.blocks.take(count, []) for count in counts]
        taken = time.thread_time()
        self.live += come
        return 1e6 * (taken - given) / sum(counts), 1e6 * (given - since) / sum(map(len, gone))


def measure() -> list[Figure]:
    figures: list[Figure] = []
    for name, (live, most) in LIVES.items():
        tables = Tables(live, most)
        turns = [tables.turn() for _ in range(TURNS)]
        for what, took in zip(("take", "give back"), zip(*turns, strict=True), strict=True):
            label = f"{what} one of {BLOCKS:,} blocks beside {name}"
            figures.append(Figure(label, statistics.median(took), "us", f"<= {GOAL_US:g}"))
    return figures


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure()))
