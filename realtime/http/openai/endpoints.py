"""`/v1/chat/completions`, `/v1/completions` and `/v1/models`: a request in, an answer out.

It knows HTTP: bodies and their size, ids, headers and status codes. What is asked and answered lies beside.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Awaitable, Callable

import msgspec
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from realtime.http import sse
from realtime.http.guard import holder_of
from realtime.http.openai.completion import Answering, Dialect
from realtime.http.openai.errors import error_response
from realtime.http.openai.requests import read
from realtime.http.openai.responses import Model, ModelList
from realtime.http.openai.starts import starts
from realtime.http.request_io import body_of, named
from realtime.http.sse import Patience
from realtime.hub.hub import Hub
from realtime.refusal import Refusal

Endpoint = Callable[[Request], Awaitable[Response]]


def completions(dialect: Dialect, hub: Hub, most_bytes: int, patience: Patience) -> Endpoint:
    async def answer(request: Request) -> Response:
        request_id = request.headers.get("x-request-id")
        try:
            body = read(dialect.BODY, await body_of(request, most_bytes))
            body.request_id = body.request_id or request_id
            request_id = body.request_id or dialect.PREFIX + secrets.token_hex(12)
            answering = Answering(
                hub,
                holder_of(request).tenant,
                dialect,
                starts(body, request_id, request.headers.get("traceparent")),
                include_usage=body.stream and body.stream_options.include_usage,
            )
        except Refusal as refusal:
            return error_response(refusal, named(request_id or dialect.PREFIX + secrets.token_hex(12)))
        except ClientDisconnect:
            return Response()  # to nobody
        return Answered(answering, named(request_id), patience, stream=body.stream)

    return answer


class Answered(Response):
    """An answer that is still to be made."""

    def __init__(
        self, answering: Answering, named: dict[str, str], patience: Patience, *, stream: bool
    ) -> None:
        super().__init__()
        self._answering = answering
        self._named = named
        self._patience = patience
        self._stream = stream

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with sse.watched(receive, self._answering.leave):
            refusal = await self._answering.begin()
            if refusal is None and self._stream:
                await sse.tell(self._answering, send, self._named, self._patience)
                return
            whole = refusal or await self._answering.whole()
        await self._response(whole)(scope, receive, send)

    def _response(self, whole: object) -> Response:
        if isinstance(whole, Refusal):
            return error_response(whole, self._named)
        return Response(msgspec.json.encode(whole), media_type="application/json", headers=self._named)


def models(hub: Hub) -> tuple[Endpoint, Endpoint]:
    """All of them, and one by its name. There is one, once the engine is there."""
    created = int(time.time())

    def known() -> list[Model]:
        model = hub.model
        return [] if model is None else [Model(id=model.name, created=created, context_length=model.context)]

    async def listed(request: Request) -> Response:
        return _json(ModelList(known()))

    async def one(request: Request) -> Response:
        name = request.path_params["model"]
        found = next((model for model in known() if model.id == name), None)
        if found is None:
            return error_response(Refusal("unknown_model", f'There is no model "{name}".'))
        return _json(found)

    return listed, one


def _json(told: Model | ModelList) -> Response:
    return Response(msgspec.json.encode(told), media_type="application/json")
