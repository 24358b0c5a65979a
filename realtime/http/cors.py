"""Cross-origin resource sharing (CORS): pages of which other origins may read what is answered over HTTP.

Browsers ask this of us before a page's script reads anything, and before it sends what a form could not
(the preflight). It stands around the whole application, so that a failure can be read as well. Who may ask
at all is the guard's business: a page that is not allowed reads nothing here, and what it asks is refused
there; its preflight is refused here, before any route is looked for.
"""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from realtime.http.guard import caller_from
from realtime.http.unknown_routes import NO_ENDPOINT
from realtime.hub.observers import Observer

METHODS = ("GET", "POST")
# What a script may see of an answer, beside its body, its type and its length.
EXPOSED = ("X-Request-Id", "Retry-After", "X-Should-Retry", "WWW-Authenticate")


def shared_with(origins: tuple[str, ...], app: ASGIApp, observer: Observer) -> ASGIApp:
    sharing = CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=METHODS,
        allow_headers=("*",),  # SDKs have many of their own; a page that may ask may say anything
        allow_private_network=True,  # the page's origin was named: it may be on the Internet, and we at home
        expose_headers=EXPOSED,
    )
    return CountedPreflights(sharing, observer)


class CountedPreflights:
    """Tells the observer of those that are refused."""

    def __init__(self, app: ASGIApp, observer: Observer) -> None:
        self._app = app
        self._observer = observer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] >= 400:
                self._observer.refused("forbidden", caller_from(scope, NO_ENDPOINT))
            await send(message)

        await self._app(scope, receive, counted if _is_preflight(scope) else send)


def _is_preflight(scope: Scope) -> bool:
    if scope["type"] != "http" or scope["method"] != "OPTIONS":
        return False
    return {"origin", "access-control-request-method"} <= {*Headers(scope=scope).keys()}
