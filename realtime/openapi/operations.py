"""Every door over HTTP as OpenAPI's path items: what may be asked there, and what is answered.

It knows paths and media types. Schemas and errors have rooms of their own.
"""

from __future__ import annotations

from typing import Any

import msgspec

from midstream.protocol import MAX_INDEX, RequestId
from realtime.listing import STATES
from realtime.listing_door import MANY, MOST
from realtime.openapi.refusals import SHOULD_RETRY, refused
from realtime.openapi.schemas import Schema, ref

JSON, SSE, TEXT = "application/json", "text/event-stream", "text/plain"

_KEY = ("unauthenticated", "forbidden")
_NEW = (
    *("invalid_frame", "invalid_params", "context_too_long", "unknown_model"),
    *("request_conflict", "request_finished", "request_taken", "request_expired"),
    *(
        "too_large",
        "unsupported",
        "rate_limited",
        "too_many_streams",
        "engine_error",
        "overloaded",
        "draining",
    ),
)
_OLD = ("unknown_request", "request_finished", "request_taken", "request_expired", "overloaded", "draining")
_X_REQUEST_ID = {
    "X-Request-Id": {
        "description": "The stream's `request_id`, percent-encoded where a header wants it.",
        "required": True,
        "schema": {"type": "string"},
    }
}
_NEW_ID = {
    "name": "X-Request-Id",
    "in": "header",
    "description": "The stream's id, where the body has no `request_id`.",
    "schema": msgspec.json.schema(RequestId),
}


def paths() -> dict[str, Any]:
    return {
        "/v1/chat/completions": {"post": _completion("chat", "ChatBody", *_CHAT)},
        "/v1/completions": {"post": _completion("complete", "TextBody", "Completion", "Completion")},
        "/v1/models": {"get": _models()},
        "/v1/models/{model}": {"parameters": [_in_path("model", {"type": "string"})], "get": _model()},
        "/v1/streams": {"get": _streams()},
        "/v1/streams/{request_id}": {"parameters": [_REQUEST_ID], "get": _follow()},
        "/v1/streams/{request_id}/control": {"parameters": [_REQUEST_ID], "post": _control()},
        "/v1/realtime/client_secrets": {"post": _secret()},
        "/healthz": {"get": _open("health", "Whether this process answers.", _status("ok"))},
        "/readyz": {"get": _readiness()},
        "/metrics": {"get": _metrics()},
        "/asyncapi.json": {"get": _open("asyncapi", "The WebSocket's interface, as AsyncAPI 3.", _DOCUMENT)},
        "/openapi.json": {"get": _open("openapi", "This document.", _DOCUMENT)},
    }


# -- OpenAI's --------------------------------------------------------------------------------------

_CHAT = ("ChatCompletion", "ChatCompletionChunk")
_ABOUT = (
    "With `stream: true` the answer comes as server-sent events: chunks, then `[DONE]`; what goes wrong on "
    "the way is an `OpenAIError`. A field that is null is not there. Of OpenAI's other fields those are "
    "ignored that ask for nothing, and the rest is refused by name. A second request with the same id and "
    "content attaches to the first."
)


def _completion(name: str, body: str, whole: str, chunk: str) -> dict[str, Any]:
    said = {"anyOf": [{"const": "[DONE]"}, _in_json({"anyOf": [ref(chunk), ref("OpenAIError")]})]}
    headers = _X_REQUEST_ID | {"X-Should-Retry": SHOULD_RETRY}
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
                "headers": _X_REQUEST_ID,
                "content": {JSON: {"schema": ref(whole)}, SSE: _events(said)},
            },
            **refused(*_KEY),
            **refused(*_NEW, shape="OpenAIError", headers=headers),
        },
    }


def _models() -> dict[str, Any]:
    return {
        "operationId": "models",
        "tags": ["OpenAI"],
        "summary": "All models: there is one, once the engine is there.",
        "responses": {"200": _json("The models.", ref("ModelList")), **refused(*_KEY)},
    }


def _model() -> dict[str, Any]:
    missing = refused("unknown_model", shape="OpenAIError", headers={"X-Should-Retry": SHOULD_RETRY})
    return {
        "operationId": "model",
        "tags": ["OpenAI"],
        "summary": "One model.",
        "responses": {"200": _json("The model.", ref("Model")), **refused(*_KEY), **missing},
    }


# -- streams ---------------------------------------------------------------------------------------


