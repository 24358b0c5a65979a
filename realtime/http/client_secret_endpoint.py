"""The endpoint `POST /v1/realtime/client_secrets`: whoever holds a key gets a secret with which one page
connects once.

It knows one request and its response; what a secret is worth is `client_secrets`' business.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from realtime.access.authentication import Credentials
from realtime.access.client_secrets import LIFE_S
from realtime.http.bodies_and_headers import read_body
from realtime.http.guard import holder_of
from realtime.refusal import Refusal

BODY_LIMIT = 4096


class ClientSecretRequest(Struct, forbid_unknown_fields=True):
    origin: str | None = None  # of the page that will connect


class ClientSecretResponse(Struct):
    secret: str
    expires_at: int  # in seconds since 1970
    expires_in_s: int


def client_secret_endpoint(credentials: Credentials) -> Callable[[Request], Awaitable[Response]]:
    async def issue(request: Request) -> Response:
        asked = _asked(await read_body(request, BODY_LIMIT))
        credentials.check_held(holder_of(request))
        origin = asked.origin or request.headers.get("origin")
        if origin is not None:
            credentials.check_origin(origin, request.headers)
        secret = await credentials.secrets.issue(holder_of(request), origin)
        body = msgspec.json.encode(ClientSecretResponse(secret, int(time.time()) + LIFE_S, LIFE_S))
        return Response(body, media_type="application/json", headers={"Cache-Control": "no-store"})

    return issue


def _asked(body: bytes) -> ClientSecretRequest:
    if not body:
        return ClientSecretRequest()
    try:
        return msgspec.json.decode(body, type=ClientSecretRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        right = '{"origin": "https://app.example"}'
        raise Refusal("invalid_frame", f"The body is empty, or a JSON object such as {right}.") from None
