"""Revocation: a key that is gone from the file ends its open connections, and the streams that outlive those.

The key file can change while nobody shows a key, so it is looked at every second.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from starlette.websockets import WebSocketDisconnect

from realtime.access.connection_limits import OpenConnection, OpenConnections
from realtime.access.keyring import Keyring
from realtime.hub.hub import Hub
from realtime.transport.asgi_websocket_extension import PeerGone

log = logging.getLogger("midstream")

EVERY_S = 1.0


async def enforce_revocations(keyring: Keyring, connections: OpenConnections, hub: Hub) -> None:
    while True:
        await asyncio.sleep(EVERY_S)
        await keyring.reload()
        await revoke(keyring, connections, hub)


async def revoke(keyring: Keyring, connections: OpenConnections, hub: Hub) -> None:
    """The streams of tenants that have no key any more, and whoever holds none. A connection that fails to
    end is the log's to tell, and keeps no other from ending."""
    hub.cancel_all(lambda entry: not keyring.has_tenant(entry.key.tenant))
    revoked = connections.matching(lambda holder: not keyring.holds(holder))
    for failure in await asyncio.gather(*map(_close, revoked), return_exceptions=True):
        if isinstance(failure, Exception):
            log.error("a connection whose key is revoked could not be ended", exc_info=failure)


async def _close(connection: OpenConnection) -> None:
    # It is going already: by the transport's word, by starlette's for that, or closed by us.
    with suppress(PeerGone, WebSocketDisconnect, RuntimeError):
        await connection.revoke()
