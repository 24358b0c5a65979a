"""The serving order: whose turn it is, by priority, then by tenant, then as they came.

It knows sequences, tenants and the number of the step. It knows no memory, no budget and no batch.

What stands in a line costs nothing: a step pays for those whom it serves.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Several
from collections.abc import Set as AbstractSet
from heapq import heappop, heappush
from typing import Generic, NamedTuple, Protocol, TypeVar

from engine.schedule.sequence import Sequence

AGING_STEPS = 64  # steps that weigh as much as one level of priority: of waiting, and of holding memory idly


class Shares:
    """Tenants share by tokens served. Nobody saves up: what a tenant did not want while nobody waited is not
    owed to it."""

    def __init__(self) -> None:
        self._live: Counter[int] = Counter()  # sequences of each tenant
        self.tokens: dict[int, int] = {}  # computed for each tenant that has a sequence
        self._most = 0
        self.floor = 0  # of what counts as served: what who is served least has had

    def add(self, tenant: int) -> None:
        """The tenant has one sequence more."""
        self._live[tenant] += 1
        self.tokens.setdefault(tenant, 0)

    def remove(self, tenant: int) -> None:
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant], self.tokens[tenant]

    def served(self, tenant: int) -> int:
        return max(self.floor, self.tokens[tenant])

    def charge(self, tenant: int, tokens: int) -> None:
        if self.tokens[tenant] < self.floor:  # mostly it is not, and nothing is called
            self.tokens[tenant] = self.floor
        served = self.tokens[tenant] = self.tokens[tenant] + tokens
        if served > self._most:
            self._most = served

    def advance(self, served: Iterable[int]) -> None:
        """Of those who wait nobody was served less: nor counts anybody who joins them as if it had been."""
        self.floor = max(self.floor, min(served, default=0))

    def settle(self) -> None:
        """Nobody waits: all are even."""
        self.floor = self._most


class Turn(NamedTuple):
    """A line's, as it compares with others: the smaller goes first."""

    lowness: int  # of its priority
    served: int  # of its tenant
    tenant: int

    @property
    def priority(self) -> int:
        return -self.lowness


class Line(Protocol):
    """Sequences in some order."""

    def __len__(self) -> int: ...
    def add(self, sequence: Sequence) -> None: ...
    def discard(self, sequence: Sequence) -> None: ...


class Waiting(Line, Protocol):
    @property
    def first(self) -> Sequence: ...


L = TypeVar("L", bound=Line)
W = TypeVar("W", bound=Waiting)


class Fifo(OrderedDict[int, Sequence]):
    """A line, by stream, in which whoever was served longest ago is first."""

    def add(self, sequence: Sequence) -> None:
        self[sequence.stream] = sequence

    def discard(self, sequence: Sequence) -> None:
        del self[sequence.stream]

    @property
    def first(self) -> Sequence:
        return next(iter(self.values()))


class Level(Generic[L, W]):
    """The lines of one priority."""

    def __init__(self, waiting: W) -> None:
        self.lines: dict[int, L] = {}  # by tenant
        self.waiting = waiting  # all of them, whoever waits longest first
        # Tenants, by what each was served when it was last looked at, which is no more than it was by now.
        # Each that has a line stands there once. Most were served about as much: a heap of all would be deep.
        self._at: dict[int, deque[int]] = {}
        self._least: list[int] = []  # a heap of those numbers
        self._entered: set[int] = set()
        self.exhausted: set[int] = set()  # tenants, whose line had all its turns in this step

    def enter(self, tenant: int, served: int) -> None:
        if tenant not in self._entered:
            self._entered.add(tenant)
            self._put(tenant, served)

    def _put(self, tenant: int, served: int) -> None:
        tenants = self._at.get(served)
        if tenants is None:
            tenants = self._at[served] = deque()
            heappush(self._least, served)
        tenants.append(tenant)

    def tenant(self, shares: Shares, skipped: AbstractSet[int]) -> int | None:
        """Who was served least of those that have a line and are not to be skipped."""
        lines, exhausted, least = self.lines, self.exhausted, self._least
        floor, served_of = shares.floor, shares.tokens
        while least:
            entered, tenants = least[0], self._at[least[0]]
            while tenants:
                tenant = tenants[0]
                if tenant not in lines or tenant in skipped or tenant in exhausted:
                    tenants.popleft()
                    self._entered.discard(tenant)
                elif entered < (served := served_of[tenant]) > floor and (len(tenants) > 1 or len(least) > 1):
                    tenants.popleft()
                    self._put(tenant, served)
                else:
                    return tenant
            del self._at[heappop(least)]
        return None


