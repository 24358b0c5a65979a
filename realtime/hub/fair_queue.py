"""The fair queue: jobs of several tenants' clients, in an order in which nobody waits for another's crowd.

Tenants share by the sizes of their jobs, and so do the clients of one tenant among themselves. The order is
that of self-clocked fair queueing (Golestani, 1994): a job's tag is its size, added to the tag of its
client's last job or, of a client that comes anew, to the highest that was taken; the lowest tag is next. So a
small job passes large ones, but only so many; and who was away has saved nothing up. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
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

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def next_size(self) -> int:
        return self._waiting[self._next()].next_size

    def of(self, who: K) -> W:
        if who not in self._waiting:
            self._waiting[who] = self._make()
            self._tags[who] = self._taken
        return self._waiting[who]

    def pass_turn(self) -> tuple[K, W]:
        """Whose turn it is: the tag of its next job is counted now."""
        who = self._next()
        self._tags[who] = self._tag(who)
        self._taken = max(self._taken, self._tags[who])
        return who, self._waiting[who]

    def leave(self, who: K) -> None:
        """It waits with nothing any more."""
        del self._waiting[who], self._tags[who]

    def _next(self) -> K:
        return min(self._waiting, key=self._tag)

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
        self._tenants.of(tenant).of(client).jobs.append((size, job))

    def take(self) -> J:
        """The next job; there is one."""
        tenant, clients = self._tenants.pass_turn()
        client, line = clients.pass_turn()
        _, job = line.jobs.popleft()
        if not line:
            clients.leave(client)
        if not clients:
            self._tenants.leave(tenant)
        return job
