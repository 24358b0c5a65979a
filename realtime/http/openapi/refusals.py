"""The error responses in the OpenAPI document: the shape of an error, and with which an operation may be
refused.

There are two shapes: the protocol's own, and OpenAI's with the protocol's fields beside it, at OpenAI's
endpoints.
"""

from __future__ import annotations

from typing import Any

import msgspec

from midstream.protocol import ERRORS, Error
from realtime.http.openapi.schemas import Schema, ref

_NOT_TOLD = ("type", "request_id", "ref")
_MESSAGE = {"type": "string", "description": "What is wrong, where, and what would be right."}
_RETRYABLE = {"type": "boolean", "description": "Whether the same request may succeed later."}
_RETRY_AFTER_MS = {"type": "integer", "minimum": 0}

RETRY_AFTER = {
    "description": "In seconds.",
    "required": True,
    "schema": {"type": "integer", "minimum": 0},
}
SHOULD_RETRY = {
    "description": "What OpenAI's clients go by, whatever the status.",
    "required": True,
    "schema": {"enum": ["true", "false"]},
}


def schemas() -> dict[str, Schema]:
    return {"Error": _object(_own()), "OpenAIError": _object(_openai())}


def _object(error: Schema) -> Schema:
    return {"type": "object", "properties": {"error": error}, "required": ["error"]}


def _own() -> Schema:
    """The protocol's `error`, less what only a stream's has."""
    error = msgspec.json.schema(Error)["$defs"]["Error"]
    told = {name: schema for name, schema in error["properties"].items() if name not in _NOT_TOLD}
    told |= {"code": {"enum": list(ERRORS)}, "message": _MESSAGE, "retryable": _RETRYABLE}
    required = [name for name in error["required"] if name not in _NOT_TOLD]
    return {"type": "object", "properties": told, "required": required, "additionalProperties": False}


def _openai() -> Schema:
    kinds = ["authentication_error", "invalid_request_error", "permission_error", "rate_limit_error"]
    told: Schema = {
        "message": _MESSAGE,
        "type": {"enum": [*kinds, "server_error"]},
        "param": {"type": ["string", "null"], "description": "The field that it is about."},
        "code": {"type": "string"},
        "status": {"type": "integer"},
        "retryable": _RETRYABLE,
        "retry_after_ms": _RETRY_AFTER_MS,
    }
    required = [name for name in told if name != "retry_after_ms"]
    return {"type": "object", "properties": told, "required": required, "additionalProperties": False}


def refused(*codes: str, shape: str = "Error", headers: dict[str, Any] | None = None) -> dict[str, Any]:
    """Responses by status, for the codes that an operation may be refused with."""
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(ERRORS[code][0], []).append(code)
    return {
        str(status): _response(status, told, shape, headers or {})
        for status, told in sorted(by_status.items())
    }


def _response(status: int, codes: list[str], shape: str, headers: dict[str, Any]) -> dict[str, Any]:
    asked_for = {"WWW-Authenticate": {"required": True, "schema": {"const": "Bearer"}}}
    own = asked_for if status == 401 else {"Retry-After": RETRY_AFTER} if status in (429, 503) else {}
    return {
        "description": " or ".join(f"`{code}`" for code in codes),
        "headers": headers | own,
        "content": {"application/json": {"schema": ref(shape)}},
    }
