"""Idle blocks: since when free ones hold memory that nobody has used.

To let go of one is a number in an array; to take it again is nothing at all. Who asks for those that have
been idle for long looks at neighbourhoods: each stands in line once, by when the first of it was let go of,
which may have been taken again since.

They know numbers of blocks and times, and nothing of what a block holds.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from heapq import heappop, heappush

NEIGHBOURS = 64
NEVER = -1.0


class IdleBlocks:
    """`free`: whether a block is."""

    def __init__(self, blocks: int, free: Callable[[int], bool]) -> None:
        self._free = free
        self._since = array("d", [NEVER]) * blocks
        self._line: list[tuple[float, int]] = []  # of neighbourhoods
        self._in_line = bytearray(blocks // NEIGHBOURS + 1)

    def __contains__(self, number: int) -> bool:
        return self._since[number] != NEVER and self._free(number)

    @property
    def since(self) -> float | None:
        """Nobody has been idle for longer; None where nobody is."""
        return self._line[0][0] if self._line else None

    def add(self, numbers: Iterable[int], now: float) -> None:
        """They are free from now on."""
        since, in_line = self._since, self._in_line
        for number in numbers:
            since[number] = now
            if not in_line[number // NEIGHBOURS]:
                in_line[number // NEIGHBOURS] = True
                heappush(self._line, (now, number // NEIGHBOURS))

    def take(self, until: float, most: int) -> list[int]:
        """Those of some neighbourhoods that have been idle since then, about so many at most: they hold
        nothing any more."""
        since, taken = self._since, list[int]()
        while self._line and self._line[0][0] <= until and len(taken) < most:
            _, at = heappop(self._line)
            end = min((at + 1) * NEIGHBOURS, len(since))
            idle = [number for number in range(at * NEIGHBOURS, end) if number in self]
            taken += [number for number in idle if since[number] <= until]
            if later := [since[number] for number in idle if since[number] > until]:
                heappush(self._line, (min(later), at))
            else:
                self._in_line[at] = False
        self.emptied(taken)
        return taken

    def emptied(self, numbers: Iterable[int]) -> None:
        """They hold nothing any more."""
        for number in numbers:
            self._since[number] = NEVER

    def audit(self) -> None:
        """Raise unless each is found in time."""
        line = {at: since for since, at in self._line}
        assert len(line) == len(self._line)
        assert [at for at, there in enumerate(self._in_line) if there] == sorted(line)
        for number, since in enumerate(self._since):
            assert number not in self or line[number // NEIGHBOURS] <= since
