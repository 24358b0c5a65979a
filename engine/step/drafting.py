"""Drafting: rows that sample a token compute, behind the last that is known, some that may come.

They take what is left of a step: no row, no prompt and no sequence's memory gives way to a draft. What is
sampled behind each is sampled as without it, so a draft that is right is a token early, and one that is wrong
was computed in vain, and nobody hears of it.

It knows sequences, rows and what a step costs; where drafts come from is the business of `drafts/`.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

from engine.drafts.interface import Drafter
from engine.drafts.pace import Acceptance, Cost, StepCost, worthwhile
from engine.schedule.batch import Batch, Row
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence


class Drafting:
    """Without a drafter there are no drafts."""

    def __init__(self, scheduler: Scheduler, drafter: Drafter | None, cost: Cost | None = None) -> None:
        self._scheduler = scheduler
        self._drafter = drafter
        self._cost = cost or StepCost()
        self._streams = WeakKeyDictionary[Sequence, Acceptance]()
        self.drafted_total = self.accepted_total = 0

    def extend(self, batch: Batch) -> None:
        """Have rows of a batch that was just planned compute what is worth it."""
        if self._drafter is None:
            return
        tokens = sum(row.count for row in batch.rows)
        spare = self._scheduler.step_tokens - tokens
        sampling = sum(row.samples for row in batch.rows)
        if spare < 1 or not worthwhile(1.0, self._cost, rows=sampling, tokens=tokens):
            return
        wanted: list[tuple[Row, int]] = []
        for row in batch.rows:
            if row.samples and (may := row.sequence.most_drafts):
                worth = worthwhile(self._of(row).chance, self._cost, rows=sampling, tokens=tokens)
                if worth:
                    wanted.append((row, min(worth, may)))
                else:
                    self._of(row).rest()
        proposed = self._drafter.propose([(row.sequence, most) for row, most in wanted])
        for (row, _), drafts in zip(wanted, proposed, strict=True):
            if drafts and spare:
                self._scheduler.draft(row, drafts[:spare])
                spare -= len(row.drafts)
                self.drafted_total += len(row.drafts)
                if row.sequence.constraint is not None:
                    row.sequence.constraint.expect(row.drafts)

    def _of(self, row: Row) -> Acceptance:
        acceptance = self._streams.get(row.sequence)
        if acceptance is None:
            acceptance = self._streams[row.sequence] = Acceptance()
        return acceptance

    def learn(self, row: Row) -> None:
        """It is known which of the row's drafts were right."""
        self._of(row).learn(row.num_right, len(row.drafts))
        self.accepted_total += row.num_right
