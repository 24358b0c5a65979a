"""Holdings: how much memory each tenant has, in the step that is being planned.

What streams of one tenant share counts once: it is the first's to come, and what another gives up is what it
has beside that. What streams of two share both have, and each loses it with the last of its own that holds
it: else who comes by two addresses would have nothing, or who begins as many do would have more than it
can lose. It knows who holds which blocks, and takes nothing.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable

from engine.schedule.released import Released
from engine.schedule.sequence import Sequence
from engine.schedule.windows import first_held


class Holdings:
    def __init__(self, holders: Iterable[Sequence], refs: list[int]) -> None:
        """Of each tenant the last to come first. `refs`: how many hold each block."""
        self._refs = refs
        self._holders = defaultdict[int, dict[int, Sequence]](dict)  # by tenant and stream
        for one in holders:
            self._holders[one.tenant][one.stream] = one
        self._blocks: dict[int, set[int]] = {}  # of those who were asked for
        self._more = Counter[int]()  # that they have since
        self._gives: dict[int, int] = {}  # by stream
        self.looked = 0  # at blocks

    def at_most(self, tenant: int) -> int:
        """By now, and known without a look at its blocks: as if its streams shared none but those that they
        begin with, each with the first that begins so."""
        count, firsts = 0, dict[int, list[int]]()
        for one in self._holders[tenant].values():
            for table in one.tables:
                gone = first_held(table)
                count += len(table) - gone
                if table and not gone and (first := firsts.setdefault(table[0], table)) is not table:
                    count -= _alike(first, table)
        return count

    def known(self, tenant: int) -> int:
        """Without a look at its blocks: what it has, where that was asked for, or at most."""
        return self.of(tenant) if tenant in self._blocks else self.at_most(tenant)

    def gives_all(self, tenant: int) -> bool:
        """It has one stream."""
        return len(self._holders[tenant]) == 1

    def of(self, tenant: int, newcomer: Sequence | None = None) -> int:
        """`newcomer`: one of its streams that is to hold memory, and begins with blocks already."""
        if tenant not in self._blocks:
            self._look(tenant)
        blocks = self._blocks[tenant]
        brings = newcomer.held_blocks if newcomer else ()
        return len(blocks) + self._more[tenant] + sum(number not in blocks for number in brings)

    def _look(self, tenant: int) -> None:
        """What tables share lies together (`released.py`): so each is looked at from both sides, as far as
        none before it has it."""
        blocks = self._blocks[tenant] = set[int]()
        self._more[tenant] = 0
        for one in reversed(self._holders[tenant].values()):
            before, tables = len(blocks), one.held_tables
            for table in tables:
                _add(table, blocks)
            self._gives[one.stream] = len(blocks) - before
            self.looked += sum(map(len, tables))

    def gives(self, holder: Sequence) -> int:
        """So many at most its tenant, which was asked for, loses by it: all of them where those behind it are
        gone."""
        return self._gives[holder.stream]

    def alone(self, tenants: Iterable[int]) -> int:
        """What comes free where these give up all that they have."""
        released = Released(self._refs)
        for tenant in tenants:
            for one in self._holders[tenant].values():
                tables = one.held_tables
                released.add(tables)
                self.looked += sum(map(len, tables))
        return released.free

    def take(self, claimant: Sequence, blocks: int, losers: Iterable[Sequence], *, comes: bool) -> None:
        """It is to have so many more, and they none; `comes`: it held no memory."""
        for one in losers:
            self._lose(one)
        if comes:
            self._holders[claimant.tenant][claimant.stream] = claimant
        if (has := self._blocks.get(claimant.tenant)) is not None:
            has.update(claimant.held_blocks)
            self._more[claimant.tenant] += blocks

    def _lose(self, one: Sequence) -> None:
        """What others of its tenant hold, too, is known by another look, if that is asked for again; so is
        what is left where it came since. Whatever it is to begin with again it has as a newcomer."""
        self._holders[one.tenant].pop(one.stream, None)
        if (has := self._blocks.get(one.tenant)) is None:
            return
        own = [number for number in one.held_blocks if self._refs[number] == 1]
        if len(own) == self._gives.get(one.stream):
            has.difference_update(own)
        else:
            del self._blocks[one.tenant]


def _alike(one: list[int], other: list[int]) -> int:
    """How many blocks both begin with."""
    places = range(min(len(one), len(other)))
    return bisect_left(places, True, key=lambda place: one[place] != other[place])


def _add(table: list[int], blocks: set[int]) -> None:
    if table and table[0] not in blocks and table[-1] not in blocks:  # which nobody shares
        blocks.update(table)
        return
    for numbers in (reversed(table), table):
        for number in numbers:
            if number in blocks:
                break
            blocks.add(number)
