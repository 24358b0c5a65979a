"""Windows: how much of a sequence each group of layers keeps.

Layers whose attention slides read no more than a window before the token that they compute. So a group of
them keeps the blocks of that window, and those that a step adds; what has wholly left the window is in the
group's table no longer. A group without a window keeps all. The rule is arithmetic on positions: nothing here
knows a block's state, nor which layers a group has.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

UNLIMITED = 1 << 40  # tokens
GONE = -1  # in a table, in the place of each block that is in it no longer


def first_held(table: list[int]) -> int:
    """How many blocks in front are gone."""
    if not table or table[0] != GONE:
        return 0
    return bisect_left(table, True, key=lambda number: number != GONE)


@dataclass(frozen=True, slots=True)
class Windows:
    sizes: tuple[
        int | None, ...
    ]  # of each group: how many tokens it sees, the newest included; None sees all
    block_size: int
    chunk: int  # the most tokens of a sequence that one step computes

    def first(self, group: int, position: int) -> int:
        """The first block that is read by whoever computes this position, or one behind it."""
        size = self.sizes[group]
        return 0 if size is None else max(0, position + 1 - size) // self.block_size

    def end(self, group: int, position: int, tokens: int) -> int:
        """How many blocks a table has, those that are gone included, whose sequence is to have memory for so
        many tokens and goes on at this position: not for those that a window will have left when the last is
        computed."""
        blocks = -(-tokens // self.block_size)
        size = self.sizes[group]
        return blocks if size is None else min(blocks, self.first(group, position) + self._most(size, 1))

    def blocks(self, tokens: int) -> int:
        """That a sequence of so many tokens takes at most, of all groups. Where a chunk is in flight the next
        is planned behind it."""
        whole = -(-tokens // self.block_size)
        return sum(whole if size is None else min(whole, self._most(size, 2)) for size in self.sizes)

    def longest(self, blocks: int) -> int:
        """The tokens of the longest sequence that so many blocks have room for; in whole blocks."""
        ends = sorted(self._most(size, 2) for size in self.sizes if size is not None)
        growing = len(self.sizes)  # tables that are longer by a block where the sequence is
        length = 0
        for end in ends:
            if blocks < (end - length) * growing:
                break
            blocks -= (end - length) * growing
            length, growing = end, growing - 1
        return (length + blocks // growing) * self.block_size if growing else UNLIMITED

    def _most(self, size: int, chunks: int) -> int:
        return -(-(size + chunks * self.chunk) // self.block_size) + 1
