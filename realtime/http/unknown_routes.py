"""Unknown routes: the refusal of what reaches no endpoint: a path where there is nothing, a method that a
path does not take, or what is no request.

It has the form of OpenAI's errors, which holds the protocol's own fields: whoever asks for what is not there
mostly speaks that API. It knows no route; the router says what it did not find, and its routes what they
take.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.websockets import WebSocket

from realtime.http.guard import caller_from
from realtime.http.openai.errors import error_response
from realtime.hub.observers import Caller, Observer
from realtime.refusal import HTTP_ERRORS, Refusal

NO_ENDPOINT = "none"  # where an observer is told which endpoint refused
_CODES = {status: code for code, (status, _) in HTTP_ERRORS.items()} | {429: "rate_limited", 503: "draining"}


def no_endpoint(observer: Observer) -> Callable[[Request, Exception], Awaitable[Response]]:
    """What answers when the router has found none."""

    async def refuse(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        allowed = ", ".join(_allowed(request)) if error.status_code == 405 else ""
        refusal = _refusal(error.status_code, allowed)
        observer.refused(refusal.code, caller_from(request.scope, NO_ENDPOINT))
        headers = {**(error.headers or {})} | ({"Allow": allowed} if allowed else {})
        return error_response(refusal, headers)

    return refuse


def _allowed(request: Request) -> list[str]:
    """By all routes of its path: the router names those of the first."""
    here = [
        route.methods or set()
        for route in request.app.routes
        if isinstance(route, Route) and route.matches(request.scope)[0] is Match.PARTIAL
    ]
    return sorted(set[str]().union(*here))


def _refusal(status: int, allowed: str) -> Refusal:
    if status == 405:
        return Refusal("method_not_allowed", f"What is at this path takes {allowed} alone.")
    return Refusal("not_found", "There is nothing at this path: GET /openapi.json lists what there is.")


def no_request(observer: Observer) -> Callable[[int, str], None]:
    """Tells the observer what was refused with which status, to which address, before it was a request."""

    def refused(status: int, address: str) -> None:
        observer.refused(_CODES.get(status, "bad_request"), Caller("http", NO_ENDPOINT, address))

    return refused


async def websocket_alone(request: Request) -> Response:
    raise Refusal("upgrade_required", "What is at this path is a WebSocket: open one here.")


async def no_websocket(websocket: WebSocket) -> None:
    raise Refusal("not_found", "There is no WebSocket at this path: it is at /v1/realtime.")
