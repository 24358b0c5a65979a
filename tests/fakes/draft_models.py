"""Draft models for engines in this very process: the same model as theirs, or one that is often wrong.

`draft_by` has an engine draft by another engine's model, in that one's memory, after every step of which
nothing may be held for a stream that has no row.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

from torch import Tensor

from engine.drafts.draft_model import DraftModel
from engine.engine import Engine
from engine.forward.interface import Runner
from engine.schedule.batch import Row
from engine.step.drafting import Drafting
from tests.fakes.engine_driver import Free


class CountingRunner:
    """Counts the tokens that it computes. Behind every so many positions it says something else: `wrong`."""

    def __init__(self, inner: Runner, wrong: int = 0) -> None:
        self.context, self.eos = inner.context, inner.eos
        self.copy_blocks, self.zero_blocks = inner.copy_blocks, inner.zero_blocks
        self.computed: list[list[int]] = []  # of each forward: of each row
        self._inner, self._wrong = inner, wrong

    def forward(self, rows: Rows[Row]) -> Tensor:
        self.computed.append([row.count for row in rows])
        logits = self._inner.forward(rows).clone()
        for at, row in enumerate(row for row in rows if row.samples):
            if self._wrong and row.end % self._wrong == 0:
                logits[at] = logits[at].roll(1)
        return logits


class AuditedDraftModel(DraftModel):
    def propose(self, wanted):  # type: ignore[no-untyped-def]
        proposed = super().propose(wanted)
        self.audit()
        assert all(stream.in_flight for stream in self._followed)
        return proposed


class Nothing(Free):
    """That drafting costs."""

    def of_step(self, tokens: int) -> float:
        return 0.0


def draft_by(engine: Engine, other: Engine, *, wrong: int = 0, beside_lookup: bool = False) -> CountingRunner:
    """The draft model's runner."""
    runner = CountingRunner(other.runner, wrong)
    sampler = engine._executor._sampler
    model = AuditedDraftModel(
        runner,
        other.cache,
        sampler,
        vocab=sampler._vocab,
        known=other._executor._sampler._vocab,
        step_tokens=other.scheduler.step_tokens,
        cost=Nothing(),
    )
    before = engine._drafting._drafters if beside_lookup else []
    engine._drafting = Drafting(engine.scheduler, [*before, model], Free())
    return runner
