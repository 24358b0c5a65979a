"""Steps without a model: what a scheduler plans is computed by nobody, and simply stands computed afterwards.

A row that completes is checked against what the sequence knows by then: it must continue it exactly.
"""

from __future__ import annotations

from engine.schedule.batch import Batch, Row
from engine.schedule.host_cache import Load
from engine.schedule.scheduler import Scheduler
from tests.fakes.written_blocks import WrittenBlocks


class InstantSteps:
    """Steps as an engine takes them: each completes at once, or behind the launch of the one after it."""

    def __init__(
        self, scheduler: Scheduler, *, overlap: bool = False, written: WrittenBlocks | None = None
    ) -> None:
        self.scheduler = scheduler
        self._written = written
        self.discarded = 0
        self._overlap = overlap
        self.rows: list[Row] = []  # in flight
        self._loads: list[Load] = []

    def take(self) -> Batch:
        """A step, its tokens known, and those that came to their end gone."""
        batch = self.scheduler.schedule()
        for row in batch.rows:
            assert row.sequence.pending_load is None, "who waits for its memory does not run"
        self._loads += [load for load in batch.loads if load.live]
        if self._written:
            self._written.run(batch)
        before, self.rows = self.rows, batch.rows
        self._complete(before)
        if not self._overlap:
            self._complete(batch.rows)
            self.rows = []
        host_cache = self.scheduler.host_cache
        saves = host_cache.plan_saves(self.scheduler.cache, 3)
        if self._written:
            self._written.save(list(saves.values()))
        host_cache.finish_saves(saves)
        return batch

    def finish_load(self) -> None:
        """The load that was asked for first is there."""
        if self._loads:
            load = self._loads.pop(0)
            if self._written:
                self._written.load(load)
            self.scheduler.finish_load(load)

    def _complete(self, rows: list[Row]) -> None:
        for row in rows:
            self.discarded += row.void
            if row.discarded:
                self.scheduler.void(row)
                continue
            sequence = row.sequence
            assert row.start == sequence.num_computed, "a row continues what stands computed"
            assert not row.samples or row.void or row.index == sequence.num_outputs, (
                "and is told by its index"
            )
            assert not row.samples or row.void or sequence.num_outputs < sequence.credit
            self.scheduler.commit(row)
            if row.samples and not row.void:
                sequence.append_output(1000 + sequence.num_outputs)
            if sequence.length_reached:
                self.scheduler.remove(sequence)
            else:
                self.scheduler.update_ready(sequence)
