"""The count of open HTTP connections, in all and by address, whatever they do: a peer may leave a body
unfinished, read nothing of an answer, or ask nothing more, and has its time for each of these, but meanwhile
it takes a file descriptor.

It counts, and knows in which order those are given up who wait (`awaited_connections`), where there are too
many. It knows nothing of what is asked and answered.
"""

from __future__ import annotations

from collections import Counter

from realtime.transport.awaited_connections import AwaitedConnection, AwaitedConnections


class HttpConnections:
    def __init__(
        self,
        indebted: AwaitedConnections,
        pending: AwaitedConnections,
        *others: AwaitedConnections,
        limit: int,
        limit_per_address: int,
    ) -> None:
        """`indebted` have a request that waits until their address has paid for those before, and go first:
        for as long as they send more than is paid for, they would stay. Then go `pending`, who wait for a
        request."""
        self._pending = pending
        self._waiting = (indebted, pending, *others)
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._of_address: Counter[str] = Counter()
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def add(self, connection: AwaitedConnection) -> bool:
        """It waits for its first request; whether there is room for it."""
        self._pending.add(connection)
        self._open += 1
        self._of_address[connection.address] += 1
        if self._of_address[connection.address] > self._limit_per_address:
            return self._make_room(connection, connection.address)
        return self._open <= self._limit or self._make_room(connection)

    def _make_room(self, newest: AwaitedConnection, address: str | None = None) -> bool:
        """The oldest goes that waits for its turn, or else for a request, or else for something else."""
        return any(waiting.give_up_oldest(address, but=newest) for waiting in self._waiting)

    def remove(self, connection: AwaitedConnection) -> None:
        """It is closed, or another protocol's."""
        for waiting in self._waiting:
            waiting.remove(connection)
        self._open -= 1
        self._of_address[connection.address] -= 1
        if not self._of_address[connection.address]:
            del self._of_address[connection.address]
