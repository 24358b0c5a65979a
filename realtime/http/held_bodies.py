"""Held bodies: how much a tenant may have the server hold of requests, until they are answered, or what they
ask for is counted elsewhere.

A short request counts as no open connection, so that whoever follows a stream on the only one it may have can
steer it all the same; and many that last may be waiting for their turn. `HoldingBodies` stands between a
route's guard, which says who came, and its endpoint, which says how large a body has grown. It knows nothing
of what is in it.
"""

from __future__ import annotations

from collections import Counter

from starlette.requests import HTTPConnection
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from realtime.http.guard import holder_of
from realtime.refusal import Refusal

BODY = "midstream.held_body"
SMALL = 4 << 10  # bytes, which no stop has more of: such bodies are not counted
MANY = 8  # bodies of the largest size at once


class HeldBody:
    """Of one request."""

    def __init__(self, held: Counter[str], tenant: str, most_bytes: int) -> None:
        self._held = held  # by tenant
        self._tenant = tenant
        self._most_bytes = most_bytes
        self._bytes = 0

    def grow(self, size: int) -> None:
        """Raises Refusal, and holds nothing, where all of the tenant's would be too much."""
        if size <= SMALL:
            return
        if self._held[self._tenant] + size - self._bytes > self._most_bytes:
            self.let_go()
            raise Refusal(
                "rate_limited",
                f"Your key's tenant has {self._most_bytes >> 10} KiB of requests under way: send this again "
                "when some are answered.",
                retry_after_ms=1000,
            )
        self._held[self._tenant] += size - self._bytes
        self._bytes = size

    def let_go(self) -> None:
        self._held[self._tenant] -= self._bytes
        self._bytes = 0
        if not self._held[self._tenant]:
            del self._held[self._tenant]


class HoldingBodies:
    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes
        self._held: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope[BODY] = body = HeldBody(self._held, holder_of(HTTPConnection(scope)).tenant, self._most_bytes)
        try:
            await self._app(scope, receive, send)
        finally:
            body.let_go()


def holding_bodies(most_bytes: int, route: Route, *, many: int = MANY) -> Route:
    """`most_bytes` is what one body may have, and a tenant so many of that size."""
    route.app = HoldingBodies(route.app, many * most_bytes)
    return route


def held_body(scope: Scope) -> HeldBody:
    """What a request's body counts as."""
    body = scope[BODY]
    assert isinstance(body, HeldBody)
    return body
