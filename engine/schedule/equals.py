"""Equals: the holders of one priority, in the order in which another of that priority takes their memory.

The order is made once for a step, by whoever is the first to lack memory in it: who lacks some behind that
looks mostly at one tenant and at one of its streams, however many there are. Whoever may lose nothing any
more, since it has a row or has lost all, is passed by.

It knows whose they are, and what tenants have. It evicts nobody.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush, heapreplace
from itertools import islice

from engine.schedule.holdings import Holdings
from engine.schedule.sequence import Sequence

# What a tenant has at most, and the last to come of its streams that may lose anything, both negative; its
# number.
Entry = tuple[int, int, int]
Left = Callable[[Sequence], object]  # whether it may lose its memory: if not, nor may it later in the step


class Equals:
    def __init__(self, holders: Iterable[Sequence], holdings: Callable[[], Holdings], left: Left) -> None:
        """The last to come first. `holdings`: asked for where there are several tenants."""
        self._holdings = holdings
        self._left = left
        self._lines: dict[int, list[Sequence]] = {}  # by tenant, the last to come at the end
        for one in holders:
            self._lines.setdefault(one.tenant, []).append(one)
        for line in self._lines.values():
            line.reverse()
        self._ranked: list[Entry] = []  # whoever has most first
        self._entries: dict[int, Entry] = {}  # those, by tenant
        self._unranked = set(self._lines)  # tenants that are to be, when that is asked for
        self._gives: dict[int, int] = {}  # by tenant: each of its streams so many, or more

    def of(self, tenant: int) -> Iterator[Sequence]:
        """Those that may lose theirs, the last to come first."""
        return filter(self._left, reversed(self._line(tenant)))

    def later(self, claimant: Sequence) -> Iterator[Sequence]:
        """Those of its own tenant that came behind it."""
        for one in self.of(claimant.tenant):
            if one.stream <= claimant.stream:
                return
            yield one

    def most(self, count: int) -> dict[int, int]:
        """So many tenants that have most, who has most first, and what each has."""
        return {tenant: -lacks for lacks, _, tenant in islice(self._since(0), count)}

    def of_who_has_more(self, but: int, least: float) -> Iterator[Sequence]:
        """Of another tenant than this one, from the one that has most, who came last: as long as it still has
        so many."""
        behind = self._that_may_give(but, least)
        lines, gives = dict[int, Iterator[Sequence]](), self._holdings().gives
        most = list(islice(behind, 1))
        while most:
            lacks, last, tenant = most[0]
            if tenant not in lines:
                lines[tenant] = self.of(tenant)
                for entry in islice(behind, 1):  # which may have as much as this one still has
                    heappush(most, entry)
            for holder in lines[tenant]:
                given = gives(holder)
                if -lacks - given >= least:
                    heapreplace(most, (lacks + given, last, tenant))
                    yield holder
                    break
            else:
                heappop(most)
                self._gives[tenant] = min(map(gives, self.of(tenant)), default=0)

    def of_who_has_as_much(self, claimant: Sequence) -> Iterator[Sequence]:
        """Of other tenants, those that are behind it where nobody else can go on: whose tenant has more, of
        tenants that have as much whoever came later."""
        own = self._holdings().of(claimant.tenant)
        for lacks, last, tenant in self._since(own):
            if tenant == claimant.tenant:
                continue
            if (-lacks, -last) < (own, claimant.stream):
                return
            yield from (one for one in self.of(tenant) if (-lacks, one.stream) > (own, claimant.stream))

    def change(self, tenant: int) -> None:
        """It is to have more, or fewer."""
        if tenant in self._entries:
            del self._ranked[bisect_left(self._ranked, self._entries.pop(tenant))]
            self._gives.pop(tenant, None)
            self._unranked.add(tenant)

    # -- the order -------------------------------------------------------------------------------

    def _since(self, least: float) -> Iterator[Entry]:
        """Tenants that have so many, or more."""
        ranked, at = self._in_order(), 0
        while at < len(ranked) and -ranked[at][0] >= least:
            if self._stands(at):
                yield ranked[at]
                at += 1

    def _that_may_give(self, but: int, least: float) -> Iterator[Entry]:
        """And that have as much still without one of their streams."""
        ranked, at = self._in_order(), 0
        while at < len(ranked) and -ranked[at][0] >= least:
            lacks, _, tenant = ranked[at]
            if tenant == but or -lacks - self._gives.get(tenant, 0) < least:
                at += 1
            elif self._stands(at):
                yield ranked[at]
                at += 1

    def _in_order(self) -> list[Entry]:
        while self._unranked:
            self._rank(self._unranked.pop())
        return self._ranked

    def _stands(self, at: int) -> bool:
        """Whether the last of that tenant's may still lose anything, and it has what it has at most: what its
        streams share is looked for when it comes to its turn. Else it stands further behind now."""
        lacks, last, tenant = self._ranked[at]
        line = self._line(tenant)
        if line and line[-1].stream == -last and self._holdings().of(tenant) >= -lacks:
            return True
        del self._ranked[at], self._entries[tenant]
        self._rank(tenant)
        return False

    def _rank(self, tenant: int) -> None:
        if line := self._line(tenant):
            holdings = self._holdings()
            blocks = holdings.known(tenant)
            if holdings.gives_all(tenant):
                self._gives[tenant] = blocks
            entry = self._entries[tenant] = -blocks, -line[-1].stream, tenant
            insort(self._ranked, entry)

    def _line(self, tenant: int) -> list[Sequence]:
        """Up to the last that may lose anything."""
        line = self._lines.get(tenant, [])
        while line and not self._left(line[-1]):
            line.pop()
        return line
