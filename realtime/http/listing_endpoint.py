"""The endpoint `GET /v1/streams`: the listing of live streams. A tenant is told of its own; an admin of all,
and of the server.

It knows HTTP and who asks; what is told lies in `listing`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
from starlette.datastructures import QueryParams
from starlette.requests import Request
from starlette.responses import Response

from realtime.access.authentication import Credentials
from realtime.http.bodies_and_headers import query_of
from realtime.http.guard import holder_of
from realtime.http.request_work import RequestWork
from realtime.observability.listing import STATES, ListingObserver
from realtime.pieces import Pieces
from realtime.refusal import Refusal
from realtime.stream.states import State

LARGEST_LIMIT, DEFAULT_LIMIT = 1000, 100


def listing_endpoint(
    listings: ListingObserver, credentials: Credentials, work: RequestWork, connections: Callable[[], int]
) -> Callable[[Request], Awaitable[Response]]:
    async def listed(request: Request) -> Response:
        holder = holder_of(request)
        query = query_of(request, "limit", "state")
        most, state = _limit(query), _state(query)

        def listing() -> Pieces[Response]:
            if credentials.are_admins(holder):
                told = yield from listings.of_all(most=most, state=state, connections=connections())
            else:
                told = yield from listings.of_tenant(holder.tenant, most=most, state=state)
            return Response(
                msgspec.json.encode(told),
                media_type="application/json",
                headers={"Cache-Control": "no-store"},
            )

        return await work.brief_response(request, listing())

    return listed


def _limit(query: QueryParams) -> int:
    said = query.get("limit", str(DEFAULT_LIMIT))
    if not (said.isascii() and said.isdigit() and len(said) <= 4 and 1 <= int(said) <= LARGEST_LIMIT):
        raise Refusal("invalid_params", f"`limit` must be a whole number, 1 to {LARGEST_LIMIT}.")
    return int(said)


def _state(query: QueryParams) -> State | None:
    said = query.get("state")
    for state in STATES:
        if said == state:
            return state
    if said is not None:
        raise Refusal("invalid_params", f"`state` must be one of {', '.join(STATES)}.")
    return None
