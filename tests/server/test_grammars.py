"""Grammars from outside: what is asked for is what comes, through steering and an engine's death, and what
cannot be followed is refused."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from typing import Any

import httpx2
import jsonschema
import pytest

from tests.server.independent_client import Client, client_of
from tests.server.server_process import PATIENCE_S, Served

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 10},
        "ages": {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
        "kind": {"enum": ["alpha", "beta"]},
    },
    "required": ["name", "ages", "kind"],
    "additionalProperties": False,
}
PARAMS = {"grammar": {"json_schema": SCHEMA}, "temperature": 1.5, "max_tokens": 400, "seed": 5}


async def test_the_text_is_what_was_asked_for(client: Client) -> None:
    stream = await client.start("json", params=PARAMS)
    final = await stream.rest()
    assert (final["finish_reason"], final["stop_reason"]) == ("stop", "eos")
    jsonschema.validate(json.loads(stream.text), SCHEMA)
    assert 0 < final["usage"]["forced_tokens"] < final["usage"]["completion_tokens"]
    slow = await client.start("sampled", params=PARAMS | {"grammar": {"json_schema": SCHEMA, "force": False}})
    assert (await slow.rest())["usage"]["forced_tokens"] == 0
    assert slow.text == stream.text


async def test_it_is_steered_as_any_parameter_is(client: Client) -> None:
    free = {"ignore_eos": True, "max_tokens": 60}
    stream = await client.start("steered", params=free, credit={"limit": 5}, return_tokens=True)
    await stream.until_index(5)
    grammar = {"regex": "[ab]{6}", "force": False}
    adjusted = await stream.ask("adjust", "adjusted", params={"grammar": grammar})
    assert (adjusted["index"], adjusted["params"]["grammar"]) == (5, grammar)
    await stream.send("credit", limit=8)
    await stream.until_index(8)
    assert set(stream.tokens[5:8]) <= {97, 98}
    error = await stream.ask("inject", "error", text="z")
    assert (await stream.ask("inject", "error", text="z", at=3))["code"] == "invalid_params"
    assert (error["code"], "anew" in error["message"]) == ("invalid_params", True)
    assert (await stream.ask("inject", "injected", text="a"))["index"] == 8
    assert (await stream.ask("inject", "injected", text="z", grammar="anew"))["index"] == 8
    assert (await stream.ask("adjust", "adjusted", params={"grammar": None}))["params"]["grammar"] is None
    await stream.send("credit", limit=60)
    await stream.rest()


@pytest.mark.parametrize(
    ("grammar", "words"),
    [
        ({"json_schema": {"type": "strnig"}}, "Invalid type: strnig"),
        ({"regex": "(?=a)b"}, "look-around"),
        ({"regex": "a", "choice": ["a"]}, "one of"),
        ({"jsonschema": {}}, "jsonschema"),
        ({"choice": []}, "1 to 1000"),
    ],
)
async def test_what_cannot_be_followed_is_refused(client: Client, grammar: Any, words: str) -> None:
    await client.send("start", request_id="bad", prompt="x", params={"grammar": grammar})
    error = await client.next("bad")
    assert (error["code"], error["request_id"]) == ("invalid_params", "bad")
    assert words in error["message"]
    stream = await client.start("good", credit={"limit": 0})
    assert (await stream.ask("adjust", "error", params={"grammar": grammar}))["code"] == "invalid_params"
    await stream.send("cancel")
    await stream.rest()


async def test_openais_clients_ask_for_it_by_another_name(server: Served) -> None:
    formats = [
        {"type": "json_schema", "json_schema": {"name": "it", "schema": SCHEMA, "strict": True}},
        {"type": "json_object"},
    ]
    async with httpx2.AsyncClient(base_url=server.http, timeout=PATIENCE_S) as http:
        for asked in formats:
            body = {
                "messages": [{"role": "user", "content": "x"}],
                "response_format": asked,
                "max_tokens": 1500,
                "logit_bias": {"125": 9, "34": 6},
                "seed": 3,
            }
            answer = (await http.post("/v1/chat/completions", json=body)).json()
            (choice,) = answer["choices"]
            assert choice["finish_reason"] == "stop", answer
            said = json.loads(choice["message"]["content"])
            assert isinstance(said, dict)
            if asked is formats[0]:
                jsonschema.validate(said, SCHEMA)
        refused = await http.post(
            "/v1/chat/completions",
            json={
                "messages": [{"role": "user", "content": "x"}],
                "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nothing"}}},
            },
        )
        assert refused.status_code == 400
        assert "Invalid type" in refused.json()["error"]["message"]


async def test_it_outlives_the_engine(serve: Callable[..., Served]) -> None:
    served = serve("--toy-step-ms", "15")
    params = PARAMS | {"grammar": {"json_schema": SCHEMA, "force": False}}
    async with client_of(served.url) as client:
        whole = await client.start("whole", params=params)
        await whole.rest()
        stream = await client.start("struck", params=params)
        await stream.until_index(12)
        os.kill(served.engine, signal.SIGKILL)
        assert (await stream.until("paused"))["reason"] == "engine"
        await stream.until("resumed")
        assert (await stream.rest())["stop_reason"] == "eos"
        assert stream.text == whole.text
