"""The OpenAPI operations on streams: listing, following and steering them."""

from __future__ import annotations

from typing import Any

import msgspec

from midstream.protocol import MAX_INDEX, RequestId
from realtime.http.listing_endpoint import DEFAULT_LIMIT, LARGEST_LIMIT
from realtime.http.openapi.refusals import refused
from realtime.http.openapi.schemas import ref
from realtime.http.openapi.shared_parts import (
    JSON,
    KEY,
    NOT_KEPT,
    SSE,
    X_REQUEST_ID,
    as_json,
    events,
    in_json,
    in_path,
)
from realtime.observability.listing import STATES

_OLD = ("unknown_request", "request_finished", "request_taken", "request_expired", "overloaded", "draining")
_REQUEST_ID = in_path("request_id", msgspec.json.schema(RequestId))


def paths() -> dict[str, Any]:
    return {
        "/v1/streams": {"get": _streams()},
        "/v1/streams/{request_id}": {"parameters": [_REQUEST_ID], "get": _follow(), "post": _take_over()},
        "/v1/streams/{request_id}/control": {"parameters": [_REQUEST_ID], "post": _control()},
    }


def _streams() -> dict[str, Any]:
    limit = {"type": "integer", "minimum": 1, "maximum": LARGEST_LIMIT, "default": DEFAULT_LIMIT}
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
        "responses": {
            "200": as_json("The streams.", ref("Listing")) | {"headers": NOT_KEPT},
            **refused(*KEY, "invalid_params", "rate_limited"),
        },
    }


def _follow() -> dict[str, Any]:
    return {
        "operationId": "follow",
        "summary": "A stream's events, from one that the reader names to its end.",
        "description": "The stream is this reader's from then on, if nobody else reads it, or if this is an "
        "EventSource that comes again. Each event has its `seq` as its id, but the last `ended` or `taken`.",
        **_followed(),
    }


def _take_over() -> dict[str, Any]:
    return {
        "operationId": "takeOver",
        "summary": "The same, and the stream is this reader's from then on, whoever reads it.",
        **_followed(),
    }


def _followed() -> dict[str, Any]:
    seq = {"type": "integer", "minimum": -1, "maximum": MAX_INDEX}
    event_id = {"type": "string", "pattern": "^([0-9]+|ended|taken)$"}
    return {
        "tags": ["streams"],
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
                "description": "The same, from an EventSource that comes again. It goes before `after`; the "
                "last event has `ended` where the stream has ended, and `taken` where another has it now.",
                "schema": {"anyOf": [seq, {"enum": ["ended", "taken"]}]},
            },
        ],
        "responses": {
            "200": {
                "description": "The events.",
                "headers": X_REQUEST_ID,
                "content": {SSE: events(in_json(ref("stream.Event")), id=event_id)},
            },
            "204": {
                "description": "This reader has had all of it: the stream has ended, or is another's now."
            },
            **refused(*KEY, "invalid_frame", "invalid_params", "rate_limited", *_OLD),
        },
    }


def _control() -> dict[str, Any]:
    return {
        "operationId": "control",
        "tags": ["streams"],
        "summary": "Steer a stream: one control frame, and what answers it.",
        "description": "The frame says no `request_id`, or that of the path.",
        "parameters": [
            {
                "name": "tenant",
                "in": "query",
                "description": "Whose stream it is: with an admin's key and a `cancel`, anybody's.",
                "schema": {"type": "string"},
            }
        ],
        "requestBody": {"required": True, "content": {JSON: {"schema": ref("stream.Frame")}}},
        "responses": {
            "200": as_json("The event that answers the frame.", ref("stream.Reply"))
            | {"headers": X_REQUEST_ID},
            "204": {"description": "Taken; frames of this kind have no answer.", "headers": X_REQUEST_ID},
            **refused(
                *(*KEY, *_OLD, "invalid_frame", "invalid_params", "context_too_long"),
                *("too_large", "unsupported", "rate_limited", "engine_error"),
            ),
        },
    }
