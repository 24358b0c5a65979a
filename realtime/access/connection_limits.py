"""Who is connected: how many of each address and tenant, and whom to turn out when a key is revoked.

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


class Visitor(Struct, frozen=True, eq=False):
    websocket: WebSocket
    address: str
    holder: Holder


class Crowd:
    def __init__(
        self,
        most: int,
        most_per_address: int | None = None,
        allowance: Callable[[str], Allowance] = lambda tenant: EVERYTHING,
    ) -> None:
        self._most = most
        self._most_per_address = most_per_address
        self._allowance = allowance
        self._visitors: set[Visitor] = set()
        self._of_address: Counter[str] = Counter()  # counted as they come and go: there may be thousands
        self._of_tenant: Counter[str] = Counter()

    def join(self, websocket: WebSocket, holder: Holder) -> Visitor:
        """Whoever joins leaves again. Raises Refusal if there is no room."""
        visitor = Visitor(websocket, websocket.client.host if websocket.client else "", holder)
        self._check(visitor)
        self._visitors.add(visitor)
        self._of_address[visitor.address] += 1
        self._of_tenant[holder.tenant] += 1
        return visitor

    def leave(self, visitor: Visitor) -> None:
        if visitor in self._visitors:
            self._visitors.remove(visitor)
            _count_out(self._of_address, visitor.address)
            _count_out(self._of_tenant, visitor.holder.tenant)

    def where(self, unwanted: Callable[[Holder], bool]) -> list[Visitor]:
        return [visitor for visitor in self._visitors if unwanted(visitor.holder)]

    def _check(self, new: Visitor) -> None:
        if len(self._visitors) >= self._most:
            raise Refusal(
                "overloaded",
                f"The server has its most of {self._most} connections; try again later.",
                retry_after_ms=A_WHILE_MS,
            )
        self._check_share(self._of_address[new.address], self._most_per_address, "your address")
        self._check_share(
            self._of_tenant[new.holder.tenant],
            self._allowance(new.holder.tenant).max_connections,
            "your key's tenant",
        )

    def _check_share(self, there: int, most: int | None, whose: str) -> None:
        if most is not None and there >= most:
            raise Refusal(
                "rate_limited",
                f"There are {there} connections of {whose}, and no more than {most} may be.",
                retry_after_ms=A_WHILE_MS,
            )


def _count_out(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