def _in_path(name: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def _streams() -> dict[str, Any]:
    limit = {"type": "integer", "minimum": 1, "maximum": MOST, "default": MANY}
    return {
        "operationId": "streams",
        "tags": ["streams"],
        "summary": "The streams that live, the youngest first: one's own, or with an admin's key all.",
        "parameters": [
            {"name": "limit", "in": "query", "description": "How many at most.", "schema": limit},
            {
                "name": "state",
                "in": "query",
                "description": "Of this state alone.",
                "schema": {"enum": [*STATES]},
            },
        ],
        "responses": {"200": _json("The streams.", ref("Listing")), **refused(*_KEY, "invalid_params")},
    }


_REQUEST_ID = _in_path("request_id", msgspec.json.schema(RequestId))


def _follow() -> dict[str, Any]:
    seq = {"type": "integer", "minimum": -1, "maximum": MAX_INDEX}
    return {
        "operationId": "follow",
        "tags": ["streams"],
        "summary": "A stream's events, from one that the reader names to its end.",
        "description": "The stream is this reader's from then on. Each event has its `seq` as its id.",
        "parameters": [
            {
                "name": "after",
                "in": "query",
                "description": "The `seq` of the last event that the reader has; -1 for none.",
                "schema": seq | {"default": -1},
            },
            {
                "name": "Last-Event-ID",
                "in": "header",
                "description": "The same, from an EventSource that comes again. It goes before `after`.",
                "schema": seq,
            },
        ],
        "responses": {
            "200": {
                "description": "The events.",
                "headers": _X_REQUEST_ID,
                "content": {
                    SSE: _events(_in_json(ref("stream.Event")), id={"type": "string", "pattern": "^[0-9]+$"})
                },
            },
            "204": {"description": "The stream has ended, and this reader has had all of it."},
            **refused(*_KEY, "invalid_params", *_OLD),
        },
    }


def _control() -> dict[str, Any]:
    return {
        "operationId": "control",
        "tags": ["streams"],
        "summary": "Steer a stream: one control frame, and what answers it.",
        "description": "The frame says no `request_id`, or that of the path.",
        "requestBody": {"required": True, "content": {JSON: {"schema": ref("stream.Frame")}}},
        "responses": {
            "200": _json("The event that answers the frame.", ref("stream.Answer"))
            | {"headers": _X_REQUEST_ID},
            "204": {"description": "Taken; frames of this kind have no answer.", "headers": _X_REQUEST_ID},
            **refused(
                *(*_KEY, *_OLD, "invalid_frame", "invalid_params", "context_too_long"),
                *("too_large", "unsupported", "rate_limited", "engine_error"),
            ),
        },
    }


# -- the rest --------------------------------------------------------------------------------------

_DOCUMENT: dict[str, Any] = {
    "description": "The document.",
    "content": {JSON: {"schema": {"type": "object"}}},
}


def _secret() -> dict[str, Any]:
    issued = _json("The secret.", ref("Issued"))
    never = {"Cache-Control": {"required": True, "schema": {"const": "no-store"}}}
    return {
        "operationId": "client_secret",
        "tags": ["WebSocket"],
        "summary": "A secret with which one page connects once, within 30 seconds.",
        "requestBody": {"required": False, "content": {JSON: {"schema": ref("Asked")}}},
        "responses": {
            "200": issued | {"headers": never},
            **refused(*_KEY, "invalid_frame", "too_large", "rate_limited"),
        },
    }


def _metrics() -> dict[str, Any]:
    return {
        "operationId": "metrics",
        "tags": ["operations"],
        "summary": "The server's numbers, for Prometheus. With keys, for admins alone.",
        "responses": {
            "200": {"description": "The numbers.", "content": {TEXT: {"schema": {"type": "string"}}}},
            "404": _status("this server counts nothing: see --metrics"),
            **refused(*_KEY),
        },
    }


def _readiness() -> dict[str, Any]:
    ready = _open("readiness", "Whether a stream started now would run.", _status("ready"))
    ready["responses"]["503"] = _status("draining", "engine not ready")
    return ready


def _open(name: str, summary: str, told: dict[str, Any]) -> dict[str, Any]:
    """An operation for everybody."""
    return {
        "operationId": name,
        "tags": ["operations"],
        "summary": summary,
        "security": [],
        "responses": {"200": told},
    }


def _status(*values: str) -> dict[str, Any]:
    told: Schema = {
        "type": "object",
        "properties": {"status": {"enum": list(values)}},
        "required": ["status"],
        "additionalProperties": False,
    }
    return _json(" or ".join(values), told)


def _json(description: str, schema: Schema) -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": schema}}}


def _events(data: Schema, **fields: Schema) -> dict[str, Any]:
    """Each event as an object of its fields, as in OpenAPI 3.2: 3.1 does not say how."""
    return {"schema": {"type": "object", "properties": {"data": data, **fields}, "required": ["data"]}}


def _in_json(schema: Schema) -> Schema:
    return {"type": "string", "contentMediaType": JSON, "contentSchema": schema}
