"""The scheduler driver: a scheduler whose batches are computed by nobody, and audited after each step.

Their tokens simply stand computed afterwards, and all drafts are right. It knows no model, no engine and no
clock but the steps.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from engine.api import Sampling
from engine.schedule.batch import Batch
from engine.schedule.block_cache import BlockCache
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence
from engine.step.drafting import Drafting

BLOCK = 4


class SchedulerDriver:
    """A scheduler whose batches are computed by nobody: their tokens simply stand computed afterwards."""

    def __init__(self, *, blocks: int = 1000, **limits: Any) -> None:
        self.cache = BlockCache(blocks, BLOCK)
        given: dict[str, Any] = {"step_tokens": 16, "batch_rows": 8, "tenant_prefill": 1000, **limits}
        self.scheduler = Scheduler(self.cache, **given)
        self.drafting = Drafting(self.scheduler)

    def add(self, stream: int, tokens: int = 1, *, tenant: int = 0, **numbers: Any) -> Sequence:
        """A sequence whose prompt is like nobody else's."""
        known = [stream * 1000 + at for at in range(tokens)]
        seq = Sequence(
            stream, known, Sampling(), **{"credit": 10_000, "context": 100_000, **numbers}, tenant=tenant
        )
        self.scheduler.add(seq)
        return seq

    def step(self) -> Batch:
        batch = self.scheduler.schedule()
        self.drafting.extend(batch)
        assert sum(row.count for row in batch.rows) <= self.scheduler.step_tokens
        assert len(batch.rows) <= self.scheduler.batch_rows
        for row in batch.rows:
            assert len(row.sequence.blocks) * BLOCK >= row.start + row.count, "a row has its memory"
        for row in batch.rows:
            for _ in row.drafts:
                row.sequence.append_output(row.sequence.stream)
            self.scheduler.commit(row)
            if row.samples:
                row.sequence.append_output(row.sequence.stream)
            self.scheduler.update_ready(row.sequence)
        self.cache.audit(self.scheduler.sequences.values())
        self.scheduler.audit()
        return batch

    def steps(self, times: int) -> list[Batch]:
        return [self.step() for _ in range(times)]

    def decoding(self, *streams: int, tokens: int = 1, **numbers: Any) -> list[Sequence]:
        seqs = [self.add(stream, tokens, **numbers) for stream in streams]
        while not all(seq.decoding for seq in seqs):
            self.step()
        return seqs

    def pause(self, seq: Sequence) -> None:
        seq.paused = True
        self.scheduler.update_ready(seq)

    def resume(self, seq: Sequence) -> None:
        seq.paused = False
        self.scheduler.update_ready(seq)


def rows(batch: Batch) -> list[tuple[int, int, bool]]:
    return [(row.sequence.stream, row.count, row.samples) for row in batch.rows]


def streams(batch: Batch) -> list[int]:
    return [row.sequence.stream for row in batch.rows]


def turns(batches: list[Batch]) -> Counter[int]:
    return Counter(stream for batch in batches for stream in streams(batch))
