"""Long-lived routes: each request to one counts as an open connection of its holder and address, for as long
as its answer takes, and ends with the key that it was asked for by.

`Lasting` stands between a route's guard, which says who came, and its endpoint. It knows nothing of what is
answered; that there is no room is the guard's to say.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from itertools import count

from starlette.requests import HTTPConnection
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from realtime.access.connection_limits import OpenConnection, OpenConnections
from realtime.http.guard import caller_of, holder_of
from realtime.transport.asgi_http_extension import CUT_OFF

OPEN = "midstream.open_connection"
LOOKS = 5  # at revoked keys, a second apart, until whoever reads has to have taken what is said of theirs


class Lasting:
    def __init__(self, app: ASGIApp, connections: OpenConnections) -> None:
        self._app = app
        self._connections = connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asking = HTTPConnection(scope)
        connection = self._connections.open(caller_of(asking).address, holder_of(asking))
        scope[OPEN] = connection
        try:
            await self._app(scope, receive, send)
        finally:
            self._connections.close(connection)


def lasting(connections: OpenConnections, *routes: Route | WebSocketRoute) -> list[Route | WebSocketRoute]:
    for route in routes:
        route.app = Lasting(route.app, connections)
    return list(routes)


def open_connection(scope: Scope) -> OpenConnection:
    """What a request counts as."""
    connection = scope[OPEN]
    assert isinstance(connection, OpenConnection)
    return connection


def ends_with_its_key(scope: Scope, say: Callable[[], Awaitable[None]]) -> None:
    """`say` has an answer say, at its end, that its key was revoked. Whoever has much left to read until then
    would stay for as long as they like: they are cut off."""
    looks, cut_off = count(1), scope.get("extensions", {}).get(CUT_OFF)

    async def revoke() -> None:
        await say()
        if next(looks) > LOOKS and cut_off is not None:
            cut_off()

    open_connection(scope).revoke = revoke
