"""The connections of which something is awaited that a good client does within a round trip: a request, its
first or another, more of a body, or the end behind an answer that was the last. How long they may take, and
how many they may be.

Half a request costs its sender nothing, and neither does an end that never comes, so whoever leaves thousands
of them so must not keep others out: when there are too many, the oldest is the one to give up. This knows
them by their address and their age, and nothing of what they send.
"""

from __future__ import annotations

import asyncio
from ipaddress import IPv6Address
from typing import Protocol

from uvicorn.protocols.utils import get_remote_addr


class AwaitedConnection(Protocol):
    @property
    def address(self) -> str:
        """Who this is, for the purpose of counting."""

    def give_up(self) -> None:
        """Hang up."""


class AwaitedConnections:
    def __init__(self, *, timeout_s: float | None, limit: int, limit_per_address: int) -> None:
        """`timeout_s` is None where others know how long they may take."""
        self._timeout_s = timeout_s
        self._limit = limit
        self._limit_per_address = limit_per_address
        self._since: dict[AwaitedConnection, float] = {}  # the oldest first, as in the next
        self._by_address: dict[str, dict[AwaitedConnection, None]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._since)

    def __contains__(self, connection: AwaitedConnection) -> bool:
        return connection in self._since

    def add(self, connection: AwaitedConnection) -> None:
        """Its time begins; where there are too many, the oldest is given up for it."""
        same = self._by_address.get(connection.address, {})
        if len(same) >= self._limit_per_address:
            self.give_up_oldest(connection.address)
        elif len(self._since) >= self._limit:
            self.give_up_oldest()
        loop = asyncio.get_running_loop()
        self._since[connection] = loop.time()
        self._by_address.setdefault(connection.address, {})[connection] = None
        if self._timer is None and self._timeout_s is not None:
            self._timer = loop.call_later(self._timeout_s, self._reap)

    def remove(self, connection: AwaitedConnection) -> None:
        """It has done what was awaited, or is gone."""
        if self._since.pop(connection, None) is None:
            return
        same = self._by_address[connection.address]
        del same[connection]
        if not same:
            del self._by_address[connection.address]
        if not self._since:
            self._stop()

    def give_up_oldest(self, address: str | None = None, but: AwaitedConnection | None = None) -> bool:
        """Of an address, or of all; whether there was any, beside that one."""
        waiting = iter(self._since if address is None else self._by_address.get(address, ()))
        oldest = next((connection for connection in waiting if connection is not but), None)
        if oldest is not None:
            self.give_up(oldest)
        return oldest is not None

    def give_up(self, connection: AwaitedConnection) -> None:
        self.remove(connection)
        connection.give_up()

    def _reap(self) -> None:
        assert self._timeout_s is not None
        self._timer = None
        loop = asyncio.get_running_loop()
        late = loop.time() - self._timeout_s
        for connection in [connection for connection, since in self._since.items() if since <= late]:
            self.give_up(connection)
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


def peer_of(transport: asyncio.Transport) -> tuple[str, int] | None:
    """Who is at the other end: host and port. A socket of IPv6 that takes IPv4 as well tells such an address
    as one of its own, by which no proxy would be known that is to be believed."""
    peer = get_remote_addr(transport)
    if peer is None:
        return None
    host, port = peer
    try:
        mapped = IPv6Address(host).ipv4_mapped
    except ValueError:
        return peer
    return str(mapped or host), port
