"""Idle blocks: which free ones hold memory that nobody has used, and since when.

To let go of one is a mark, and a time of its neighbourhood; to take it again is nothing at all. Who asks for
those that have been idle for long looks at neighbourhoods in which nobody has let go of one since: each
stands in line once, by a time when one of it was let go of, and others may have been since.

They know numbers of blocks and times, and nothing of what a block holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heappop, heappush, heapreplace

NEIGHBOURS = 16
NEVER = -1.0


class IdleBlocks:
    """`free`: whether a block is."""

    def __init__(self, blocks: int, free: Callable[[int], bool]) -> None:
        self._free = free
        self._holds = bytearray(blocks)  # whether it held memory when it was let go of last
        self._line: list[tuple[float, int]] = []  # of neighbourhoods
        # Of each neighbourhood in line: when one of it was let go of last.
        self._since = [NEVER] * (blocks // NEIGHBOURS + 1)

    def __contains__(self, number: int) -> bool:
        return bool(self._holds[number]) and self._free(number)

    @property
    def since(self) -> float | None:
        """Nobody has been idle for longer; None where nobody is."""
        return self._line[0][0] if self._line else None

    def add(self, numbers: Iterable[int], now: float) -> None:
        """They are free from now on."""
        holds, since = self._holds, self._since
        for number in numbers:
            holds[number] = True
            at = number // NEIGHBOURS
            if since[at] == NEVER:
                heappush(self._line, (now, at))
            since[at] = now

    def take(self, until: float, most: int) -> list[int]:
        """About `most` blocks are looked at: those of them that have been idle since then hold nothing any
        more."""
        line, since, taken = self._line, self._since, list[int]()
        for _ in range(0, most, NEIGHBOURS):
            if not line or line[0][0] > until:
                break
            at = line[0][1]
            if since[at] > until:
                heapreplace(line, (since[at], at))
                continue
            heappop(line)
            since[at] = NEVER
            end = min((at + 1) * NEIGHBOURS, len(self._holds))
            taken += [number for number in range(at * NEIGHBOURS, end) if number in self]
        self.emptied(taken)
        return taken

    def emptied(self, numbers: Iterable[int]) -> None:
        """They hold nothing any more."""
        for number in numbers:
            self._holds[number] = False

    def audit(self) -> None:
        """Raise unless each is found in time."""
        line = {at: since for since, at in self._line}
        assert len(line) == len(self._line)
        assert all(line.get(at, NEVER) <= since for at, since in enumerate(self._since))
        assert line.keys() == {at for at, since in enumerate(self._since) if since != NEVER}
        assert all(number // NEIGHBOURS in line for number in range(len(self._holds)) if number in self)
