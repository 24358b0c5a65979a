"""Prompts: sequences that have several tokens to compute, and the order in which they are.

Tenants take turns. Of one tenant's, half of its share goes to the prompt whose turn it is, the one that came
first; the other half to those that are done sooner, the soonest first. So a long prompt does not keep short
ones waiting, nor they it, and prompts of one length finish one after the other.

It knows which of them hold memory, since only those may go on where none is left. It knows no budget.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter, itemgetter

from engine.schedule.ranking import Ranking
from engine.schedule.sequence import Sequence
from engine.schedule.serving_order import ServingOrder, Shares, Turn


class PromptLine:
    """Of one tenant and one priority."""

    def __init__(self, arrivals: dict[int, int]) -> None:
        self._arrivals = arrivals
        self.in_turn = Ranking()  # by arrival
        self.shortest = Ranking()  # by what is to be computed
        self.num_to_compute = 0  # of all of them

    def __len__(self) -> int:
        return len(self.in_turn)

    def add(self, sequence: Sequence) -> None:
        self.in_turn.put(sequence, self._arrivals[sequence.stream])
        self.shortest.put(sequence, sequence.num_to_compute)
        self.num_to_compute += sequence.num_to_compute

    def discard(self, sequence: Sequence) -> None:
        self.num_to_compute -= self.shortest.key(sequence)
        self.shortest.discard([sequence])
        self.in_turn.discard([sequence])


class ByWait:
    """Prompts in the order in which they had a row last, or came."""

    def __init__(self) -> None:
        self._by_step = Ranking()

    def __len__(self) -> int:
        return len(self._by_step)

    def add(self, sequence: Sequence) -> None:
        self._by_step.put(sequence, sequence.last_served)

    def discard(self, sequence: Sequence) -> None:
        self._by_step.discard([sequence])

    @property
    def first(self) -> Sequence:
        return self._by_step.first[1]


class Prompts:
    def __init__(self, shares: Shares) -> None:
        self._arrivals: dict[int, int] = {}  # by stream: a smaller number came first
        self._last = 0
        self.begun = ServingOrder(shares, self._new_line, ByWait)  # those that hold memory
        self.queued = ServingOrder(shares, self._new_line, ByWait)
        self._closed = False  # to those that are queued, in the step that is being planned
        self._closed_to: set[int] = set()  # tenants
        self._yielding: set[int] = set()  # streams of those that stand in line

    def _new_line(self) -> PromptLine:
        return PromptLine(self._arrivals)

    def __len__(self) -> int:
        return len(self.begun) + len(self.queued)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self.begun or sequence in self.queued

    @property
    def yield_to_others(self) -> bool:
        """Whether those who decode are to keep their pace beside them."""
        return bool(self._yielding)

    def has_others(self, tenant: int) -> bool:
        return self.begun.has_others(tenant) or self.queued.has_others(tenant)

    def file(self, sequence: Sequence) -> None:
        """It waits for its turn, in the place that it came in with."""
        self.take(sequence)
        if sequence.stream not in self._arrivals:
            self._last += 1
            self._arrivals[sequence.stream] = self._last
        (self.begun if sequence.blocks else self.queued).add(sequence)
        if sequence.yields:
            self._yielding.add(sequence.stream)

    def take(self, sequence: Sequence) -> None:
        """It stands in no line until it is filed again, and keeps its place."""
        self.begun.discard(sequence)
        self.queued.discard(sequence)
        self._yielding.discard(sequence.stream)

    def put_first(self, sequence: Sequence) -> None:
        """It is to be filed before all others: it had its turn, and lost its memory."""
        self._last += 1
        self._arrivals[sequence.stream] = -self._last

    def remove(self, sequence: Sequence) -> None:
        self.take(sequence)
        self._arrivals.pop(sequence.stream, None)

    # -- the step that is being planned ----------------------------------------------------------

    def begin_step(self) -> None:
        """Everybody may have a turn."""
        self.open()
        self._closed_to.clear()
        self.queued.rejoin()

    @property
    def closed(self) -> bool:
        return self._closed

    def open(self, tenants: Iterable[int] = ()) -> None:
        """There may be room; for these, too."""
        self._closed = False
        for tenant in tenants:
            self._closed_to.discard(tenant)
            self.queued.unskip(tenant)

    def close(self) -> None:
        """There is no room: only those that hold memory have turns in this step."""
        self._closed = True

    def close_to(self, tenant: int) -> None:
        """The same for one tenant, but for what is done within the step."""
        self._closed_to.add(tenant)
        self.queued.skip(tenant)

    def next_turn(self) -> Turn | None:
        """The line whose turn it is."""
        begun = self.begun.next_turn()
        queued = None if self._closed else self.queued.next_turn()
        return min(begun, queued) if begun and queued else begun or queued

    def first(self, turn: Turn) -> Sequence:
        """Who came first of those whose turn it is."""
        queued = None if turn.tenant in self._closed_to else self._queued_line(turn)
        lines = filter(None, (self.begun.line(turn), queued))
        return min((line.in_turn.first for line in lines), key=itemgetter(0))[1]

    def shortest(self, turn: Turn, than: int, room: int) -> Sequence | None:
        """Who of them has the fewest tokens to compute, if those are fewer than so many, and the step, where
        it is closed to others, has room for all of them."""
        queued = self._queued_line(turn)
        if queued and turn.tenant in self._closed_to and queued.shortest.first[0] > room:
            queued = None
        lines = filter(None, (self.begun.line(turn), queued))
        short = (line.shortest.first for line in lines)
        count, sequence = min(short, key=itemgetter(0), default=(than, None))
        return sequence if count < than else None

    def overdue(self, step: int) -> Sequence | None:
        """Who has waited so long for a turn that it is due, whatever its priority."""
        priorities = [*self.begun.priorities, *self.queued.priorities]
        if not priorities:
            return None
        begun = self.begun.overdue(max(priorities), step, least=1)
        # Among equals those that are queued wait for their tenant's share, however long.
        queued = None if self._closed else self.queued.overdue(max(priorities), step, least=None)
        return min(filter(None, (begun, queued)), key=attrgetter("last_served"), default=None)

    def urgent(self, above: int) -> Sequence | None:
        """Who is first of those that are queued, if it has a higher priority."""
        turn = None if self._closed else self.queued.next_turn()
        line = self.queued.line(turn) if turn and turn.priority > above else None
        return line.in_turn.first[1] if line else None

    def num_begun_tokens(self, tenant: int) -> int:
        """That are still to be computed of what it has begun."""
        return sum(line.num_to_compute for line in self.begun.lines(tenant))

    def _queued_line(self, turn: Turn) -> PromptLine | None:
        return None if self._closed else self.queued.line(turn)

    def audit(self) -> None:
        """Raise unless everybody stands in line by its numbers."""
        for order in (self.begun, self.queued):
            for sequence in order.sequences:
                line = order.line(Turn(-sequence.priority, 0, sequence.tenant))
                assert line is not None
                assert line.shortest.key(sequence) == sequence.num_to_compute
                assert line.in_turn.key(sequence) == self._arrivals[sequence.stream]
                assert sequence.yields == (sequence.stream in self._yielding)
        assert len(self._arrivals) >= len(self)
