"""The arrows of an automaton, gone all at once: from a set of positions to all that may come behind them.

Those that lead equally far are one shift of bits, those that lead to the same positions one mask: so a
repetition of hundreds of characters costs as much as one of two, and what a step costs at most is known
before the first. It knows sets of bits, and nothing of characters.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from sys import getsizeof

from realtime.guards.automaton import ones

MANY = 4  # arrows that are worth a shift of their own
FEW = 12  # steps, that need not be fewer
MOST_ARROWS = 10_000  # that are looked at one by one
ARROWS_BYTES, STEP_BYTES = 300, 70  # what they weigh, and each, beside numbers
Masks = list[tuple[int, int]]  # from these positions to those


class Arrows:
    def __init__(self, follow: Sequence[int]) -> None:
        """`follow`: of each position, those that may come behind it."""
        sources = defaultdict[int, int](int)
        for at, targets in enumerate(follow):
            if targets:
                sources[targets] |= 1 << at
        masks = [(origins, targets) for targets, origins in sources.items()]
        wide = [one for one in masks if one[0].bit_count() >= MANY or one[1].bit_count() >= MANY]
        self._shifts, rest = _shifts([one for one in masks if one not in wide])
        self._masks = wide + rest
        if len(self) > FEW and sum(one.bit_count() for one in follow) <= MOST_ARROWS:
            shifts, rest = _shifts(masks)
            if len(shifts) + len(rest) < len(self):
                self._shifts, self._masks = shifts, rest

    def __len__(self) -> int:
        """How many steps it takes."""
        return len(self._shifts) + len(self._masks)

    @property
    def weight(self) -> int:
        """About how many bytes of memory they take."""
        steps = self._shifts + self._masks
        return ARROWS_BYTES + sum(STEP_BYTES + getsizeof(origins) + getsizeof(to) for origins, to in steps)

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


def _shifts(masks: Masks) -> tuple[Masks, Masks]:
    """The same arrows as shifts, where many are equally long, and what is left of them as masks."""
    lengths = defaultdict[int, int](int)
    for origins, targets in masks:
        for target in ones(targets):
            for at in ones(origins):
                lengths[target - at] |= 1 << at
    shifts = [(origins, by) for by, origins in lengths.items() if origins.bit_count() >= MANY]
    rest, alike = defaultdict[int, int](int), defaultdict[int, int](int)
    for by, origins in lengths.items():
        if origins.bit_count() < MANY:
            for at in ones(origins):
                rest[at] |= 1 << (at + by)
    for at, targets in rest.items():
        alike[targets] |= 1 << at
    return shifts, [(origins, targets) for targets, origins in alike.items()]
