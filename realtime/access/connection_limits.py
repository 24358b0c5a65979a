"""The limits of open connections: of the server, of an address and of a tenant; and which a revoked key has
open.

It counts whatever holds a key and lasts, WebSockets and answers over HTTP alike. It knows nothing of what is
said on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

from msgspec import Struct

from realtime.refusal import Refusal
from realtime.tenants.allowance import Holder
from realtime.tenants.quota import Quotas
from realtime.transport.awaited_connections import network_of

A_WHILE_MS = 1000


async def _not_served() -> None:
    pass


class OpenConnection(Struct, eq=False):
    network: str  # the peer's, as addresses are counted
    holder: Holder
    revoke: Callable[[], Awaitable[None]] = _not_served  # ends it: said by whoever serves it


class OpenConnections:
    def __init__(
        self,
        limit: int,
        per_address: int | None = None,
        quotas: Quotas | None = None,
    ) -> None:
        self._limit = limit
        self._per_address = per_address
        self._quotas = quotas or Quotas()
        self._connections: set[OpenConnection] = set()
        self._of_network: Counter[str] = Counter()  # counted as they come and go: there may be thousands

    @property
    def full(self) -> bool:
        return len(self._connections) >= self._limit

    def open(self, host: str, holder: Holder) -> OpenConnection:
        """Whoever opens closes again. Raises Refusal if there is no room for another from this host."""
        connection = OpenConnection(network_of(host), holder)
        self._check(connection)
        self._connections.add(connection)
        self._of_network[connection.network] += 1
        self._quotas.take(holder.tenant, connections=1)
        return connection

    def close(self, connection: OpenConnection) -> None:
        connection.revoke = _not_served  # what follows on the same socket may be somebody else's
        if connection in self._connections:
            self._connections.remove(connection)
            _count_out(self._of_network, connection.network)
            self._quotas.take(connection.holder.tenant, connections=-1)

    def matching(self, unwanted: Callable[[Holder], bool]) -> list[OpenConnection]:
        return [connection for connection in self._connections if unwanted(connection.holder)]

    def _check(self, new: OpenConnection) -> None:
        if self.full:
            raise Refusal(
                "overloaded",
                f"The server's limit of {self._limit} connections is reached; try again later.",
                retry_after_ms=A_WHILE_MS,
            )
        if self._per_address is not None and self._of_network[new.network] >= self._per_address:
            raise Refusal(
                "rate_limited",
                f"The limit of {self._per_address} connections of your address is reached.",
                retry_after_ms=A_WHILE_MS,
            )
        self._quotas.check_connections(new.holder.tenant)


def _count_out(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
