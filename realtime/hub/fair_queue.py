"""The fair queue: jobs of several tenants' clients, in an order in which nobody waits for another's crowd.

Tenants share by the sizes of their jobs, and so do the clients of one tenant among themselves. The order is
that of self-clocked fair queueing (Golestani, 1994): a job's tag is its size, added to the tag of its
client's last job or, of a client that comes anew, to the highest that was taken; the lowest tag is next. So a
small job passes large ones, but only so many; and who was away has saved nothing up. A turn looks at few,
however many wait. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from heapq import heappop, heappush
from itertools import count
from typing import Generic, Protocol, TypeVar

J = TypeVar("J")


class _Line(Generic[J]):
    """One client's jobs, in the order in which they came."""

    def __init__(self) -> None:
        self.jobs = deque[tuple[int, J]]()

    def __bool__(self) -> bool:
        return bool(self.jobs)

    @property
    def next_size(self) -> int:
        return self.jobs[0][0]


class _Waiting(Protocol):
    def __bool__(self) -> bool: ...

    @property
    def next_size(self) -> int: ...


K = TypeVar("K")
W = TypeVar("W", bound=_Waiting)


class _Sharers(Generic[K, W]):
    """Those who share, each with what it waits with."""

    def __init__(self, make: Callable[[], W]) -> None:
        self._make = make
        self._waiting: dict[K, W] = {}
        self._tags: dict[K, int] = {}  # of what was taken of each last, or of all when it came
        self._taken = 0  # the highest of all that were taken
        self._places: dict[K, int] = {}  # in the order in which they came
        self._at: dict[int, K] = {}  # who has that place
        self._count = count()
        self._heap: list[tuple[int, int]] = []  # tags and places, those too that are so no more

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def next_size(self) -> int:
        return self._waiting[self._next()].next_size

    def of(self, who: K) -> W:
        if who not in self._waiting:
            self._waiting[who] = self._make()
            self._tags[who] = self._taken
            self._places[who] = place = next(self._count)
            self._at[place] = who
        return self._waiting[who]

    def moved(self, who: K) -> None:
        """Its next job may be another than before."""
        heappush(self._heap, (self._tag(who), self._places[who]))

    def pass_turn(self) -> tuple[K, W]:
        """Whose turn it is: the tag of its next job is counted now. Then it has `moved`, or it leaves."""
        who = self._next()
        self._tags[who] = self._tag(who)
        self._taken = max(self._taken, self._tags[who])
        return who, self._waiting[who]

    def leave(self, who: K) -> None:
        """It waits with nothing any more."""
        del self._waiting[who], self._tags[who], self._at[self._places.pop(who)]
        if not self._waiting:
            self._heap.clear()

    def _next(self) -> K:
        while True:
            tag, place = self._heap[0]
            if place in self._at and self._tag(self._at[place]) == tag:
                return self._at[place]
            heappop(self._heap)

    def _tag(self, who: K) -> int:
        return self._tags[who] + self._waiting[who].next_size


class FairQueue(Generic[J]):
    def __init__(self) -> None:
        self._tenants = _Sharers[str, _Sharers[object, _Line[J]]](
            lambda: _Sharers[object, _Line[J]](_Line[J])
        )

    def __bool__(self) -> bool:
        return bool(self._tenants)

    def put(self, tenant: str, client: object, size: int, job: J) -> None:
        clients = self._tenants.of(tenant)
        clients.of(client).jobs.append((size, job))
        clients.moved(client)
        self._tenants.moved(tenant)

    @property
    def next_size(self) -> int:
        """Of the next job; there is one."""
        return self._tenants.next_size

    def take(self) -> J:
        """The next job; there is one."""
        tenant, clients = self._tenants.pass_turn()
        client, line = clients.pass_turn()
        _, job = line.jobs.popleft()
        if line:
            clients.moved(client)
        else:
            clients.leave(client)
        if clients:
            self._tenants.moved(tenant)
        else:
            self._tenants.leave(tenant)
        return job
