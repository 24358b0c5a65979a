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
        pending: AwaitedConnections,
        *others: AwaitedConnections,
        limit: int,
        limit_per_address: int,
    ) -> None:
        """`pending` wait for a request, and go before all others."""
        self._pending = pending
        self._waiting = (pending, *others)
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._of_address: Counter[str] = Counter()
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def add(self, connection: AwaitedConnection) -> None:
        """It waits for its first request."""
        self._pending.add(connection)
        self._open += 1
        self._of_address[connection.address] += 1
        if self._of_address[connection.address] > self._limit_per_address:
            self._make_room(connection, connection.address)
        elif self._open > self._limit:
            self._make_room(connection)

    def _make_room(self, newest: AwaitedConnection, address: str | None = None) -> None:
        """The oldest goes that waits for a request, or else for something else; or nobody else waits."""
        if not any(waiting.give_up_oldest(address, but=newest) for waiting in self._waiting):
            self._pending.give_up(newest)

    def remove(self, connection: AwaitedConnection) -> None:
        """It is closed, or another protocol's."""
        for waiting in self._waiting:
            waiting.remove(connection)
        self._open -= 1
        self._of_address[connection.address] -= 1
        if not self._of_address[connection.address]:
            del self._of_address[connection.address]
