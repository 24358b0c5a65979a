"""Drafting: rows that sample a token compute, behind the last that is known, some that may come.

They take what is left of a step, and beside other tenants as much of it as rows might: no row, no prompt and
no sequence's memory gives way to a draft. What is sampled behind each is sampled as without it, so a draft
that is right is a token early, and one that is wrong was computed in vain, and nobody hears of it.

It knows sequences, rows and what a step costs; where drafts come from is the business of `drafts/`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence as Several
from weakref import WeakKeyDictionary

from engine.drafts.interface import Drafter, Kind
from engine.drafts.pace import Acceptance, Cost, StepCost, worthwhile
from engine.schedule.batch import Batch, Row
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence
from engine.step.failed_attempts import clean_up

log = logging.getLogger(__name__)


class Drafting:
    """Whom the first drafter has nothing for, the next is asked about; without one there are no drafts."""

    def __init__(
        self, scheduler: Scheduler, drafters: Several[Drafter] = (), cost: Cost | None = None
    ) -> None:
        self._scheduler = scheduler
        self._drafters = list(drafters)
        scheduler.drafts = bool(drafters)
        self._cost = cost or StepCost()
        self._acceptance = WeakKeyDictionary[Sequence, dict[Kind, Acceptance]]()
        self._latest = WeakKeyDictionary[Sequence, Kind]()  # by whom its drafts in flight are
        self.drafted, self.accepted = Counter[Kind](), Counter[Kind]()

    def extend(self, batch: Batch) -> None:
        """Have rows of a batch that was just planned compute what is worth it."""
        for drafter in tuple(self._drafters):
            spare = self._scheduler.num_draftable(batch)
            wanted = self._wanted(drafter, batch, spare) if spare else []
            proposed = zip(wanted, self._proposed(drafter, wanted), strict=True)
            found = [(row, drafts) for (row, _), drafts in proposed if drafts]
            tenants = {row.sequence.tenant for row, _ in found}
            left = {tenant: -(-spare // len(tenants)) for tenant in tenants}
            for row, drafts in found:
                tenant = row.sequence.tenant
                if most := min(spare, left[tenant]):
                    self._take(drafter.kind, row, drafts[:most])
                    spare -= len(row.drafts)
                    left[tenant] -= len(row.drafts)

    def _wanted(self, drafter: Drafter, batch: Batch, spare: int) -> list[tuple[Row, int]]:
        """Rows without drafts, and how many of this drafter's are worth it."""
        tokens = sum(row.count for row in batch.rows)
        sampling = sum(row.samples for row in batch.rows)
        drafting_s = drafter.seconds(sampling)

        def worth(chance: float) -> int:
            return worthwhile(chance, self._cost, rows=sampling, tokens=tokens, drafting_s=drafting_s)

        if not worth(1.0):
            return []
        wanted: list[tuple[Row, int]] = []
        for row in batch.rows:
            if row.samples and not row.drafts and (may := row.sequence.most_drafts):
                acceptance = self._of(row.sequence, drafter.kind)
                if most := worth(acceptance.chance):
                    wanted.append((row, min(most, may, spare)))
                else:
                    acceptance.rest()
        return wanted

    def _proposed(self, drafter: Drafter, wanted: list[tuple[Row, int]]) -> list[list[int]]:
        """No stream ends by what was only to make it faster: a drafter that fails is not asked again."""
        try:
            return drafter.propose([(row.sequence, most) for row, most in wanted])
        except Exception as error:
            log.error("drafts by %s have failed, and there are no more of them", drafter.kind, exc_info=error)
            clean_up(error)
            self._drafters.remove(drafter)
            return [[] for _ in wanted]

    def _take(self, kind: Kind, row: Row, drafts: list[int]) -> None:
        self._scheduler.draft(row, drafts)
        self._latest[row.sequence] = kind
        self.drafted[kind] += len(row.drafts)
        if row.sequence.constraint is not None:
            row.sequence.constraint.expect(row.drafts)

    def _of(self, sequence: Sequence, kind: Kind) -> Acceptance:
        of_kinds = self._acceptance.get(sequence)
        if of_kinds is None:
            of_kinds = self._acceptance[sequence] = {}
        if kind not in of_kinds:
            of_kinds[kind] = Acceptance()
        return of_kinds[kind]

    def learn(self, row: Row) -> None:
        """It is known which of the row's drafts were right."""
        kind = self._latest[row.sequence]
        self._of(row.sequence, kind).learn(row.num_right, len(row.drafts))
        self.accepted[kind] += row.num_right
