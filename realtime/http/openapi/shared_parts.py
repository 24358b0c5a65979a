"""Parts that the OpenAPI operations share: parameters, headers, content of responses."""

from __future__ import annotations

from typing import Any

from realtime.http.openapi.schemas import Schema

JSON, SSE, TEXT = "application/json", "text/event-stream", "text/plain"
KEY = ("unauthenticated", "forbidden")  # with what whoever has no key, or no good one, is refused
X_REQUEST_ID = {
    "X-Request-Id": {
        "description": "The stream's `request_id`, percent-encoded where a header wants it.",
        "required": True,
        "schema": {"type": "string"},
    }
}
NOT_KEPT = {"Cache-Control": {"required": True, "schema": {"const": "no-store"}}}


def in_path(name: str, schema: Schema) -> dict[str, Any]:
    return {"name": name, "in": "path", "required": True, "schema": schema}


def status(*values: str) -> dict[str, Any]:
    return as_json(" or ".join(values), _status({"enum": list(values)}))


def status_in_words(description: str) -> dict[str, Any]:
    return as_json(description, _status({"type": "string"}))


def _status(told: Schema) -> Schema:
    return {
        "type": "object",
        "properties": {"status": told},
        "required": ["status"],
        "additionalProperties": False,
    }


def as_json(description: str, schema: Schema) -> dict[str, Any]:
    return {"description": description, "content": {JSON: {"schema": schema}}}


def events(data: Schema, **fields: Schema) -> dict[str, Any]:
    """Each event as an object of its fields, as in OpenAPI 3.2: 3.1 does not say how."""
    return {"schema": {"type": "object", "properties": {"data": data, **fields}, "required": ["data"]}}


def in_json(schema: Schema) -> Schema:
    return {"type": "string", "contentMediaType": JSON, "contentSchema": schema}
