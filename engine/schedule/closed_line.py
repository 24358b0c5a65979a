"""The closed line: for how long nobody overtakes whoever is the first in line for memory.

Without that a large prompt would never find room. But what it lacks may be held by streams that go on for
hours: it is of use as long as something comes free for it. Else others pass for a while. It knows numbers
alone.
"""

from __future__ import annotations

from engine.schedule.serving_order import AGING_STEPS

IN_VAIN = 4 * AGING_STEPS  # steps in which nothing comes free, and for which others pass then


class ClosedLine:
    def __init__(self) -> None:
        self._closed = -1  # the last step in which it was
        self._most, self._since = 0, 0  # blocks that were free then, since which step
        self._passing = 0  # until this step others do

    def close(self, step: int, free: int) -> bool:
        """Whether it is closed in this step, in which so many blocks are free, and too few."""
        if step < self._passing:
            return False
        if self._closed < step - AGING_STEPS or free > self._most:
            self._most, self._since = free, step
        self._closed = step
        if step - self._since < IN_VAIN:
            return True
        self._passing = step + IN_VAIN
        return False
