"""The recovery of streams on a new engine: all at once, unless one of them may be what killed the last.

An engine that dies is mostly killed from outside, and what it was doing is not to blame. But if it dies again
before everybody whom it was given has moved on, somebody may be: then half of them are held back until the
others have proven harmless, and so on, until one that is alone with a dying engine has shown often enough
that it is the culprit.

Pure: numbers in, numbers out. It knows no stream, no engine and no time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

DEATHS_ALONE = 3  # engines that die under one stream alone before it is given up


class EngineRecovery:
    def __init__(self) -> None:
        self._groups: deque[list[int]] = deque()  # to be given to the engine, one group after the other
        self._trial: list[int] = []  # the group that it was given last
        self._unproven: set[int] = set()  # those of the group that have not moved on
        self._preparing: set[int] = set()  # those of them that have nothing to show for it yet
        self._alone: int | None = None  # whom the last trial was of, if of one alone
        self._deaths = 0  # of engines, under that one alone

    @property
    def suspicious(self) -> bool:
        """Whether somebody may be what kills engines: nobody else should come in until that is clear."""
        return bool(self._groups) or self._deaths > 0

    @property
    def proven(self) -> bool:
        """Whether everybody whom the engine was given has moved on."""
        return not self._unproven and not self._groups

    def engine_died(self) -> int | None:
        """The engine died. Returns the culprit, if that is clear now."""
        trial, blamed = self._trial, bool(self._unproven)
        self._trial, self._unproven, self._preparing = [], set(), set()
        if not blamed:
            self._groups.clear()
            return None
        if len(trial) > 1:
            half = len(trial) // 2
            self._groups.extendleft([trial[half:], trial[:half]])
            return None
        self._deaths = self._deaths + 1 if trial[0] == self._alone else 1
        self._alone = trial[0]
        if self._deaths < DEATHS_ALONE:
            self._groups.appendleft(trial)
            return None
        self._deaths = 0
        return self._alone

    def engine_ready(self, running: Iterable[int]) -> list[int]:
        """A new engine, and the streams that want to run on it: returns those that it is given now."""
        running = list(running)
        live = set(running)
        suspects = [[number for number in group if number in live] for group in self._groups]
        suspected = {number for group in suspects for number in group}
        trusted = [number for number in running if number not in suspected]
        self._groups = deque(filter(None, suspects))
        if not self._groups:
            return self._try(trusted)
        return trusted + self._try(self._groups.popleft())

    def progressed(self, number: int) -> list[int]:
        """A stream has moved on, or is no more: returns those that the engine is given now."""
        self._unproven.discard(number)
        if self._unproven:
            return []
        self._deaths = 0
        return self._try(self._groups.popleft()) if self._groups else []

    def preparing(self, number: int) -> None:
        """The engine has begun with a stream that has no credit: it will hear no token of it."""
        self._preparing.add(number)

    def prepared(self) -> list[int]:
        """Nothing is being prepared any more; returns those that the engine is given now."""
        moved, self._preparing = self._preparing, set()
        return [other for number in moved for other in self.progressed(number)]

    def _try(self, group: list[int]) -> list[int]:
        self._trial, self._unproven = group, set(group)
        return group
