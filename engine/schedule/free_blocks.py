"""Free blocks: which are given next, and where tables lie for it.

There are two kinds, for two kinds of attention. One that reads through block tables does not care where
blocks lie: a list does. One that reads slices is slow where a table lies in many pieces: there free blocks
are runs of neighbours (`free_runs.py`), and each table gets a run with room behind it to grow.

They know numbers of blocks, and nothing of what lies in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol


class FreeBlocks(Protocol):
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...
    @property
    def most_ahead(self) -> int:
        """How many blocks it is worth to evict before they are needed."""

    def fits(self, count: int) -> bool:
        """Whether so many are given as they should lie: where not, more may be evicted first."""

    def take_behind(self, number: int, count: int) -> Iterable[int]:
        """Those that follow the block, so many at most."""

    def take(self, count: int, at: int, held: int) -> list[int]:
        """So many, which there are, for a table from place `at` on, which holds others already."""

    def give(self, numbers: list[int]) -> None: ...


class FreeList:
    """In no order: what was given back last is taken first."""

    most_ahead = 0

    def __init__(self, blocks: int) -> None:
        self._numbers = list(range(blocks))
        self._numbers.reverse()

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[int]:
        return iter(self._numbers)

    def fits(self, count: int) -> bool:
        return True

    def take_behind(self, number: int, count: int) -> Iterable[int]:
        return ()

    def take(self, count: int, at: int, held: int) -> list[int]:
        taken = self._numbers[-count:]
        del self._numbers[-count:]
        taken.reverse()
        return taken

    def give(self, numbers: list[int]) -> None:
        self._numbers += numbers
