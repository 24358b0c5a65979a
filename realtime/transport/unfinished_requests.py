"""The connections whose request is not there yet, their first or another: how long they may take, and how
many they may be.

Half a request costs its sender nothing, so whoever sends thousands of them must not keep others out. A good
client's request is whole within a round trip: when there are too many, the oldest is the one to give up. This
knows them by their address and their age, and nothing of what they send.
"""

from __future__ import annotations

import asyncio
from ipaddress import IPv6Address
from typing import Protocol


class PendingRequest(Protocol):
    @property
    def address(self) -> str:
        """Who this is, for the purpose of counting."""

    def give_up(self) -> None:
        """Hang up."""


class PendingRequests:
    def __init__(self, *, timeout_s: float, limit: int, limit_per_address: int) -> None:
        self._timeout_s = timeout_s
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._since: dict[PendingRequest, float] = {}  # the oldest first, as in the next
        self._by_address: dict[str, dict[PendingRequest, None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, request: PendingRequest) -> bool:
        return request in self._since

    def add(self, request: PendingRequest) -> None:
        """Its time begins; where there are too many, the oldest is given up for it."""
        same = self._by_address.get(request.address, {})
        if len(same) >= self._limit_per_address:
            self.give_up_oldest(request.address)
        elif len(self._since) >= self._limit:
            self.give_up_oldest()
        loop = asyncio.get_running_loop()
        self._since[request] = loop.time()
        self._by_address.setdefault(request.address, {})[request] = None
        if self._timer is None:
            self._timer = loop.call_later(self._timeout_s, self._reap)

    def remove(self, request: PendingRequest) -> None:
        """It has said what it wants, or is gone."""
        if self._since.pop(request, None) is None:
            return
        same = self._by_address[request.address]
        del same[request]
        if not same:
            del self._by_address[request.address]
        if not self._since:
            self._stop()

    def give_up_oldest(self, address: str | None = None) -> None:
        """Of an address, or of all; if there is any."""
        oldest = next(iter(self._since if address is None else self._by_address.get(address, ())), None)
        if oldest is not None:
            self._drop(oldest)

    def _drop(self, request: PendingRequest) -> None:
        self.remove(request)
        request.give_up()

    def _reap(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        late = loop.time() - self._timeout_s
        for request in [request for request, since in self._since.items() if since <= late]:
            self._drop(request)
        if self._since:
            oldest = next(iter(self._since.values()))
            self._timer = loop.call_at(oldest + self._timeout_s, self._reap)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def network_of(host: str) -> str:
    """The address; for IPv6 the network of 64 bits, of which a single subscriber has every address. What is
    no address, as a proxy may say, stands for itself."""
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
