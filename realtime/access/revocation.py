"""Revocation: a key that is gone from the file ends its open connections, and the streams that outlive those.

The key file can change while nobody shows a key, so it is looked at every second.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

from realtime.access.connection_limits import OpenConnection, OpenConnections
from realtime.access.keyring import Keyring
from realtime.hub.hub import Hub
from realtime.transport.asgi_websocket_extension import PeerGone

EVERY_S = 1.0


async def enforce_revocations(keyring: Keyring, connections: OpenConnections, hub: Hub) -> None:
    while True:
        await asyncio.sleep(EVERY_S)
        keyring.reload()
        await revoke(keyring, connections, hub)


async def revoke(keyring: Keyring, connections: OpenConnections, hub: Hub) -> None:
    """The streams of tenants that have no key any more, and whoever holds none."""
    hub.cancel_all(lambda tenant: not keyring.has_tenant(tenant))
    revoked = connections.matching(lambda holder: not keyring.holds(holder))
    await asyncio.gather(*map(_close, revoked))


async def _close(connection: OpenConnection) -> None:
    with suppress(PeerGone, RuntimeError):  # it is going already
        await connection.revoke()
