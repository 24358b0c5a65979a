"""The limits of open connections: of the server, of an address and of a tenant; and which a revoked key has
open.

It counts connections that hold a key. It knows nothing of what is said on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from msgspec import Struct
from starlette.websockets import WebSocket

from realtime.refusal import Refusal
from realtime.tenants.allowance import EVERYTHING, Allowance, Holder

A_WHILE_MS = 1000


class OpenConnection(Struct, frozen=True, eq=False):
    websocket: WebSocket
    address: str
    holder: Holder


class OpenConnections:
    def __init__(
        self,
        limit: int,
        per_address: int | None = None,
        allowance: Callable[[str], Allowance] = lambda tenant: EVERYTHING,
    ) -> None:
        self._limit = limit
        self._per_address = per_address
        self._allowance = allowance
        self._connections: set[OpenConnection] = set()
        self._of_address: Counter[str] = Counter()  # counted as they come and go: there may be thousands
        self._of_tenant: Counter[str] = Counter()

    def open(self, websocket: WebSocket, holder: Holder) -> OpenConnection:
        """Whoever joins leaves again. Raises Refusal if there is no room."""
        connection = OpenConnection(websocket, websocket.client.host if websocket.client else "", holder)
        self._check(connection)
        self._connections.add(connection)
        self._of_address[connection.address] += 1
        self._of_tenant[holder.tenant] += 1
        return connection

    def close(self, connection: OpenConnection) -> None:
        if connection in self._connections:
            self._connections.remove(connection)
            _count_out(self._of_address, connection.address)
            _count_out(self._of_tenant, connection.holder.tenant)

    def matching(self, unwanted: Callable[[Holder], bool]) -> list[OpenConnection]:
        return [connection for connection in self._connections if unwanted(connection.holder)]

    def _check(self, new: OpenConnection) -> None:
        if len(self._connections) >= self._limit:
            raise Refusal(
                "overloaded",
                f"The server's limit of {self._limit} connections is reached; try again later.",
                retry_after_ms=A_WHILE_MS,
            )
        self._check_share(self._of_address[new.address], self._per_address, "your address")
        self._check_share(
            self._of_tenant[new.holder.tenant],
            self._allowance(new.holder.tenant).max_connections,
            "your key's tenant",
        )

    def _check_share(self, there: int, limit: int | None, whose: str) -> None:
        if limit is not None and there >= limit:
            raise Refusal(
                "rate_limited",
                f"The limit of {limit} connections of {whose} is reached.",
                retry_after_ms=A_WHILE_MS,
            )


def _count_out(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
