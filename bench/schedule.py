"""What it costs to plan a step: `schedule()` with 256 rows, beside ever so many streams that have none in it.

No model: what is planned stands computed at once, outside of what is measured. Each line is as it would be on
a busy server: its rows decode throughout, and what stands beside stays where it is.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from bench.result_tables import Figure
from engine.api import Sampling
from engine.model.layer_groups import group_layers
from engine.schedule.batch import Batch
from engine.schedule.block_cache import BlockCache
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence

ROWS, BLOCK, STEP_TOKENS, CONTEXT = 256, 16, 2048, 100_000
BLOCKS = 1_000_000
BESIDE, TENANTS = 10_000, 1000
STEPS, WARM_UP = 1000, 50
GOAL_MS = 1.5
GEMMA3 = [
    None if layer % 6 == 5 else 1024 for layer in range(34)
]  # windows of its layers, with 4B parameters
GROUPS = group_layers(GEMMA3, CONTEXT)
SLIDING = tuple(group.window for group in GROUPS)
LONG = 32_000  # tokens


class Server:
    """A scheduler with streams that decode, one to a row, and streams that stand beside."""

    def __init__(self, blocks: int, windows: tuple[int | None, ...] = (None,)) -> None:
        self.cache = BlockCache(blocks, BLOCK, windows=windows, chunk=STEP_TOKENS)
        self.scheduler = Scheduler(
            self.cache, step_tokens=STEP_TOKENS, batch_rows=ROWS, tenant_prefill=CONTEXT
        )

    def add(self, count: int, tokens: int, *, tenants: int = 1) -> list[Sequence]:
        """With prompts like nobody else's, of about so many tokens, and credit for one: their blocks are full
        at different times."""
        first = len(self.scheduler.sequences)
        sequences = [
            Sequence(
                stream,
                [stream * CONTEXT + at for at in range(tokens + stream % BLOCK)],
                Sampling(),
                credit=1,
                context=10**9,
                tenant=stream % tenants,
            )
            for stream in range(first, first + count)
        ]
        for sequence in sequences:
            self.scheduler.add(sequence)
        return sequences

    def add_decoding(self, count: int, tokens: int, *, tenants: int = 1) -> None:
        """Once all have their first token, with credit for all that they may say."""
        sequences = self.add(count, tokens, tenants=tenants)
        while not all(sequence.stalled for sequence in sequences):
            self.step()
        for sequence in sequences:
            sequence.credit = 10**9
            self.scheduler.update_ready(sequence)

    def add_paused(self, count: int, tokens: int) -> None:
        sequences = self.add(count, tokens)
        while not all(sequence.stalled for sequence in sequences):
            self.step()
        for sequence in sequences:
            sequence.paused = True
            self.scheduler.update_ready(sequence)

    def step(self) -> float:
        """What it took to plan, in milliseconds of the processor's time."""
        since = time.thread_time()
        batch = self.scheduler.schedule()
        took = time.thread_time() - since
        self._compute(batch)
        return 1e3 * took

    def _compute(self, batch: Batch) -> None:
        for row in batch.rows:
            self.scheduler.commit(row)
            if row.samples:
                row.sequence.append_output(7)
            self.scheduler.update_ready(row.sequence)


def alone(windows: tuple[int | None, ...] = (None,)) -> Server:
    server = Server(BLOCKS, windows)
    server.add_decoding(ROWS, 100)
    return server


def paused() -> Server:
    """With memory, which is full; newcomers of 8,000 tokens come one after the other."""
    server = Server(BESIDE * 8 + ROWS * 50)
    server.add_paused(BESIDE, 100)
    server.add_decoding(ROWS - 1, 100)
    server.add(100, 8000)
    return server


def queued(tenants: int = 1) -> Server:
    """All of the memory belongs to those who have rows."""
    server = Server(ROWS * 100)
    server.add_decoding(ROWS, 1500, tenants=tenants)
    server.add(BESIDE, 2000, tenants=tenants)
    return server


def ready(tenants: int = 1) -> Server:
    """All of them could have a row."""
    server = Server(BLOCKS)
    server.add_decoding(BESIDE, 100, tenants=tenants)
    return server


SITUATIONS: dict[str, Callable[[], Server]] = {
    "nobody": alone,
    "nobody, layers in seven groups": lambda: alone(SLIDING),
    "10,000 paused, memory full, newcomers of 8,000 tokens": paused,
    "10,000 queued, memory full": queued,
    "10,000 queued of 1,000 tenants, memory full": lambda: queued(TENANTS),
    "10,000 ready": ready,
    "10,000 ready of 1,000 tenants": lambda: ready(TENANTS),
}


def percentile(times: list[float], share: float) -> float:
    return sorted(times)[min(len(times) - 1, int(share * len(times)))]


def measure() -> list[Figure]:
    figures: list[Figure] = []
    for name, situation in SITUATIONS.items():
        server = situation()
        for _ in range(WARM_UP):
            server.step()
        times = [server.step() for _ in range(STEPS)]
        middle, worst = percentile(times, 0.5), percentile(times, 0.99)
        figures += [
            Figure(f"plan a step beside {name}, p50", middle, "ms"),
            Figure(f"plan a step beside {name}, p99", worst, "ms", f"<= {GOAL_MS}"),
        ]
    return [*figures, held_by_a_long_context()]


def held_by_a_long_context() -> Figure:
    """Of what it would be if all layers kept all of it."""
    server = Server(BLOCKS, SLIDING)
    server.add_decoding(1, LONG)
    places = max(len(group.layers) for group in GROUPS)
    share = server.cache.used * places / (len(GEMMA3) * server.cache.blocks_for(LONG))
    name = f"memory of {LONG:,} tokens, five of six layers with a window of {max(filter(None, SLIDING)):,}"
    return Figure(name, 100 * share, "%", "<= 25")


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure()))
