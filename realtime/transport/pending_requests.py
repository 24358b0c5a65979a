"""Who has connected and not said yet what they want: how long they may take, and how many they may be.

Half a request costs its sender nothing, so whoever sends thousands of them must not keep others out. A good
client's request is whole within a round trip: when there are too many, the oldest is the one to give up. This
knows arrivals by their address and their age, and nothing of what they send.
"""

from __future__ import annotations

import asyncio
from ipaddress import IPv6Address
from typing import Protocol


class Arrival(Protocol):
    @property
    def address(self) -> str:
        """Who this is, for the purpose of counting."""

    def give_up(self) -> None:
        """Hang up."""


class Arrivals:
    def __init__(self, *, timeout_s: float, most: int, most_of_one: int) -> None:
        self._timeout_s = timeout_s
        self._most = most
        self._most_of_one = most_of_one
        self._since: dict[Arrival, float] = {}  # the oldest first, as in the next
        self._by_address: dict[str, dict[Arrival, None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, arrival: Arrival) -> bool:
        return arrival in self._since

    def enter(self, arrival: Arrival) -> None:
        """Its time begins; where there are too many, the oldest is given up for it."""
        same = self._by_address.get(arrival.address, {})
        if len(same) >= self._most_of_one:
            self._drop(next(iter(same)))
        elif len(self._since) >= self._most:
            self._drop(next(iter(self._since)))
        loop = asyncio.get_running_loop()
        self._since[arrival] = loop.time()
        self._by_address.setdefault(arrival.address, {})[arrival] = None
        if self._timer is None:
            self._timer = loop.call_later(self._timeout_s, self._reap)

    def leave(self, arrival: Arrival) -> None:
        """It has said what it wants, or is gone."""
        if self._since.pop(arrival, None) is None:
            return
        same = self._by_address[arrival.address]
        del same[arrival]
        if not same:
            del self._by_address[arrival.address]
        if not self._since:
            self._stop()

    def _drop(self, arrival: Arrival) -> None:
        self.leave(arrival)
        arrival.give_up()

    def _reap(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        late = loop.time() - self._timeout_s
        for arrival in [arrival for arrival, since in self._since.items() if since <= late]:
            self._drop(arrival)
        if self._since:
            oldest = next(iter(self._since.values()))
            self._timer = loop.call_at(oldest + self._timeout_s, self._reap)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def neighbourhood(host: str) -> str:
    """The address; for IPv6 the network of 64 bits, of which a single subscriber has every address."""
    if ":" not in host:
        return host
    address = IPv6Address(host)
    return str(address.ipv4_mapped or IPv6Address(int(address) >> 64 << 64))
