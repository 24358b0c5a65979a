"""Steps without a model: nobody carries out what a scheduler plans; it simply stands computed afterwards.

What lands is checked against what the sequence knows by then: it must continue it exactly.
"""

from __future__ import annotations

from engine.schedule.batch import Batch, Row
from engine.schedule.host_cache import Load
from engine.schedule.scheduler import Scheduler


class Steps:
    """Steps as an engine takes them: at once, or each landing behind the launch of the one after it."""

    def __init__(self, scheduler: Scheduler, *, overlap: bool = False) -> None:
        self.scheduler = scheduler
        self.discarded = 0
        self._overlap = overlap
        self._rows: list[Row] = []  # under way
        self._loads: list[Load] = []

    def take(self) -> Batch:
        """A step, its tokens known, and those that came to their end gone."""
        batch = self.scheduler.schedule()
        for row in batch.rows:
            assert row.sequence.arriving is None, "who waits for its memory does not run"
        self._loads += [load for load in batch.loads if load.live]
        before, self._rows = self._rows, batch.rows
        self._land(before)
        if not self._overlap:
            self._land(batch.rows)
            self._rows = []
        self.scheduler.host.due(self.scheduler.cache, 3)
        return batch

    def arrive(self) -> None:
        """The load that was asked for first is there."""
        if self._loads:
            self.scheduler.arrived(self._loads.pop(0))

    def _land(self, rows: list[Row]) -> None:
        for row in rows:
            if row.void:
                self.discarded += row.samples
                continue
            sequence = row.sequence
            assert row.start == sequence.computed, "what lands continues what stands computed"
            assert not row.samples or row.index == sequence.outputs, "and is told by its true index"
            assert not row.samples or sequence.outputs < sequence.credit
            self.scheduler.commit(row)
            if row.samples:
                sequence.sampled(1000 + sequence.outputs)
            if sequence.length_reached:
                self.scheduler.remove(sequence)
            else:
                self.scheduler.refresh(sequence)
