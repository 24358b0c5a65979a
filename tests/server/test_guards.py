"""Guards over the WebSocket, with a model that says what it is told to: what is planted is never told as a
whole, what is taken back is counted, and whatever happens to the engine it is the same."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest

import midstream
from tests.fakes.scripts import spelt
from tests.server.conftest import JSON
from tests.server.independent_client import Client, client_of
from tests.server.server_process import Served
from tests.server.test_tools import WEATHER, asking

PARIS, ROME = spelt({"city": "Paris"}), spelt({"city": "Rome"})
NOT_PARIS = {"name": "city", "do": "rewind", "tool": "weather", "path": "$.city", "forbid": "Paris"}
ONLY_ROME = {"name": "rome", "do": "rewind", "tool": "*", "path": "$.city", "require": "^Rome$"}


@pytest.fixture
async def client(scripted: Served) -> AsyncIterator[Client]:
    async with client_of(scripted.url, JSON) as connection:
        yield connection


async def told(client: Client, *answers: str, last: str = "final", **fields: Any) -> list[dict[str, Any]]:
    """All events of a stream that says this, up to and with the first of this type."""
    guards = fields.pop("guards")
    params = {"guards": guards, "seed": 3, "temperature": 0} | fields.pop("params", {})
    fields = {"tools": [WEATHER], "messages": asking(*answers), "params": params} | fields
    await client.send("start", request_id="a", **fields)
    return await until(client, last)


async def until(client: Client, kind: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != kind:
        events.append(await client.next("a"))
    return events


def of(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [event for event in events if event["type"] == kind]


def arguments(events: list[dict[str, Any]]) -> str:
    """As whoever reads them has them: what is rewound is gone."""
    told = ""
    for event in events:
        if event["type"] == "tool_arguments":
            told += event["delta"]
        elif event["type"] == "rewound":
            told = told[: event.get("arguments_length", 0)]
    return told


@pytest.mark.parametrize("on_tool_call", ["finish", "continue"])
async def test_a_planted_argument_never_reaches_the_end_of_its_call(
    client: Client, on_tool_call: str
) -> None:
    """The model may write nothing else, but for the token that is banned."""
    events = await told(client, PARIS, guards=[NOT_PARIS], on_tool_call=on_tool_call, last="tool_call_done")
    (act,) = of(events, "guard")
    assert (act["do"], act["index"], act["detail"]) == ("rewind", PARIS.index("Paris"), "Paris")
    assert "Paris" not in "".join(event["delta"] for event in of(events, "tool_arguments"))
    assert "aris" in arguments(events)
    await client.send("cancel", request_id="a")
    (final,) = of(await until(client, "final"), "final")
    assert final["usage"]["discarded_tokens"] >= len("Paris")


@pytest.mark.parametrize("on_tool_call", ["finish", "pause"])
async def test_one_that_is_not_what_it_must_be_ends_the_stream_when_all_tries_are_used_up(
    client: Client, on_tool_call: str
) -> None:
    """The model is set on it: it goes on in the same way whatever it began with."""
    events = await told(client, PARIS, guards=[ONLY_ROME], on_tool_call=on_tool_call)
    assert of(events, "tool_call_done") == []
    acts = of(events, "guard")
    assert [act["do"] for act in acts] == ["rewind"] * 3 + ["finish"]
    assert {act["index"] for act in acts} == {PARIS.index("Paris")}
    assert len({act["token"] for act in acts[:3]}) == 3, "what was banned is not tried again"
    for act in acts:
        behind = next(event for event in events if event["seq"] > act["seq"])
        assert (behind["type"], behind["index"]) == ("rewound", act["index"])
    final = events[-1]
    assert (final["finish_reason"], final["stop_reason"]) == ("guard", "rome")
    usage = final["usage"]
    assert usage["completion_tokens"] == final["index"] == acts[-1]["index"]
    # Thrice the value was written up to its quote, the last time that was all of it; and what was decoded
    # meanwhile is counted too.
    assert usage["discarded_tokens"] >= 3 * len('Paris"') + len('"')


async def test_one_that_is_right_passes(client: Client) -> None:
    events = await told(client, ROME, guards=[NOT_PARIS, ONLY_ROME])
    assert of(events, "guard") == []
    assert [event["call_id"] for event in of(events, "tool_call_done")]
    assert events[-1]["finish_reason"] == "tool_calls"


async def test_a_tool_that_may_not_be_called_is_taken_back_at_its_name(client: Client) -> None:
    guard = {"name": "no", "do": "finish", "tool": "weather"}
    events = await told(client, f"Well.{PARIS}", guards=[guard])
    (act,) = of(events, "guard")
    assert act["detail"] == "weather"
    assert act["index"] == len("Well.") + PARIS.index("weather")
    assert of(events, "tool_call") == of(events, "tool_call_done") == []


async def test_who_is_asked_may_let_it_through(client: Client) -> None:
    guard = NOT_PARIS | {"do": "pause"}
    events = await told(client, f"{PARIS}", guards=[guard], last="paused", on_tool_call="pause")
    assert events[-1]["reason"] == "guard"
    assert of(events, "guard")[0]["detail"] == "Paris"
    assert arguments(events).endswith("Pari")
    await client.send("resume", request_id="a")
    events += await until(client, "paused")
    assert events[-1]["reason"] == "tool_call"
    assert json.loads(arguments(events)) == {"city": "Paris"}
    assert len(of(events, "tool_call_done")) == 1
    await client.send("cancel", request_id="a")
    await until(client, "final")


async def test_no_more_calls_than_the_budget_has(client: Client) -> None:
    guard = {"name": "one", "do": "finish", "budget": {"calls": 1}}
    events = await told(client, PARIS + ROME, guards=[guard])
    assert len(of(events, "tool_call_done")) == 1
    (act,) = of(events, "guard")
    assert (act["index"], act["detail"]) == (len(PARIS), "calls")


async def test_an_engine_killed_meanwhile_changes_nothing(scripted: Served) -> None:
    guard = {"name": "x", "do": "rewind", "times": 16, "regex": "[xyz]{2}"}
    said = "abxyabzzab" * 30
    async with client_of(scripted.url, JSON) as client:
        whole = await told(client, said, guards=[guard], params={"max_tokens": 250, "temperature": 1})
    async with client_of(scripted.url, JSON) as client:
        events = await told(
            client, said, guards=[guard], params={"max_tokens": 250, "temperature": 1}, last="guard"
        )
        os.kill(scripted.engine, signal.SIGKILL)
        events += await until(client, "final")
    assert text(events) == text(whole)
    acts = [
        [(act["index"], act.get("token"), act["do"]) for act in of(some, "guard")] for some in (whole, events)
    ]
    assert acts[0] == acts[1]


def text(events: list[dict[str, Any]]) -> str:
    told = ""
    for event in events:
        if event["type"] == "token":
            told += event["delta"]
        elif event["type"] == "rewound":
            told = told[: event["text_length"]]
    return told


async def test_the_python_client_tells_of_guards(scripted: Served) -> None:
    guards = [midstream.Guard(name="bad", do="rewind", regex="bad", in_=["content"])]
    async with midstream.connect(scripted.http) as client:
        stream = await client.start(messages=asking("too bad for you"), guards=guards, temperature=0)
        acts = [event async for event in stream.events() if isinstance(event, midstream.protocol.Guarded)]
        assert [(act.index, act.do, act.times) for act in acts] == [(4, "rewind", 1)]
        assert stream.text.startswith("too ")
        assert "bad" not in stream.text


async def test_openais_endpoint_has_them_too(scripted: Served) -> None:
    body = {
        "messages": asking("too bad for you"),
        "guards": [{"name": "bad", "do": "finish", "regex": "bad"}],
    }
    request = urllib.request.Request(
        f"{scripted.http}/v1/chat/completions",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with await asyncio.to_thread(urllib.request.urlopen, request) as answer:
        (choice,) = json.load(answer)["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == ("too ", "content_filter")


async def test_what_is_wrong_is_refused_and_nothing_has_changed(client: Client) -> None:
    for guard, said in (
        ({"name": "a", "do": "rewind", "regex": "(" * 60 + ")" * 60 + "*"}, "nothing stands"),
        ({"name": "a", "do": "rewind", "regex": "(?<=a)b"}, "looks ahead or behind"),
        ({"name": "a", "do": "jump", "regex": "b"}, "guards"),
        ({"name": "a", "do": "rewind", "regex": "b", "when": 3}, "when"),
    ):
        await client.send("start", request_id="a", prompt="x", params={"guards": [guard]}, ref="r")
        error = await client.next("a")
        assert (error["code"], error["ref"]) == ("invalid_params", "r")
        assert said in error["message"]
