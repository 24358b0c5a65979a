"""The serving order: the order in which sequences are served, by priority and waiting time, then by tenant.

It knows sequences, tenants and the number of the step. It knows no memory, no budget and no batch.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator

from engine.schedule.sequence import Sequence

AGING_STEPS = 64  # waited steps that weigh as much as one level of priority


class Fairness:
    """Tenants share by tokens served."""

    def __init__(self) -> None:
        self._live: Counter[int] = Counter()  # sequences of each tenant
        self._served: dict[int, int] = {}  # tokens computed for each tenant that has a sequence

    def add(self, tenant: int) -> None:
        """The tenant has one sequence more."""
        if not self._live[tenant]:
            # A tenant that comes back has saved nothing up while it was away, and owes nothing.
            self._served[tenant] = min(self._served.values(), default=0)
        self._live[tenant] += 1

    def remove(self, tenant: int) -> None:
        self._live[tenant] -= 1
        if not self._live[tenant]:
            del self._live[tenant], self._served[tenant]

    def charge(self, tenant: int, tokens: int) -> None:
        self._served[tenant] += tokens

    def order(self, candidates: list[Sequence], step: int, places: int = 1) -> Iterator[Sequence]:
        """The candidates in the order in which they are served; as they come where there is a place for each.

        All of them, since whoever is first may find no memory, and must not keep the others from theirs.
        """
        if len(candidates) <= places:
            yield from candidates
            return
        ranks = {id(sequence): rank(sequence, step) for sequence in candidates}
        served = Counter(self._served)
        queues: dict[int, deque[Sequence]] = defaultdict(deque)
        # Of equal rank, whoever holds memory: to finish it is the shortest way to free it. Then as they come:
        # whoever was served longest ago.
        for sequence in sorted(candidates, key=lambda one: (-ranks[id(one)], not one.blocks)):
            queues[sequence.tenant].append(sequence)
        while queues:
            tenant = min(queues, key=lambda tenant: (-ranks[id(queues[tenant][0])], served[tenant], tenant))
            sequence = queues[tenant].popleft()
            served[tenant] += sequence.num_to_compute
            if not queues[tenant]:
                del queues[tenant]
            yield sequence


def rank(sequence: Sequence, step: int) -> float:
    """A higher one goes first; waiting raises it."""
    return sequence.priority + (step - sequence.last_served) // AGING_STEPS
