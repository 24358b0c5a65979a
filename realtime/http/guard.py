"""The guard of a route: who may use it. Every route has one; keys are asked for here and nowhere else.

A `Guard` stands before the app of one route: it lets nobody in but those for whom the route is, and tells
the app who came (`holder_of`, `caller_of`). What it refuses, and what the app refuses by raising a `Refusal`
before it has answered, is told to the observer and answered here, in the form that is used at that route.
Whoever goes away in the middle of a request is answered nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

import msgspec
from msgspec.structs import replace
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from realtime.access.authentication import Credentials
from realtime.http.bodies_and_headers import retry_headers
from realtime.hub.observers import Caller, Observer
from realtime.refusal import Refusal, shortened
from realtime.tenants.allowance import Holder

HOLDER, CALLER, HEADERS = "midstream.holder", "midstream.caller", "midstream.refusal_headers"

ErrorResponse = Callable[[Refusal, dict[str, str]], Response]


class Access(Enum):
    EVERYBODY = "everybody"
    HOLDERS = "whoever holds a key for more than the metrics"
    METRICS = "whoever holds an admin's key, or one for the metrics"


def refusal_response(refusal: Refusal, headers: dict[str, str] | None = None) -> Response:
    """A refusal over HTTP: the protocol's `error`, its status, and the headers that say the same."""
    error = msgspec.to_builtins(refusal.event())
    del error["type"]
    return JSONResponse({"error": error}, refusal.status, (headers or {}) | retry_headers(refusal))


class Guard:
    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        credentials: Credentials,
        endpoint: str,
        observer: Observer,
        error_response: ErrorResponse,
    ) -> None:
        self._app = app
        self._credentials = credentials
        self._endpoint = endpoint
        self._observer = observer
        self._error_response = error_response
        self.access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[CALLER] = caller_from(scope, self._endpoint)
        try:
            if self.access is not Access.EVERYBODY:
                scope[HOLDER] = holder = await self._shown(scope)
                scope[CALLER] = replace(scope[CALLER], tenant=holder.tenant, key=holder.name)
                self._check(holder)
            await self._app(scope, receive, send)
        except Refusal as refusal:
            self._observer.refused(refusal.code, scope[CALLER])
            await self._deny(self._error_response(refusal, scope.get(HEADERS, {})), scope, receive, send)
        except ClientDisconnect:
            pass  # nobody is there to be answered

    async def _shown(self, scope: Scope) -> Holder:
        headers = Headers(scope=scope)
        if scope["type"] == "websocket":
            return await self._credentials.of_upgrade(headers, scope["subprotocols"])
        return await self._credentials.of_request(headers)

    def _check(self, holder: Holder) -> None:
        if self.access is Access.HOLDERS and holder.metrics:
            raise Refusal("forbidden", "This key may read /metrics, and do nothing else.")
        if self.access is Access.METRICS and not self._credentials.may_read_metrics(holder):
            raise Refusal(
                "forbidden",
                "This needs an admin's key, or one for the metrics: see `midstream keys add --help`.",
            )

    async def _deny(self, response: Response, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await WebSocket(scope, receive, send).send_denial_response(response)
        else:
            await response(scope, receive, send)


def guarded(
    access: Access,
    credentials: Credentials,
    *routes: Route | WebSocketRoute,
    observer: Observer,
    error_response: ErrorResponse = refusal_response,
) -> list[Route | WebSocketRoute]:
    for route in routes:
        route.app = Guard(route.app, access, credentials, route.path_format, observer, error_response)
    return list(routes)


def caller_from(scope: Scope, endpoint: str) -> Caller:
    """Of whom no more is known yet than the address, which is what a proxy has said it is."""
    address = shortened(scope["client"][0]) if scope.get("client") else ""
    return Caller("websocket" if scope["type"] == "websocket" else "http", endpoint, address)


def caller_of(connection: HTTPConnection) -> Caller:
    """Who came through the guard, and where."""
    caller = connection.scope[CALLER]
    assert isinstance(caller, Caller)
    return caller


def set_refusal_headers(request: Request, headers: dict[str, str]) -> None:
    """What a refusal of this request is to have beside its own headers."""
    request.scope[HEADERS] = headers


def holder_of(connection: HTTPConnection) -> Holder:
    """Who came through the guard."""
    holder = connection.scope[HOLDER]
    assert isinstance(holder, Holder)
    return holder
