"""The OpenAPI operations of OpenAI's API: completions and models."""

from __future__ import annotations

from typing import Any

import msgspec

from midstream.protocol import RequestId
from realtime.http.openapi.refusals import SHOULD_RETRY, refused
from realtime.http.openapi.schemas import ref
from realtime.http.openapi.shared_parts import JSON, KEY, SSE, X_REQUEST_ID, as_json, events, in_json, in_path

_NEW = (
    *("invalid_frame", "invalid_params", "context_too_long", "unknown_model"),
    *("request_conflict", "request_finished", "request_taken", "request_expired"),
    *("too_large", "unsupported", "rate_limited", "too_many_streams"),
    *("engine_error", "overloaded", "model_loading", "draining"),
)
_NEW_ID = {
    "name": "X-Request-Id",
    "in": "header",
    "description": "The stream's id, where the body has no `request_id`.",
    "schema": msgspec.json.schema(RequestId),
}
_ABOUT = (
    "With `stream: true` the answer comes as server-sent events: chunks, then `[DONE]`; what goes wrong on "
    "the way is an `OpenAIError`. A field that is null is not there. Of OpenAI's other fields those are "
    "ignored that ask for nothing, and the rest is refused by name. A second request with the same id and "
    "content attaches to the first."
)


def paths() -> dict[str, Any]:
    chat = _completion("chat", "ChatBody", "ChatCompletion", "ChatCompletionChunk")
    return {
        "/v1/chat/completions": {"post": chat},
        "/v1/completions": {"post": _completion("complete", "TextBody", "Completion", "Completion")},
        "/v1/models": {"get": _models()},
        "/v1/models/{model}": {
            "parameters": [in_path("model", {"type": "string"})],
            "get": _model(),
            "post": _act(),
        },
    }


def _completion(name: str, body: str, whole: str, chunk: str) -> dict[str, Any]:
    said = {"anyOf": [{"const": "[DONE]"}, in_json({"anyOf": [ref(chunk), ref("OpenAIError")]})]}
    return {
        "operationId": name,
        "tags": ["OpenAI"],
        "summary": "An answer, whole or as it is written.",
        "description": _ABOUT,
        "parameters": [_NEW_ID],
        "requestBody": {"required": True, "content": {JSON: {"schema": ref(body)}}},
        "responses": {
            "200": {
                "description": "The answer.",
                "headers": X_REQUEST_ID,
                "content": {JSON: {"schema": ref(whole)}, SSE: events(said)},
            },
            **_refused(*KEY),
            **_refused(*_NEW, headers=X_REQUEST_ID),
        },
    }


def _models() -> dict[str, Any]:
    return {
        "operationId": "models",
        "tags": ["OpenAI"],
        "summary": "All models that engines serve, the default first.",
        "responses": {"200": as_json("The models.", ref("ModelList")), **_refused(*KEY)},
    }


def _model() -> dict[str, Any]:
    return {
        "operationId": "model",
        "tags": ["OpenAI"],
        "summary": "One model.",
        "responses": {
            "200": as_json("The model.", ref("Model")),
            **_refused(*KEY, "unknown_model", "overloaded"),
        },
    }


def _act() -> dict[str, Any]:
    return {
        "operationId": "changeModel",
        "tags": ["operations"],
        "summary": "An admin has a model loaded, unloaded, pinned or let go.",
        "requestBody": {"required": True, "content": {JSON: {"schema": ref("ModelRequest")}}},
        "responses": {
            "200": as_json("The model.", ref("CatalogModel")),
            **refused(
                *(*KEY, "invalid_frame", "invalid_params", "unknown_model", "too_large", "unsupported"),
                "overloaded",
            ),
        },
    }


def _refused(*codes: str, headers: dict[str, Any] | None = None) -> dict[str, Any]:
    return refused(*codes, shape="OpenAIError", headers={"X-Should-Retry": SHOULD_RETRY} | (headers or {}))
