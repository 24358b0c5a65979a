"""The guard of a route: who may use it. Every route has one; keys are asked for here and nowhere else.

A `Guard` stands before the app of one route: it lets nobody in but those for whom the route is, and tells
the app who came (`holder_of`). What it refuses it answers by itself, in the form that is used behind it.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec
from starlette.datastructures import Headers
from starlette.requests import HTTPConnection
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from realtime.access.credentials import Credentials
from realtime.http.request_io import retry_headers
from realtime.refusal import Refusal
from realtime.tenants.allowance import Holder

HOLDER = "midstream.holder"


class Access(Enum):
    EVERYBODY = "everybody"
    HOLDERS = "whoever holds a key for more than the metrics"
    METRICS = "whoever holds an admin's key, or one for the metrics"


def refusal_response(refusal: Refusal) -> Response:
    """A refusal over HTTP: the protocol's `error`, its status, and the headers that say the same."""
    error = msgspec.to_builtins(refusal.event())
    del error["type"]
    return JSONResponse({"error": error}, refusal.status, retry_headers(refusal))


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        credentials: Credentials,
        error_response: Callable[[Refusal], Response] = refusal_response,
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._error_response = error_response
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self.access is not Access.EVERYBODY:
            try:
                scope[HOLDER] = self._admitted(scope)
            except Refusal as refusal:
                await send_refusal(self._error_response(refusal), scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _admitted(self, scope: Scope) -> Holder:
        headers = Headers(scope=scope)
        if scope["type"] == "websocket":
            holder = self._credentials.of_upgrade(headers, scope["subprotocols"])
        else:
            holder = self._credentials.of_request(headers)
        self._check(holder)
        return holder

    def _check(self, holder: Holder) -> None:
        if self.access is Access.HOLDERS and holder.metrics:
            raise Refusal("forbidden", "This key may read /metrics, and do nothing else.")
        if self.access is Access.METRICS and not self._credentials.may_read_metrics(holder):
            raise Refusal(
                "forbidden",
                "This needs an admin's key, or one for the metrics: see `midstream keys add --help`.",
            )


async def send_refusal(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Instead of what was asked for, be that an answer or a WebSocket."""
    if scope["type"] == "websocket":
        await WebSocket(scope, receive, send).send_denial_response(response)
    else:
        await response(scope, receive, send)


def guarded(
    access: Access,
    credentials: Credentials,
    *routes: Route | WebSocketRoute,
    error_response: Callable[[Refusal], Response] = refusal_response,
) -> list[Route | WebSocketRoute]:
    for route in routes:
        route.app = Guard(route.app, access, credentials, error_response)
    return list(routes)


def holder_of(connection: HTTPConnection) -> Holder:
    """Who came through the guard."""
    holder = connection.scope[HOLDER]
    assert isinstance(holder, Holder)
    return holder