class ServingOrder(Generic[L, W]):
    def __init__(self, shares: Shares, new_line: Callable[[], L], new_waiting: Callable[[], W]) -> None:
        self._shares = shares
        self._new_line = new_line
        self._new_waiting = new_waiting
        self._levels: dict[int, Level[L, W]] = {}  # by priority
        self._priorities: list[int] = []  # of those levels, the highest last
        self._skipped: set[int] = set()  # tenants that have no turn for now
        self._filed: dict[int, tuple[int, int, Sequence]] = {}  # by stream: with its priority and tenant

    def __len__(self) -> int:
        return len(self._filed)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.stream in self._filed

    @property
    def sequences(self) -> list[Sequence]:
        return [sequence for _, _, sequence in self._filed.values()]

    @property
    def priorities(self) -> Several[int]:
        """The lowest first."""
        return self._priorities

    def add(self, sequence: Sequence) -> None:
        priority, tenant = sequence.priority, sequence.tenant
        self._filed[sequence.stream] = priority, tenant, sequence
        level = self._levels.get(priority)
        if level is None:
            level = self._levels[priority] = Level(self._new_waiting())
            insort(self._priorities, priority)
        line = level.lines.get(tenant)
        if line is None:
            line = level.lines[tenant] = self._new_line()
            level.enter(tenant, self._shares.served(tenant))
        line.add(sequence)
        level.waiting.add(sequence)

    def discard(self, sequence: Sequence) -> None:
        filed = self._filed.pop(sequence.stream, None)
        if filed is None:
            return
        priority, tenant, _ = filed
        level = self._levels[priority]
        line = level.lines[tenant]
        line.discard(sequence)
        level.waiting.discard(sequence)
        if not line:
            del level.lines[tenant]
        if not level.lines:
            del self._levels[priority]
            self._priorities.remove(priority)

    def next_turn(self) -> Turn | None:
        """Whose turn it is: the highest priority's, of it the tenant's that was served least."""
        for priority in reversed(self._priorities):
            tenant = self._levels[priority].tenant(self._shares, self._skipped)
            if tenant is not None:
                return Turn(-priority, self._shares.served(tenant), tenant)
        return None

    def has_others(self, tenant: int) -> bool:
        """Whether anybody else's wait."""
        return any(other != tenant for level in self._levels.values() for other in level.lines)

    def skip(self, tenant: int) -> None:
        """It has no turn until `rejoin`."""
        self._skipped.add(tenant)

    def unskip(self, tenant: int) -> None:
        """It has."""
        self._skipped.discard(tenant)
        for level in self._levels.values():
            if tenant in level.lines:
                level.enter(tenant, self._shares.served(tenant))

    def rejoin(self) -> None:
        for level in self._levels.values():
            for tenant in self._skipped | level.exhausted:
                if tenant in level.lines:
                    level.enter(tenant, self._shares.served(tenant))
            level.exhausted.clear()
        self._skipped.clear()

    def line(self, turn: Turn) -> L | None:
        level = self._levels.get(turn.priority)
        return level.lines.get(turn.tenant) if level else None

    def lines(self, tenant: int) -> Iterable[L]:
        """All that a tenant has."""
        return [level.lines[tenant] for level in self._levels.values() if tenant in level.lines]

    def overdue(self, highest: int, step: int, least: int | None) -> Sequence | None:
        """Who has waited for a turn for so long that it is due: 64 steps for each level of priority between
        it and the highest that waits, or for at least so many levels; without that, nobody of the highest
        is. Whoever is due longest is first."""
        longest, found = -1, None
        for priority, level in self._levels.items():
            levels = max(least or 0, highest - priority)
            first = level.waiting.first
            due_for = step - first.last_served - AGING_STEPS * levels
            if levels and due_for > longest:
                longest, found = due_for, first
        return found


class Rotation(ServingOrder[Fifo, Fifo]):
    """Everybody has a turn and stands last in its line again."""

    def __init__(self, shares: Shares) -> None:
        super().__init__(shares, Fifo, Fifo)
        self._had_turn: set[int] = set()  # streams, in this step
        self.counts = Counter[int]()  # of those of each tenant
        self._turns_left: dict[int, int] = {}  # in this step, of tenants that have only so many
        self._highest = 0  # priority of those that waited when it began

    def add(self, sequence: Sequence) -> None:
        super().add(sequence)
        self.counts[sequence.tenant] += 1

    def discard(self, sequence: Sequence) -> None:
        if sequence in self:
            self.counts[sequence.tenant] -= 1
            if not self.counts[sequence.tenant]:
                del self.counts[sequence.tenant]
        super().discard(sequence)

    def begin_step(self) -> None:
        self.rejoin()
        self._had_turn.clear()
        self._turns_left.clear()
        self._highest = self._priorities[-1] if self._priorities else 0

    @property
    def bounded(self) -> bool:
        """Whether some tenant has only so many turns in this step."""
        return bool(self._turns_left)

    def bound(self, tenant: int, turns: int) -> None:
        """It has only so many turns in this step."""
        self._turns_left[tenant] = turns
        if turns <= 0:
            self.skip(tenant)

    def next(self) -> Sequence | None:
        """Whose turn it is; nobody has another in this step."""
        for priority in reversed(self._priorities):
            level = self._levels[priority]
            while (tenant := level.tenant(self._shares, self._skipped)) is not None:
                first = next(iter(level.lines[tenant].values()))
                if first.stream not in self._had_turn:
                    self._take_turn(level, first)
                    return first
                level.exhausted.add(tenant)
        return None

    def next_due(self, step: int) -> Sequence | None:
        """Whose turn it is because it waited for too long."""
        due = self.overdue(self._highest, step, least=1)
        if due is None or due.stream in self._had_turn or due.tenant in self._skipped:
            return None
        self._take_turn(self._levels[due.priority], due)
        return due

    def _take_turn(self, level: Level[Fifo, Fifo], sequence: Sequence) -> None:
        self._had_turn.add(sequence.stream)
        if sequence.tenant in self._turns_left:
            self.bound(sequence.tenant, self._turns_left[sequence.tenant] - 1)
        level.lines[sequence.tenant].move_to_end(sequence.stream)
        level.waiting.move_to_end(sequence.stream)
