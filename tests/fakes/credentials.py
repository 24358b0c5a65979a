"""Credentials of a server that shares no engine with another."""

from __future__ import annotations

from typing import Any

from engine.deposits import Deposits
from realtime.access.authentication import Credentials
from realtime.access.client_secrets import ClientSecrets
from realtime.hub.starting import tenant_number
from tests.fakes.simulated_server import Clock


class OwnShelf:
    """As the hub's, where there is no engine that keeps anything."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._deposits = Deposits()

    async def leave(self, name: bytes, what: bytes, for_s: float, tenant: str) -> bool:
        return self._deposits.leave(name, what, for_s, self._clock(), tenant_number(tenant))

    async def collect(self, name: bytes) -> bytes | None:
        return self._deposits.collect(name, self._clock())


def own_secrets(clock: Clock | None = None) -> ClientSecrets:
    return ClientSecrets(OwnShelf(clock or Clock()))


def credentials(*parts: Any) -> Credentials:
    return Credentials(own_secrets(), *parts)
