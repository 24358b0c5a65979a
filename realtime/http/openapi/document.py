"""The OpenAPI 3.1 document of the HTTP endpoints. It puts together what its siblings say, and serves
nothing."""

from __future__ import annotations

from typing import Any

from realtime.http.openapi import refusals, schemas
from realtime.http.openapi.path_items import paths

_ABOUT = (
    "What OpenAI's clients ask for, by HTTP, and what this server adds to it: any stream can be followed and "
    "steered here, also one that was started on the WebSocket, whose interface is at `/asyncapi.json`."
)
_KEY = (
    "A key, where the server has any; without keys it listens on loopback only, and everybody may ask for "
    "everything."
)


def document(version: int) -> dict[str, Any]:
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Midstream",
            "version": f"{version}.0.0",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "security": [{"key": []}],
        "paths": paths(),
        "components": {
            "schemas": schemas.schemas() | refusals.schemas(),
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer", "description": _KEY}},
        },
    }
