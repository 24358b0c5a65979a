"""A document that everybody may ask for."""

from __future__ import annotations

import json
from typing import Any

from starlette.requests import Request

from midstream import protocol
from realtime.http.document_endpoint import document_endpoint

REQUEST = Request({"type": "http"})


async def test_a_document_is_made_once_before_anybody_asks_for_it() -> None:
    """Whoever asks first would hold up everybody's tokens."""
    made: list[int] = []

    def document(version: int) -> dict[str, Any]:
        made.append(version)
        return {"version": version}

    endpoint = document_endpoint(document)
    assert made == [protocol.VERSION]
    answers = [await endpoint(REQUEST) for _ in range(3)]
    assert made == [protocol.VERSION]
    assert [json.loads(bytes(answer.body)) for answer in answers] == [{"version": protocol.VERSION}] * 3
    assert answers[0].headers["content-type"] == "application/json"
