"""Holdings: how much memory each tenant has that nobody else holds, in the step that is being planned.

What streams of one tenant share counts once: it is the first's to come, and what another gives up is what it
has beside that. It knows who holds which blocks, and takes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from engine.schedule.released import Released
from engine.schedule.sequence import Sequence


class Holdings:
    def __init__(self, holders: Iterable[Sequence], refs: list[int]) -> None:
        """Of each tenant the last to come first. `refs`: how many hold each block."""
        self._refs = refs
        self._holders = defaultdict[int, list[Sequence]](list)  # by tenant
        for one in holders:
            self._holders[one.tenant].append(one)
        self._blocks: dict[int, int] = {}  # of those who were asked for
        self._gives: dict[int, int] = {}  # and by stream, of theirs
        self.looked = 0  # at blocks

    def may_have(self, tenant: int, more_than: float) -> bool:
        """Known without a look at its blocks."""
        held = (len(table) for one in self._holders.get(tenant, ()) for table in one.tables)
        return sum(held) > more_than

    def of(self, tenant: int) -> int:
        blocks = self._blocks.get(tenant)
        if blocks is None:
            released = Released(self._refs)
            for one in self._holders.get(tenant, ()):
                before, tables = released.free, one.held_tables
                released.add(tables)
                self._gives[one.stream] = released.free - before
                self.looked += sum(map(len, tables))
            blocks = self._blocks[tenant] = released.free
        return blocks

    def gives(self, holder: Sequence) -> int:
        """So many at most its tenant, which was asked for, loses by it: all of them where those behind it are
        gone."""
        return self._gives[holder.stream]

    def change(self, tenant: int, blocks: int) -> None:
        """It has so many more, or fewer."""
        self._blocks[tenant] = self.of(tenant) + blocks
