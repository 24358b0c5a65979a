"""The operations of the OpenAPI document: every HTTP endpoint as a path item.

It knows paths and media types. Schemas and errors have rooms of their own.
"""

from __future__ import annotations

from typing import Any

from realtime.http.openapi import completions, streams
from realtime.http.openapi.refusals import refused
from realtime.http.openapi.schemas import ref
from realtime.http.openapi.shared_parts import JSON, KEY, NOT_KEPT, TEXT, as_json, status, status_in_words

_DOCUMENT: dict[str, Any] = {
    "description": "The document.",
    "content": {JSON: {"schema": {"type": "object"}}},
}


def paths() -> dict[str, Any]:
    return {
        **completions.paths(),
        **streams.paths(),
        "/v1/realtime/client_secrets": {"post": _secret()},
        "/healthz": {"get": _health()},
        "/readyz": {"get": _readiness()},
        "/metrics": {"get": _metrics()},
        "/asyncapi.json": {"get": _open("asyncapi", "The WebSocket's interface, as AsyncAPI 3.", _DOCUMENT)},
        "/openapi.json": {"get": _open("openapi", "This document.", _DOCUMENT)},
    }


def _secret() -> dict[str, Any]:
    issued = as_json("The secret.", ref("ClientSecretResponse"))
    return {
        "operationId": "client_secret",
        "tags": ["WebSocket"],
        "summary": "A secret with which one page connects once, within 30 seconds.",
        "requestBody": {"required": False, "content": {JSON: {"schema": ref("ClientSecretRequest")}}},
        "responses": {
            "200": issued | {"headers": NOT_KEPT},
            **refused(*KEY, "invalid_frame", "invalid_params", "too_large", "rate_limited", "overloaded"),
        },
    }


def _metrics() -> dict[str, Any]:
    return {
        "operationId": "metrics",
        "tags": ["operations"],
        "summary": "The server's numbers, for Prometheus. With keys, for admins and for keys of their own.",
        "responses": {
            "200": {"description": "The numbers.", "content": {TEXT: {"schema": {"type": "string"}}}},
            "404": status("this server counts nothing: see --metrics"),
            **refused(*KEY, "rate_limited"),
        },
    }


def _health() -> dict[str, Any]:
    health = _open("health", "Whether this process answers, and all that goes on in it lives.", status("ok"))
    health["responses"]["503"] = status_in_words("What has died and is being started anew.")
    return health


def _readiness() -> dict[str, Any]:
    ready = _open("readiness", "Whether a stream started now would run.", status("ready"))
    ready["responses"]["503"] = status(
        "draining", "engine not ready", "at its limit of streams", "at its limit of connections"
    )
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
