"""The loop of tools in one stream: it pauses at its calls, takes their results, and goes on in the same
memory; over the WebSocket, with a model that says what it is told to."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from typing import Any

import pytest

import midstream
from tests.fakes.scripts import spelt
from tests.server.conftest import JSON
from tests.server.independent_client import Client, client_of
from tests.server.server_process import Served, used
from tests.server.test_tools import WEATHER, asking

PARIS, ROME = spelt({"city": "Paris"}), spelt({"city": "Rome"})


@pytest.fixture
async def client(scripted: Served) -> AsyncIterator[Client]:
    async with client_of(scripted.url, JSON) as connection:
        yield connection


async def ask(client: Client, *answers: str, **fields: Any) -> None:
    """Start a stream that says this, and the next behind each result."""
    fields = {"on_tool_call": "pause", "tools": [WEATHER], "messages": asking(*answers)} | fields
    await client.send("start", request_id="a", **fields)


async def until(client: Client, kind: str) -> list[dict[str, Any]]:
    """All events, up to and with the first of this type."""
    events: list[dict[str, Any]] = []
    while not events or events[-1]["type"] != kind:
        events.append(await client.next("a"))
    return events


def calls(events: list[dict[str, Any]]) -> list[str]:
    return [event["call_id"] for event in events if event["type"] == "tool_call_done"]


def text(events: list[dict[str, Any]]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "token")


async def answer(client: Client, call_id: str, ref: str = "r", **result: Any) -> None:
    await client.send("tool_result", request_id="a", call_id=call_id, ref=ref, **result)


async def test_it_pauses_at_its_calls_and_goes_on_with_their_results_and_nothing_is_computed_again(
    client: Client,
) -> None:
    await ask(client, f"Let me see.{PARIS}", f"Now Rome.{ROME}", "Mild in both.")
    for said in ("Let me see.", "Now Rome."):
        events = await until(client, "paused")
        assert text(events) == said
        assert events[-1]["reason"] == "tool_call"
        (call_id,) = calls(events)
        await answer(client, call_id, content="20 degrees")
        injected, resumed = await client.next("a"), await client.next("a")
        assert (injected["type"], injected["ref"], injected["index"]) == (
            "injected",
            "r",
            events[-1]["index"],
        )
        assert (resumed["type"], resumed["recomputed_tokens"]) == ("resumed", 0)
    events = await until(client, "final")
    assert text(events) == "Mild in both."
    final = events[-1]
    assert (final["finish_reason"], final["stop_reason"]) == ("stop", "eos")
    assert final["usage"]["discarded_tokens"] == 2, "the end token of each turn, which is not computed"


async def test_results_of_one_turn_go_in_together_in_the_order_of_the_calls(client: Client) -> None:
    await ask(client, PARIS + ROME, "Thanks.")
    events = await until(client, "paused")
    paris, rome = calls(events)
    await answer(client, rome, "1", content="hot")
    waiting = await client.next("a")
    assert (waiting["type"], waiting["ref"], waiting["count"]) == ("injected", "1", 0)
    await answer(client, paris, "2", error="no such place")
    injected = await client.next("a")
    assert (injected["ref"], injected["type"]) == ("2", "injected")
    assert injected["count"] > len('{"error": "no such place"}hot')
    assert text(await until(client, "final")) == "Thanks."


async def test_it_can_go_on_while_tools_run_and_waits_only_in_the_end(client: Client) -> None:
    await ask(client, f"{PARIS}Meanwhile: nothing.", "Mild, I hear.", on_tool_call="continue")
    events = await until(client, "paused")
    assert text(events) == "Meanwhile: nothing."
    await answer(client, calls(events)[0], content="mild")
    assert text(await until(client, "final")) == "Mild, I hear."


async def test_without_calls_it_ends_as_any_other(client: Client) -> None:
    await ask(client, "Just so.")
    events = await until(client, "final")
    assert text(events) == "Just so."
    assert (events[-1]["finish_reason"], events[-1]["stop_reason"]) == ("stop", "eos")
    assert events[-1]["index"] == len("Just so.") + 1
    assert events[-1]["usage"]["discarded_tokens"] == 0


async def test_what_no_call_waits_for_is_refused_by_name(client: Client) -> None:
    await ask(client, PARIS, "Thanks.")
    (call_id,) = calls(await until(client, "paused"))
    for result, says in (
        ({"call_id": "x", "content": "1"}, f'waits for no result of a call "x": it does for "{call_id}"'),
        ({"call_id": call_id}, "either `content` or `error`"),
    ):
        await client.send("tool_result", request_id="a", ref="no", **result)
        error = await client.next("a")
        assert (error["type"], error["ref"]) == ("error", "no")
        assert says in error["message"]
    await answer(client, call_id, content="mild")
    assert text(await until(client, "final")) == "Thanks."


async def test_a_result_that_was_taken_back_can_be_given_again(client: Client) -> None:
    await ask(client, PARIS, "Thanks.", credit={"limit": len(PARIS) + 3})
    events = await until(client, "paused")
    (call_id,) = calls(events)
    await answer(client, call_id, content="mild")
    await until(client, "token")
    await client.send("rewind", request_id="a", to=10)
    again = await until(client, "paused")
    (other,) = calls(again)
    assert other != call_id, "a call that is made again is another"
    await answer(client, other, content="cold")
    await client.send("credit", request_id="a", limit=1000)
    assert text(await until(client, "final")).endswith("Thanks.")


async def test_it_waits_for_its_results_through_an_engines_death(scripted: Served, client: Client) -> None:
    await ask(client, PARIS, "Thanks.")
    (call_id,) = calls(await until(client, "paused"))
    os.kill(scripted.engine, signal.SIGKILL)
    await answer(client, call_id, content="mild")
    events = await until(client, "final")
    assert text(events) == "Thanks."
    assert events[-1]["finish_reason"] == "stop"


@pytest.mark.parametrize("hold_ms", [0, 50])
async def test_its_memory_is_held_as_long_as_its_start_says_and_its_text_is_the_same(
    scripted: Served, client: Client, hold_ms: int
) -> None:
    await scripted.until_idle()
    await ask(client, PARIS, "Thanks.", tool_hold_ms=hold_ms)
    events = await until(client, "paused")
    await scripted.until(lambda metrics: used(metrics) == 0)
    await answer(client, calls(events)[0], content="mild")
    assert text(await until(client, "final")) == "Thanks."


async def test_held_memory_stays(scripted: Served, client: Client) -> None:
    await ask(client, PARIS, "Thanks.")
    events = await until(client, "paused")
    await scripted.until(lambda metrics: used(metrics) > 0)
    await answer(client, calls(events)[0], content="mild")
    await client.next("a")
    assert (await client.next("a"))["recomputed_tokens"] == 0
    await until(client, "final")


@pytest.mark.parametrize("dies", [False, True], ids=["", "and its engine dies"])
async def test_a_call_is_amended_and_then_approved(scripted: Served, client: Client, dies: bool) -> None:
    await ask(client, f"So.{PARIS}", "}\n</tool_call>", "Thanks.", approvals=["weather"])
    events = await until(client, "paused")
    (call_id,) = calls(events)
    if dies:
        os.kill(scripted.engine, signal.SIGKILL)
    await client.send("amend", request_id="a", ref="change", call_id=call_id, arguments={"city": "Rome"})
    events = await until(client, "paused")
    assert [event["type"] for event in events[:3]] == ["rewound", "injected", "tool_arguments"]
    assert (events[1]["ref"], events[2]["delta"]) == ("change", 'Rome"}')
    assert events[0]["index"] == f"So.{PARIS}".index("Paris")
    (done,) = [event for event in events if event["type"] == "tool_call_done"]
    assert (done["call_id"], done["approval"]) == (call_id, True)
    await answer(client, call_id, "early", content="mild")
    error = await client.next("a")
    assert (error["ref"], "waits for an approve" in error["message"]) == ("early", True)
    await client.send("approve", request_id="a", ref="yes", call_id=call_id)
    approved = await client.next("a")
    assert (approved["type"], approved["ref"], approved["index"]) == ("approved", "yes", len("So."))
    await answer(client, call_id, content="mild")
    assert text(await until(client, "final")) == "Thanks."


async def test_what_does_not_fit_the_tool_is_refused_and_the_call_stands(client: Client) -> None:
    await ask(client, PARIS, "Thanks.")
    (call_id,) = calls(await until(client, "paused"))
    await client.send("amend", request_id="a", ref="no", call_id=call_id, arguments={"city": 3})
    error = await client.next("a")
    assert (error["ref"], error["code"]) == ("no", "invalid_params")
    assert call_id in error["message"]
    await answer(client, call_id, content="mild")
    assert text(await until(client, "final")) == "Thanks."


async def test_a_hundred_that_wait_give_their_memory_up_and_go_on_as_they_would_have(
    scripted: Served, client: Client
) -> None:
    await scripted.until_idle()
    names = [f"agent {number}" for number in range(100)]
    for name in names:
        await client.send(
            "start",
            request_id=name,
            on_tool_call="pause",
            tool_hold_ms=50,
            tools=[WEATHER],
            messages=asking(f"I am {name}.{spelt({'city': name})}", f"It is mild, says {name}."),
        )
    waiting = {name: [await client.next(name)] for name in names}
    for name, events in waiting.items():
        while events[-1]["type"] != "paused":
            events.append(await client.next(name))
    await scripted.until(lambda metrics: used(metrics) == 0)
    for name, events in waiting.items():
        (call_id,) = calls(events)
        await client.send("tool_result", request_id=name, call_id=call_id, content="mild")
    for name in names:
        events = [await client.next(name)]
        while events[-1]["type"] != "final":
            events.append(await client.next(name))
        assert text(waiting[name] + events) == f"I am {name}.It is mild, says {name}."


async def test_the_python_client_amends_and_approves(scripted: Served) -> None:
    async with await midstream.connect(scripted.url) as client:
        asked = asking(PARIS, "}\n</tool_call>", "Mild.")
        stream = await client.start(messages=asked, tools=[WEATHER], on_tool_call="pause", approvals=True)
        cities = []
        async for call in stream.tool_calls():
            assert call.approval
            cities.append(call.parsed["city"])
            if len(cities) == 1:
                await stream.amend(call, {"city": "Rome"})
                continue
            assert await stream.approve(call) == call.index
            assert not stream.calls[0].approval
            await stream.tool_result(call, "mild")
        assert cities == ["Paris", "Rome"]
        assert stream.text == "Mild."


async def test_the_python_client_runs_the_loop(scripted: Served) -> None:
    async with await midstream.connect(scripted.url) as client:
        stream = await client.start(
            messages=asking(f"So.{PARIS}{ROME}", "Mild.", "Never."), tools=[WEATHER], on_tool_call="pause"
        )
        async for call in stream.tool_calls():
            if "Paris" in call.arguments:
                await stream.tool_result(call, {"degrees": 20})
            else:
                await stream.tool_result(call, error="no such place")
        assert stream.text == "So.Mild."
        assert stream.final is not None
        assert stream.final.finish_reason == "stop"


def test_the_python_client_forks(scripted: Served) -> None:
    with midstream.sync.connect(scripted.url) as client:
        stream = client.start(prompt="Once upon a time", max_tokens=200, ignore_eos=True, seed=3, window=1)
        while stream.consumed < 90:
            stream.next()
        same = client.fork(stream, seed=3)
        others = [client.fork(stream.request_id, at=80) for _ in range(3)]
        for one in (stream, same, *others):
            for _ in one:
                pass
        assert same.text == stream.text
        assert len({one.text for one in others}) == 3
        assert {one.text[:40] for one in others} == {stream.text[:40]}
        assert [one.final.usage.inherited_tokens for one in (same, *others) if one.final] == [90, 80, 80, 80]
