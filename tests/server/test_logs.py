"""The log of a real server: a line a request, as JSON or for people, with nothing of what was said."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.server.independent_client import client_of
from tests.server.server_process import Served

Serve = Callable[..., Served]
CANARY = "CANARY"
TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d{4}"
DOCUMENT = Path(__file__).parents[2] / "docs/observability.md"
ROWS = DOCUMENT.read_text().partition("## The log")[2].partition("\n## ")[0]
FIELDS = {
    name for row in re.findall(r"^\| (`.*?) \|", ROWS, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)
}


async def used(served: Served, request_id: str) -> str:
    """Have a request answered and steered, and end the server: its log."""
    async with client_of(served.url) as client:
        client.mark = ""
        stream = await client.start(
            request_id, prompt=f"{CANARY} and", params={"ignore_eos": True}, credit={"limit": 3}
        )
        await stream.until_index(3)
        await stream.ask("adjust", "adjusted", params={"temperature": 0.5, "stop": [CANARY]})
        await stream.ask("inject", "injected", text=CANARY)
        await stream.ask("cancel", "final")
    served.tell()
    assert served.ended() == 0
    return served.log()


async def test_json_is_an_object_a_line_and_one_of_them_is_the_request(serve: Serve) -> None:
    log = await used(serve("--log-format", "json"), "my request")
    lines: list[dict[str, Any]] = [json.loads(line) for line in log.splitlines()]
    assert all({"time", "level", "logger", "event"} <= line.keys() for line in lines)
    (request,) = [line for line in lines if line["logger"] == "midstream.requests"]
    assert request.keys() == FIELDS | {"time", "level", "logger", "event"}
    told = {
        name: request[name] for name in ("request_id", "tokens_out", "adjusts", "injects", "finish_reason")
    }
    assert told == {
        "request_id": "my request",
        "tokens_out": 3,
        "adjusts": 1,
        "injects": 1,
        "finish_reason": "cancelled",
    }
    assert CANARY not in log


async def test_for_people_it_is_one_line_and_a_name_in_it_moves_no_terminals_cursor(serve: Serve) -> None:
    log = await used(serve("--log-format", "console"), "red \x1b[31m\nline")
    (line,) = [line for line in log.splitlines() if "midstream.requests" in line]
    assert re.match(rf"{TIME} INFO midstream\.requests: ", line)
    assert r"request_id='red \x1b[31m\nline'" in line
    assert all(f"{field}=" in line for field in FIELDS)
    assert all(re.match(rf"{TIME} [A-Z]+ [a-z_.]+: ", line) for line in log.splitlines()), log
    assert CANARY not in log


@pytest.mark.parametrize("form", ["json", "console"])
async def test_where_less_is_wanted_there_is_less(serve: Serve, form: str) -> None:
    assert await used(serve("--log-format", form, "--log-level", "warning"), "quiet") == ""
