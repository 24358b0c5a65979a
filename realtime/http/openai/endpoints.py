"""The endpoints `/v1/chat/completions`, `/v1/completions` and `/v1/models`: a request in, a response out.

It knows HTTP: bodies and their size, ids, headers and status codes. What is asked and answered lies beside.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from midstream.protocol import CatalogModel
from realtime.access.authentication import Credentials
from realtime.http import sse
from realtime.http.bodies_and_headers import read_body, request_id_header
from realtime.http.guard import caller_of, holder_of, set_refusal_headers
from realtime.http.held_bodies import held_body
from realtime.http.long_lived_routes import ends_with_its_key
from realtime.http.openai.completion_in_progress import CompletionSource, Dialect
from realtime.http.openai.errors import error_response, renamed
from realtime.http.openai.requests import read
from realtime.http.openai.response_types import Model, ModelList
from realtime.http.openai.starts import grammar_names, starts
from realtime.http.request_work import RequestWork
from realtime.http.sse import SseTimeouts
from realtime.hub.hub import Hub
from realtime.refusal import Refusal

Endpoint = Callable[[Request], Awaitable[Response]]

PIECE = 64 << 10  # bytes of a large body, which are sent when those before have left


def completions(
    dialect: Dialect,
    hub: Hub,
    credentials: Credentials,
    work: RequestWork,
    most_bytes: int,
    timeouts: SseTimeouts,
) -> Endpoint:
    async def complete(request: Request) -> Response:
        named, new_id = request.headers.get("x-request-id"), dialect.PREFIX + secrets.token_hex(12)
        set_refusal_headers(request, request_id_header(named or new_id))
        data = await read_body(request, most_bytes, held_body(request.scope).grow)

        def asked() -> CompletionResponse:
            credentials.check_held(holder_of(request))
            body = read(dialect.BODY, data)
            body.request_id = body.request_id or named
            request_id = body.request_id or new_id
            id_header = request_id_header(request_id)
            set_refusal_headers(request, id_header)
            source = CompletionSource(
                hub,
                caller_of(request),
                dialect,
                starts(body, request_id, request.headers.get("traceparent"), max_grace_ms=hub.max_grace_ms),
                work.of(caller_of(request)),
                include_usage=body.stream and body.stream_options.include_usage,
            )
            return CompletionResponse(source, id_header, timeouts, grammar_names(body), stream=body.stream)

        return await work.response(request, asked)

    return complete


class CompletionResponse(Response):
    """An answer that is still to be made."""

    def __init__(
        self,
        source: CompletionSource,
        id_header: dict[str, str],
        timeouts: SseTimeouts,
        names: dict[str, str],
        *,
        stream: bool,
    ) -> None:
        super().__init__()
        self._source = source
        self._id_header = id_header
        self._timeouts = timeouts
        self._names = names
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        ends_with_its_key(scope, self._source.revoke)
        async with sse.watched_for_disconnect(receive, self._source.leave):
            refusal = await self._source.begin()
            held_body(scope).let_go()  # what it asks for is started, and counted there
            if refusal is None and self._stream:
                await sse.stream_events(self._source, send, self._id_header, self._timeouts)
                return
            body = refusal or await self._source.body()
            await self._response(body)(scope, receive, send)

    def _response(self, body: list[bytes] | Refusal | None) -> Response:
        match body:
            case Refusal():
                return error_response(renamed(body, self._names), self._id_header)
            case None:
                return Response()  # to nobody
        headers = self._id_header | {"Content-Length": str(sum(map(len, body)))}
        return WholeAnswer(_pieces(body), media_type="application/json", headers=headers)


class WholeAnswer(StreamingResponse):
    """Whoever goes away is watched for already. A second watch would leave what was under way, and what
    waited, until garbage is looked for."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.stream_response(send)


async def _pieces(body: list[bytes]) -> AsyncIterator[bytes]:
    """Of equal size, but for the last; each part goes as it is sent."""
    piece = bytearray()
    for number, part in enumerate(body):
        body[number] = b""
        for at in range(0, len(part), PIECE):
            piece += part[at : at + PIECE]
            if len(piece) >= PIECE:
                yield bytes(piece)
                piece.clear()
    yield bytes(piece)


def models(hub: Hub) -> tuple[Endpoint, Endpoint]:
    """All of them, and one by its name or an alias."""
    created = int(time.time())

    def told(model: CatalogModel) -> Model:
        return Model(
            id=model.name,
            created=created,
            context_length=model.context,
            state=model.state,
            aliases=model.aliases,
            parent=model.parent,
            pinned=model.pinned,
            fingerprint=model.fingerprint,
        )

    async def listed(request: Request) -> Response:
        return _json(ModelList([told(model) for model in hub.serving.catalog]))

    async def one(request: Request) -> Response:
        name = hub.models.find(request.path_params["model"]).name
        return _json(next(told(model) for model in hub.serving.catalog if model.name == name))

    return listed, one


def _json(event: Model | ModelList) -> Response:
    return Response(msgspec.json.encode(event), media_type="application/json")
