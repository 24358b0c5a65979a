"""Routes that last: each request to one counts as an open connection of its holder and address, for as long
as its answer takes.

`Lasting` stands between a route's guard, which says who came, and its endpoint. It knows nothing of what is
answered; where there is no room it refuses by itself, in the form that is used behind it.
"""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from realtime.access.connection_limits import OpenConnection, OpenConnections
from realtime.http.guard import holder_of, refusal_response, send_refusal
from realtime.refusal import Refusal

OPEN = "midstream.open_connection"


class Lasting:
    def __init__(
        self, app: ASGIApp, connections: OpenConnections, error_response: Callable[[Refusal], Response]
    ) -> None:
        self._app = app
        self._connections = connections
        self._error_response = error_response

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        asking = HTTPConnection(scope)
        try:
            connection = self._connections.open(
                asking.client.host if asking.client else "", holder_of(asking)
            )
        except Refusal as refusal:
            await send_refusal(self._error_response(refusal), scope, receive, send)
            return
        scope[OPEN] = connection
        try:
            await self._app(scope, receive, send)
        finally:
            self._connections.close(connection)


def lasting(
    connections: OpenConnections,
    *routes: Route | WebSocketRoute,
    error_response: Callable[[Refusal], Response] = refusal_response,
) -> list[Route | WebSocketRoute]:
    for route in routes:
        route.app = Lasting(route.app, connections, error_response)
    return list(routes)


def open_connection(scope: Scope) -> OpenConnection:
    """What a request counts as."""
    connection = scope[OPEN]
    assert isinstance(connection, OpenConnection)
    return connection
