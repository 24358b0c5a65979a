"""Clocked steps: a scheduler whose steps take as long as a test says of their rows, and which goes by what
they took. There is no other clock."""

from __future__ import annotations

from collections.abc import Callable

from engine.schedule.batch import Row
from engine.step.step_times import StepTimes
from tests.fakes.scheduler_driver import SchedulerDriver


class ClockedSteps:
    def __init__(self, took: Callable[[list[Row]], float], *, step_tokens: int, batch_rows: int = 64) -> None:
        self._took = took
        self.times = StepTimes(step_tokens)
        self.driver = SchedulerDriver(
            blocks=6_000,
            step_tokens=step_tokens,
            batch_rows=batch_rows,
            tenant_prefill=10**6,
            prompt_tokens=self.times.prompt_tokens,
            most_rows=self.times.rows.most_of,
        )

    def step(self) -> float:
        """How long it took."""
        rows = self.driver.step().rows
        seconds = self._took(rows)
        self.times.learn(rows, seconds)
        return seconds
