"""Long-lived routes: each request to one counts as an open connection of its holder and address, for as long
as its answer takes.

`Lasting` stands between a route's guard, which says who came, and its endpoint. It knows nothing of what is
answered; that there is no room is the guard's to say.
"""

from __future__ import annotations

from starlette.requests import HTTPConnection
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from realtime.access.connection_limits import OpenConnection, OpenConnections
from realtime.http.guard import caller_of, holder_of

OPEN = "midstream.open_connection"


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
