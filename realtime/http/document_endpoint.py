"""The endpoint of a document that is always the same. It knows how it is made, and not what it says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from midstream import protocol


def document_endpoint(document: Callable[[int], dict[str, Any]]) -> Callable[[Request], Awaitable[Response]]:
    """`document` takes tens of milliseconds, and everybody may ask for it: it is made once, before anybody's
    tokens would wait for that."""
    encoded = _encoded(document)

    async def endpoint(request: Request) -> Response:
        return Response(encoded, media_type="application/json")

    return endpoint


@cache
def _encoded(document: Callable[[int], dict[str, Any]]) -> bytes:
    return msgspec.json.encode(document(protocol.VERSION))
