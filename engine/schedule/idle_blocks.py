"""Idle blocks: which free ones hold memory that nobody has used, and since when.

The number that counts a block's tables says so: below 0 it is free and holds memory, and the number is that
of the period in which it was let go of. So to let go of one, or to take it again, is to write what is written
anyway. Whoever asks for those that have been idle for long has all blocks looked at, a part at a time, once
for all periods that have been over for so long.

They know numbers of blocks and times, and nothing of what a block holds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

PERIODS = 8  # in the time behind which a block is idle
LOOKED_AT = 1024  # blocks at once


class IdleBlocks:
    def __init__(self, refs: list[int]) -> None:
        self._refs = refs  # of every block: the tables that it is in, or its period
        self.period = -1  # now; the one before is greater
        self.last: float | None = None  # when a block was let go of in it last
        self._began = 0.0
        self._over: deque[tuple[int, float]] = deque()  # periods, and when a block was let go of last in each
        self._sought: tuple[int, float] | None = None  # the last of those whose blocks are looked for
        self._at = 0  # before which they were looked for

    @property
    def since(self) -> float | None:
        """Nobody has been idle for longer; None where nobody is."""
        if self._sought is not None:
            return self._sought[1]
        return self._over[0][1] if self._over else self.last

    def add(self, numbers: Iterable[int], now: float) -> None:
        """They are free from now on."""
        for number in numbers:
            self._refs[number] = self.period
        self.last = now

    def take(self, now: float, until: float, most: int) -> list[int]:
        """A few of those that have been idle since then, so many at most: they hold nothing any more."""
        self._end_period(now, until)
        if self._sought is None:
            while self._over and self._over[0][1] <= until:
                self._sought, self._at = self._over.popleft(), 0
        if self._sought is None or most <= 0:
            return []
        refs, (oldest, _) = self._refs, self._sought
        taken: list[int] = []
        end = min(self._at + LOOKED_AT, len(refs))
        for number in range(self._at, end):
            if oldest <= refs[number] < 0:
                refs[number] = 0
                taken.append(number)
                if len(taken) == most:
                    end = number + 1
                    break
        self._at = end
        if end == len(refs):
            self._sought = None
        return taken

    def _end_period(self, now: float, until: float) -> None:
        """Where it has lasted for its time, or nobody was let go of for so long that all of them are idle."""
        if self.last is None:
            self._began = now
        elif self.last <= until or now - self._began >= (now - until) / PERIODS:
            self._over.append((self.period, self.last))
            self.period -= 1
            self.last = None
            self._began = now

    def audit(self) -> None:
        """Raise unless each is found in time."""
        periods = {period for period, _ in self._over} | ({self.period} if self.last is not None else set())
        if {period for period in self._refs if period < 0} <= periods:
            return
        for number, period in enumerate(self._refs):
            sought = self._sought is not None and period >= self._sought[0] and number >= self._at
            assert period >= 0 or sought or period in periods, f"block {number}: let go of in no period"
