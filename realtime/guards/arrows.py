"""The arrows of an automaton, gone all at once: from a set of positions to all that may come behind them.

Those that lead equally far are one shift of bits, those that lead to the same positions one mask: so a
repetition of hundreds of characters costs as much as one of two, and what a step costs at most is known
before the first. It knows sets of bits, and nothing of characters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from realtime.guards.automaton import ones

MANY = 4  # arrows that are worth a shift of their own


class Arrows:
    def __init__(self, follow: Sequence[int]) -> None:
        """`follow`: of each position, those that may come behind it."""
        sources = defaultdict[int, int](int)
        for at, targets in enumerate(follow):
            if targets:
                sources[targets] |= 1 << at
        self._masks: list[tuple[int, int]] = []
        lengths, few = defaultdict[int, int](int), list[tuple[int, int]]()
        for targets, origins in sources.items():
            if origins.bit_count() >= MANY or targets.bit_count() >= MANY:
                self._masks.append((origins, targets))
                continue
            for at in ones(origins):
                for target in ones(targets):
                    lengths[target - at] |= 1 << at
                    few.append((at, target))
        self._shifts = [(origins, by) for by, origins in lengths.items() if origins.bit_count() >= MANY]
        shifted = {by for _, by in self._shifts}
        rest = defaultdict[int, int](int)
        for at, target in few:
            if target - at not in shifted:
                rest[at] |= 1 << target
        self._masks += [(1 << at, targets) for at, targets in rest.items()]

    def __len__(self) -> int:
        """How many steps it takes."""
        return len(self._shifts) + len(self._masks)

    def gone(self, positions: int) -> int:
        found = 0
        for origins, by in self._shifts:
            here = positions & origins
            if here:
                found |= here << by if by >= 0 else here >> -by
        for origins, targets in self._masks:
            if positions & origins:
                found |= targets
        return found

    def gone_back(self, positions: int) -> int:
        """To all before which these may come."""
        found = 0
        for origins, by in self._shifts:
            found |= (positions >> by if by >= 0 else positions << -by) & origins
        for origins, targets in self._masks:
            if positions & targets:
                found |= origins
        return found
