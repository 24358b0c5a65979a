"""Holdings: how much memory each tenant has, in the step that is being planned.

What streams of one tenant share counts once: it is the first's to come, and what another gives up is what it
has beside that. What streams of two share both have: else who comes by two addresses would have nothing. It
knows who holds which blocks, and takes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from engine.schedule.released import Given, Released
from engine.schedule.sequence import Sequence


class Holdings:
    def __init__(self, holders: Iterable[Sequence], refs: list[int]) -> None:
        """Of each tenant the last to come first. `refs`: how many hold each block."""
        self._refs = refs
        self._holders = defaultdict[int, list[Sequence]](list)  # by tenant
        for one in holders:
            self._holders[one.tenant].append(one)
        self._alone: dict[int, int] = {}  # of those who were asked for: blocks that nobody else holds
        self._shared: dict[int, int] = {}  # and that others hold, too
        self._gives: dict[int, int] = {}  # and by stream, of theirs
        self.looked = 0  # at blocks

    def may_have(self, tenant: int, more_than: float) -> bool:
        """Known without a look at its blocks."""
        held = (len(table) for one in self._holders.get(tenant, ()) for table in one.tables)
        return sum(held) > more_than

    def of(self, tenant: int, newcomer: int = 0) -> int:
        """`newcomer`: blocks of one of its streams that is to hold memory, which others of them may hold."""
        return self.alone(tenant) + max(self._shared[tenant], newcomer)

    def alone(self, tenant: int) -> int:
        """What nobody else holds."""
        if tenant not in self._alone:
            self._look(tenant)
        return self._alone[tenant]

    def _look(self, tenant: int) -> None:
        released, given = Released(self._refs), list[Given]()
        for one in self._holders.get(tenant, ()):
            before, tables = released.free, one.held_tables
            given += released.add(tables)
            self._gives[one.stream] = released.free - before
            self.looked += sum(map(len, tables))
        self._alone[tenant] = released.free
        shared = set[int]()
        for table in given:
            table.rest.now.add_to(shared)
        self._shared[tenant] = len(shared)

    def gives(self, holder: Sequence) -> int:
        """So many at most its tenant, which was asked for, loses by it: all of them where those behind it are
        gone."""
        return self._gives[holder.stream]

    def change(self, tenant: int, blocks: int) -> None:
        """It has so many more, or fewer."""
        self._alone[tenant] = self.alone(tenant) + blocks
