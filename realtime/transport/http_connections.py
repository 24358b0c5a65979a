"""The count of open HTTP connections, in all and by address, whatever they do: a peer may leave a body
unfinished, read nothing of an answer, or ask nothing more, and has its time for each of these, but meanwhile
it takes a file descriptor.

It counts, and knows who waits for a request (`awaited_connections`): where there are too many, one that waits
is given up. It knows nothing of what is asked and answered.
"""

from __future__ import annotations

from collections import Counter

from realtime.transport.awaited_connections import AwaitedConnection, AwaitedConnections


class HttpConnections:
    def __init__(self, pending: AwaitedConnections, *, limit: int, limit_per_address: int) -> None:
        self._pending = pending
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._of_address: Counter[str] = Counter()
        self._open = 0

    def __len__(self) -> int:
        return self._open

    def add(self, connection: AwaitedConnection) -> None:
        """It waits for its first request. Where there are too many, the oldest that waits is given up, which
        may be this very one."""
        self._pending.add(connection)
        self._open += 1
        self._of_address[connection.address] += 1
        if self._of_address[connection.address] > self._limit_per_address:
            self._pending.give_up_oldest(connection.address)
        elif self._open > self._limit:
            self._pending.give_up_oldest()

    def remove(self, connection: AwaitedConnection) -> None:
        """It is closed, or another protocol's."""
        self._pending.remove(connection)
        self._open -= 1
        self._of_address[connection.address] -= 1
        if not self._of_address[connection.address]:
            del self._of_address[connection.address]
