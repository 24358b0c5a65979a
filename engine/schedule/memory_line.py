"""The line for memory: who found too little of it when it was its turn, and whom that keeps waiting.

Nobody overtakes the first in line, but where its own tenant's streams hold what it needs, or where it waits
in vain: then its tenant lets others pass. It looks for memory again before others have rows, which they keep
in a step, since a tenant that has more may give it some. Tenants that are to give it some in its turn begin
nothing before it, whoever passes. It knows sequences and numbers, and no memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Several
from typing import NamedTuple

from engine.schedule.closed_line import ClosedLine
from engine.schedule.sequence import Sequence

VAIN_LOOKUPS = 64  # in each step, for all who let others pass: who looked for more looks again later


class Look(NamedTuple):
    """For memory, in vain."""

    lookups: int  # of blocks in the cache
    own: bool  # whether streams of its own tenant hold what it needs
    givers: Several[int]  # tenants that are to give it some in its turn


class MemoryLine:
    def __init__(self) -> None:
        self._closed = ClosedLine()
        self._firsts: dict[int, Sequence] = {}  # by tenant
        self._passing: dict[int, int] = {}  # tenants that let others pass, until which step
        self.stood_first: dict[int, Sequence] = {}  # by tenant, in this step: the last
        self._held_back: dict[int, tuple[int, int]] = {}  # tenants, up to which priority, until which step
        self._looks: dict[int, Look] = {}  # by stream: of who looked before its turn, in this step

    def begin_step(self, step: int) -> Iterable[int]:
        """Returns the tenants that let others pass."""
        self.stood_first.clear()
        self._looks.clear()
        for tenant in [tenant for tenant, until in self._passing.items() if until <= step]:
            del self._passing[tenant]
        for tenant in [tenant for tenant, (_, until) in self._held_back.items() if until <= step]:
            del self._held_back[tenant]
        return self._passing

    def leave_before_rows(self) -> list[Sequence]:
        """Those who may look before others have rows. Whoever finds nothing is first again at its turn."""
        firsts = [first for tenant, first in self._firsts.items() if tenant not in self._passing]
        for first in firsts:
            del self._firsts[first.tenant]
        return firsts

    def leave(self, sequence: Sequence) -> None:
        """It is first no more: another may have its number."""
        if self._firsts.get(sequence.tenant) is sequence:
            del self._firsts[sequence.tenant]

    def holds_back(self, sequence: Sequence) -> bool:
        """Whether it would take anew what its tenant is to give."""
        priority, _ = self._held_back.get(sequence.tenant, (None, 0))
        return priority is not None and sequence.priority <= priority

    def looked_in_vain(self, sequence: Sequence, step: int, look: Look) -> None:
        self._looks[sequence.stream] = look
        self._hold_back(look.givers, sequence.priority, step + 1)

    def look_of(self, sequence: Sequence) -> Look | None:
        """The one that it had in this step, and need not have again."""
        return self._looks.get(sequence.stream)

    def stand_first(self, sequence: Sequence, step: int, look: Look, *, free: int) -> bool:
        """It was its turn, and so many free blocks are too few. Whether nobody may overtake it."""
        tenant = sequence.tenant
        self._firsts[tenant] = sequence
        self.stood_first[tenant] = sequence
        closed, next_look = not look.own and self._closed.close(step, free), step + 1
        if not closed:
            next_look += look.lookups * (1 + len(self._passing)) // VAIN_LOOKUPS
            self._passing[tenant] = next_look
        self._hold_back(look.givers, sequence.priority, next_look)
        return closed

    def _hold_back(self, tenants: Several[int], priority: int, until: int) -> None:
        for tenant in tenants:
            before = self._held_back.get(tenant, (priority, until))
            self._held_back[tenant] = max(before[0], priority), max(before[1], until)
