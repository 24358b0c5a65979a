"""Step times: how long steps take by what they compute, learnt from those that were taken.

Rows that decode and prompts are told apart: a prompt's tokens are computed together, and cost less each. What
is known of rows is taken off a step that has both. Of rows it is known how long steps with so many of them
take, and for drafts, what a token more costs a step such as the latest.

It knows numbers alone: what is planned by them is the business of others.
"""

from __future__ import annotations

from engine.drafts.pace import Cost, StepCost
from engine.schedule.batch import Row
from engine.step.prompt_times import PromptTimes
from engine.step.row_times import PART, RowTimes

LEAST_SHARE = 128  # but one in so many of a step's tokens: nobody stands still
MIXED = 16  # steps of both, behind which there is one without prompts: how long rows take is seen there


class StepTimes:
    def __init__(self, step_tokens: int) -> None:
        self.decode: Cost = StepCost()
        self.rows = RowTimes()
        self._prompts = PromptTimes()
        self._step_tokens = step_tokens
        self._mixed = 0  # steps that had both, since one had rows alone

    def learn(self, rows: list[Row], seconds: float) -> None:
        """A step has taken so long."""
        tokens = sum(row.count for row in rows if row.decodes)
        prompt_tokens = sum(row.count for row in rows) - tokens
        if prompt_tokens:
            beside_s = self.rows.of(tokens) if tokens and self.rows else 0.0
            self._prompts.learn(prompt_tokens, seconds - beside_s, PART * beside_s if beside_s else None)
            self._mixed += tokens > 0
        elif tokens:
            self._mixed = 0
            self.decode.learn(tokens, seconds)
            tenants = {row.sequence.tenant for row in rows}
            self.rows.learn(tokens, seconds, tenants.pop() if len(tenants) == 1 else None)
            self._prompts.rest(PART * seconds)

    def prompt_tokens(self, rows: int) -> int:
        """How many leave so many rows that decode three quarters of their pace. As many as of rows, as long
        as nobody knows what they cost; half of a step's, if nobody knows that; and none now and then."""
        if self._mixed >= MIXED or self._prompts.owe:
            return 0
        if not self.rows:
            return self._step_tokens // 2
        least = max(1, self._step_tokens // LEAST_SHARE)
        if not self._prompts:
            return max(least, min(self._step_tokens // 2, self.rows.beside(rows)))
        most = self._prompts.most_of(PART * self.rows.of(rows), least)
        return max(least, min(self._step_tokens, most))
