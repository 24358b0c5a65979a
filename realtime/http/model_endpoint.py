"""The endpoint `POST /v1/models/NAME`: an admin has a model loaded, unloaded, pinned or let go.

It knows HTTP and who asks; what becomes of a model is its keeper's.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Literal

import msgspec
from msgspec import Struct
from starlette.requests import Request
from starlette.responses import Response

from realtime.access.authentication import Credentials
from realtime.http.bodies_and_headers import read_body
from realtime.http.guard import holder_of
from realtime.hub.hub import Hub
from realtime.hub.models import Keeper
from realtime.refusal import Refusal

BODY_LIMIT = 4096


class ModelRequest(Struct, forbid_unknown_fields=True):
    do: Literal["load", "unload", "pin", "unpin"]


def model_endpoint(hub: Hub, credentials: Credentials) -> Callable[[Request], Awaitable[Response]]:
    async def act(request: Request) -> Response:
        if not credentials.are_admins(holder_of(request)):
            raise Refusal("forbidden", "What is loaded is for an admin's key to say.")
        asked = _asked(await read_body(request, BODY_LIMIT))
        credentials.check_held(holder_of(request))
        known = hub.models.find(request.path_params["model"])
        if known.keeper is None:
            raise Refusal(
                "unsupported", f'The engines of "{known.name}" are not this server\'s to load and unload.'
            )
        _do(asked.do, known.keeper, known.name)
        told = next(model for model in hub.serving.catalog if model.name == known.name)
        return Response(msgspec.json.encode(told), media_type="application/json")

    return act


def _do(what: str, keeper: Keeper, name: str) -> None:
    match what:
        case "load":
            keeper.want()
        case "unload" if keeper.pinned:
            raise Refusal("invalid_params", f'The model "{name}" is pinned: unpin it first.')
        case "unload":
            keeper.unload()
        case _:
            keeper.pin(pinned=what == "pin")


def _asked(body: bytes) -> ModelRequest:
    try:
        return msgspec.json.decode(body, type=ModelRequest)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        right = '{"do": "load"}; `do` may also be "unload", "pin" and "unpin"'
        raise Refusal("invalid_frame", f"The body is a JSON object such as {right}.") from None
