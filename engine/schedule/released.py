"""What would come free if some sequences released their tables: each block once, and a shared one once all
who hold it do.

It knows tables and how many hold each block. It releases nothing.
"""

from __future__ import annotations

from collections import Counter


class Rest:
    """What may not come free of tables that are given up, and are the same there: from its first block up to
    its end. All before and behind that comes free."""

    __slots__ = ("_joined", "blocks", "end", "first", "met", "tables")

    def __init__(self, blocks: list[int]) -> None:
        self.blocks = blocks
        self.first, self.end = 0, len(blocks)
        self.tables = 1
        self.met: tuple[int, ...] = ()  # blocks that were its first or last, and that others hold too
        self._joined: Rest | None = None

    def __len__(self) -> int:
        return self.end - self.first

    @property
    def now(self) -> Rest:
        """It, or what it is one with by now."""
        rest = self
        while rest._joined is not None:
            rest = rest._joined
        return rest

    def pass_by(self, number: int) -> None:
        """Its first, or its last, comes free."""
        if self.blocks[self.first] == number:
            self.first += 1
        else:
            self.end -= 1

    @property
    def joined(self) -> bool:
        return self._joined is not None

    @property
    def ends(self) -> tuple[int, ...]:
        return (self.blocks[self.end - 1], self.blocks[self.first]) if self else ()

    def join(self, other: Rest) -> bool:
        """Be one with it, if both are the same, and each of their ends was met by both or by none."""
        place = slice(self.first, self.end)
        if place != slice(other.first, other.end) or self.blocks[place] != other.blocks[place]:
            return False
        if any((number in self.met) != (number in other.met) for number in self.ends):
            return False
        self._joined = other
        other.tables += self.tables
        return True


class Given:
    """A table that is given up."""

    __slots__ = ("_blocks", "rest")

    def __init__(self, blocks: list[int]) -> None:
        self._blocks = blocks
        self.rest = Rest(blocks)

    @property
    def count(self) -> int:
        """Of its blocks, those that come free."""
        return len(self._blocks) - len(self.rest.now)

    @property
    def free(self) -> list[int]:
        rest = self.rest.now
        return self._blocks[: rest.first] + self._blocks[rest.end :]


class Released:
    """What would come free if some sequences released their tables: a shared block, once all of them do.

    What tables share lies together: what they begin with, or where a window slides what both still hold. So
    each is looked at from both sides, as far as it comes free: what many share is not looked at once for each
    of them. What lies between two shared ones, as it may within a window, is not found.
    """

    def __init__(self, refs: list[int]) -> None:
        self._refs = refs
        self._met: dict[int, list[Rest]] = {}  # by shared block: those that it is the first or the last of
        self._given = Counter[int]()  # and of how many tables
        self._kept: set[int] = set()  # shared blocks of those that were left out
        self.free = 0

    def add(self, tables: list[list[int]]) -> list[Given]:
        """Those of one more."""
        given = [Given(table) for table in tables]
        for one in given:
            self._look([one.rest])
        return given

    def _look(self, going_on: list[Rest]) -> None:
        while going_on:
            rest = going_on.pop()
            self._pass_own(rest)
            for number in rest.ends:
                if rest.joined or number in rest.met:  # what it is one with by now is looked at for it
                    continue
                rest.met += (number,)
                self._met.setdefault(number, []).append(rest)
                self._given[number] += rest.tables
                if self._given[number] == self._refs[number]:
                    going_on += self._pass_shared(number)

    def _pass_own(self, rest: Rest) -> None:
        """What nobody holds but these tables."""
        refs, blocks, tables, met = self._refs, rest.blocks, rest.tables, rest.met
        first, end = rest.first, rest.end
        while first < end and refs[blocks[end - 1]] == tables and blocks[end - 1] not in met:
            end -= 1
        while first < end and refs[blocks[first]] == tables and blocks[first] not in met:
            first += 1
        self.free += len(rest) - (end - first)
        rest.first, rest.end = first, end

    def _pass_shared(self, number: int) -> list[Rest]:
        """All who hold it give it up; returns those to be looked at further, as few as they come to."""
        self.free += 1
        one, *others = dict.fromkeys(rest.now for rest in self._met.pop(number))
        for rest in (one, *others):
            rest.pass_by(number)
        return [one, *(rest for rest in others if not rest.join(one))]

    def spare(self, given: list[Given], enough: int) -> bool:
        """Leave one out, who has these, if enough come free without it."""
        kept, count = self._kept, sum(one.count for one in given)
        if kept:
            count = sum(number not in kept for one in given for number in one.free)
        if self.free - count < enough:
            return False
        self.free -= count
        if count:
            kept.update(number for one in given for number in one.free if self._refs[number] > 1)
        return True
