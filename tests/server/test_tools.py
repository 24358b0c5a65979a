"""Tools over the WebSocket and through the `openai` package as it is, with a model that says what it is told
to."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
import openai
import pytest
from openai import AsyncOpenAI

import midstream
from midstream import protocol
from tests.fakes.folded_spans import FoldedSpans
from tests.fakes.scripts import saying, spelt
from tests.server.conftest import JSON, MSGPACK
from tests.server.independent_client import Client, client_of
from tests.server.server_process import Served

WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
PARIS = {"city": "Paris </tool_call> } é"}


def asking(*answers: str) -> list[Any]:
    return [{"role": "user", "content": saying(*answers)}]


@pytest.fixture(params=[JSON, MSGPACK])
async def client(request: pytest.FixtureRequest, scripted: Served) -> AsyncIterator[Client]:
    async with client_of(scripted.url, request.param) as connection:
        yield connection


@pytest.fixture
async def buyer(scripted: Served) -> AsyncIterator[AsyncOpenAI]:
    async with AsyncOpenAI(base_url=f"{scripted.http}/v1", api_key="none", max_retries=0) as openai_client:
        yield openai_client


def typed(event: dict[str, Any]) -> protocol.StreamEvent:
    return msgspec.convert(event, protocol.ServerEvent)  # type: ignore[no-any-return]


async def read(client: Client, name: str, folded: FoldedSpans, until: str = "final") -> dict[str, Any]:
    """Fold a stream's events, up to and with the first of this type."""
    while True:
        event = await client.next(name)
        folded.read([typed(event)])
        if event["type"] == until:
            return event


# -- over the WebSocket ----------------------------------------------------------------------------


async def test_calls_are_told_as_they_come(client: Client) -> None:
    script = f"Let me see.{spelt(PARIS)}{spelt({'city': 'Rome'})}"
    folded = FoldedSpans()
    await client.send("start", request_id="a", messages=asking(script), tools=[WEATHER])
    final = await read(client, "a", folded)
    assert final["finish_reason"] == "tool_calls"
    assert folded.content == "Let me see."
    assert [json.loads(call["arguments"]) for call in folded.calls] == [PARIS, {"city": "Rome"}]
    assert {call["name"] for call in folded.calls} == {"weather"}


async def test_rewound_into_the_middle_of_an_argument(client: Client) -> None:
    """What is injected there is part of the call, and the rest follows."""
    script = spelt({"city": "Paris"})
    at = script.encode().index(b"ris")
    folded = FoldedSpans()
    await client.send(
        "start", request_id="a", messages=asking(script), tools=[WEATHER], credit={"limit": at + 2}
    )
    while folded.index < at + 2:
        folded.read([typed(await client.next("a"))])
    await client.send("inject", request_id="a", text="-", at=at, ref="put")
    await client.send("credit", request_id="a", limit=1000)
    await read(client, "a", folded)
    assert json.loads(folded.calls[0]["arguments"]) == {"city": "Pa-ris"}
    assert folded.calls[0]["end"] == len(script.encode()) - len("\n</tool_call>")


async def test_what_is_cut_off_is_no_call(client: Client) -> None:
    folded = FoldedSpans()
    await client.send(
        "start", request_id="a", messages=asking(spelt(PARIS)), tools=[WEATHER], params={"max_tokens": 60}
    )
    final = await read(client, "a", folded)
    assert final["finish_reason"] == "length"
    assert folded.calls[0]["end"] is None


async def test_an_engine_that_is_killed_in_the_middle_of_a_call() -> None:
    served = Served(scripted=True)
    try:
        async with client_of(served.url, JSON) as client:
            folded = FoldedSpans()
            await client.send(
                "start", request_id="a", messages=asking(spelt(PARIS)), tools=[WEATHER], credit={"limit": 50}
            )
            while folded.index < 50:
                folded.read([typed(await client.next("a"))])
            assert folded.calls
            os.kill(served.engine, signal.SIGKILL)
            await client.send("credit", request_id="a", limit=1000)
            final = await read(client, "a", folded)
            assert final["finish_reason"] == "tool_calls"
            assert json.loads(folded.calls[0]["arguments"]) == PARIS
    finally:
        served.end()


async def test_a_result_is_injected_and_the_answer_goes_on(client: Client) -> None:
    """No second start: what the call was computed from stays where it is."""
    script = spelt({"city": "Rome"}) + "It is warm."
    folded, end = FoldedSpans(), len(spelt({"city": "Rome"}).encode())
    await client.send(
        "start", request_id="a", messages=asking(script), tools=[WEATHER], credit={"limit": end}
    )
    await read(client, "a", folded, "tool_call_done")
    result = {"role": "tool", "tool_call_id": folded.calls[0]["id"], "content": "30 degrees"}
    while folded.index < end:
        folded.read([typed(await client.next("a"))])
    await client.send("inject", request_id="a", messages=[result])
    await client.send("credit", request_id="a", limit=1000)
    final = await read(client, "a", folded)
    assert folded.content == "It is warm."
    assert final["finish_reason"] == "stop", "the call was answered"


async def test_our_own_client_has_them_beside_the_text(scripted: Served) -> None:
    script = f"Let me see.{spelt(PARIS)}"
    async with midstream.connect(scripted.http) as client:
        stream = await client.start(messages=asking(script), tools=[WEATHER])
        text = "".join([chunk.text async for chunk in stream])
    assert text == stream.text == "Let me see."
    (call,) = stream.calls
    assert (call.name, call.parsed, call.whole) == ("weather", PARIS, True)
    assert stream.final is not None
    assert stream.final.finish_reason == "tool_calls"


async def test_our_own_client_gives_each_call_when_it_is_whole(scripted: Served) -> None:
    """Of a function, which is then called; the next start is told what came of it."""

    def weather(city: str) -> str:
        """The weather of a city."""
        return f"Warm in {city}: ⟦It is warm.⟧"

    script = f"Let me see.{spelt({'city': 'Rome'})}{spelt({'city': 'Bonn'})}"
    messages, results = asking(script), []
    async with midstream.connect(scripted.http) as client:
        stream = await client.start(messages=messages, tools=[weather], window=1)
        async for call in stream.tool_calls():
            assert call.end is not None
            assert stream.index <= call.end + 1, "no sooner than it is whole, and no later"
            results.append(call.answer(midstream.run_call(call, [weather])))
        assert [str(result.content)[:12] for result in results] == ["Warm in Rome", "Warm in Bonn"]
        assert stream.message.content == "Let me see."
        messages += [stream.message, *results]
        answer = await client.complete(messages=messages, tools=[weather])
    assert (answer.text, answer.tool_calls, answer.finish_reason) == ("It is warm.", [], "stop")


async def test_our_own_client_gives_every_event(scripted: Served) -> None:
    folded = FoldedSpans()
    async with midstream.connect(scripted.http) as client:
        stream = await client.start(messages=asking(f"So.{spelt(PARIS)}"), tools=[WEATHER])
        folded.read([event async for event in stream.events()])
    assert (folded.content, [json.loads(call["arguments"]) for call in folded.calls]) == ("So.", [PARIS])
    assert stream.consumed == stream.index


async def test_our_own_client_parses_an_answer(shared: Served) -> None:
    class Person(msgspec.Struct):
        name: Annotated[str, msgspec.Meta(max_length=20)]
        kind: Literal["cat", "dog"]

    asked: Any = {"prompt": "x", "temperature": 1.5, "seed": 5}
    async with midstream.connect(shared.http) as client:
        person = await client.parse(Person, max_tokens=400, **asked)
        assert isinstance(person, Person)
        assert person.kind in ("cat", "dog")
        with pytest.raises(midstream.ParseError, match=r"no Person: it ended before .* \(length\)") as caught:
            await client.parse(Person, max_tokens=3, **asked)
    assert caught.value.text == '{"n'


async def test_a_record_of_calls_is_played_again(scripted: Served, tmp_path: Path) -> None:
    async with midstream.connect(scripted.http) as client:
        with client.record(tmp_path / "record"):
            stream = await client.start(messages=asking(spelt(PARIS)), tools=[WEATHER])
            async for _ in stream:
                pass
        (record,) = midstream.read_records(tmp_path / "record")
        replay = await client.replay(record)
    assert record.start.tools is not None
    assert replay.difference is None


# -- by OpenAI's package ---------------------------------------------------------------------------


def given(calls: Any) -> list[Any]:
    return [json.loads(call.function.arguments) for call in calls]


async def test_a_whole_answer_with_calls(buyer: AsyncOpenAI) -> None:
    answer = await buyer.chat.completions.create(
        model="toy", messages=asking(spelt(PARIS) + spelt({})), tools=[WEATHER]
    )
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    assert given(choice.message.tool_calls) == [PARIS, {}]
    assert len({call.id for call in choice.message.tool_calls}) == 2


async def test_a_history_that_is_spelt_otherwise_has_the_tokens_that_were_decoded(buyer: AsyncOpenAI) -> None:
    """As langchain sends it: with other spaces. It is found computed as if it were verbatim."""
    call = '<tool_call>{"name":"weather","arguments":{"city":"Paris","day":"to-day"}}</tool_call>'
    asked = asking("I will see. " * 10 + call)
    first = await buyer.chat.completions.create(model="toy", messages=asked, tools=[WEATHER])
    assert first.usage is not None
    message = first.choices[0].message.model_dump(exclude_none=True)
    function = message["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(dict(reversed(json.loads(function["arguments"]).items())), indent=2)
    message["content"] = message["content"].strip()
    result = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "mild"}
    stood = first.usage.prompt_tokens + first.usage.completion_tokens - 1  # without its end token
    for content, known in ((message["content"], True), ("I will not see.", False)):
        messages = [*asked, message | {"content": content}, result]
        again = await buyer.chat.completions.create(model="toy", messages=messages, tools=[WEATHER])
        assert again.usage is not None
        assert again.usage.prompt_tokens_details is not None
        cached = again.usage.prompt_tokens_details.cached_tokens
        assert cached is not None
        assert (cached >= stood - 16) == known, "all of its full blocks"


async def test_its_chunks_put_together_are_the_same(buyer: AsyncOpenAI) -> None:
    """By the package's own accumulation, which is what agents read."""
    asked: dict[str, Any] = {
        "model": "toy",
        "messages": asking("Well. " + spelt(PARIS) + spelt({"city": "Rome"})),
        "tools": [WEATHER],
    }
    async with buyer.chat.completions.stream(**asked) as stream:
        kinds = {event.type async for event in stream}
        final = await stream.get_final_completion()
    assert {"tool_calls.function.arguments.delta", "tool_calls.function.arguments.done"} <= kinds
    (choice,) = final.choices
    assert (choice.finish_reason, choice.message.content) == ("tool_calls", "Well. ")
    assert choice.message.tool_calls is not None
    assert given(choice.message.tool_calls) == [PARIS, {"city": "Rome"}]


async def test_the_first_delta_of_a_call_has_its_name(buyer: AsyncOpenAI) -> None:
    stream = await buyer.chat.completions.create(
        model="toy", messages=asking(spelt(PARIS)), tools=[WEATHER], stream=True
    )
    deltas = [
        call async for chunk in stream for choice in chunk.choices for call in choice.delta.tool_calls or ()
    ]
    first, *others = deltas
    assert first.id
    assert first.function is not None
    assert (first.index, first.type, first.function.name, first.function.arguments) == (
        0,
        "function",
        "weather",
        "",
    )
    assert all(call.id is None and call.index == 0 for call in others)


async def test_a_loop_of_calls_and_results(buyer: AsyncOpenAI) -> None:
    """As every client of tools writes it: its answer goes back as it came, with the results."""
    messages: list[Any] = asking(spelt({"city": "Rome"}))
    first = await buyer.chat.completions.create(model="toy", messages=messages, tools=[WEATHER])
    message = first.choices[0].message
    assert message.tool_calls is not None
    messages += [
        message,
        {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "⟦It is warm.⟧"},
    ]
    second = await buyer.chat.completions.create(model="toy", messages=messages, tools=[WEATHER])
    assert second.choices[0].finish_reason == "stop"
    assert second.choices[0].message.content == "It is warm."
    assert second.choices[0].message.tool_calls is None


async def test_one_call_at_a_time(buyer: AsyncOpenAI) -> None:
    answer = await buyer.chat.completions.create(
        model="toy",
        messages=asking(spelt(PARIS) + spelt({})),
        tools=[WEATHER],
        parallel_tool_calls=False,
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.tool_calls is not None
    assert len(answer.choices[0].message.tool_calls) == 1


async def test_a_call_that_is_cut_off_is_left_out(buyer: AsyncOpenAI) -> None:
    answer = await buyer.chat.completions.create(
        model="toy", messages=asking(spelt(PARIS)), tools=[WEATHER], max_tokens=60
    )
    assert answer.choices[0].finish_reason == "length"
    assert answer.choices[0].message.tool_calls is None


# -- by a grammar -----------------------------------------------------------------------------------

STRICT: Any = {
    "type": "function",
    "function": {
        "name": "set_alarm",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {
                "day": {"enum": ["today", "tomorrow"]},
                "hour": {"type": "integer", "maximum": 23},
            },
            "required": ["day", "hour"],
            "additionalProperties": False,
        },
    },
}
TOOLS = [WEATHER, STRICT]
NAMED: Any = {"type": "function", "function": {"name": "set_alarm"}}


@pytest.mark.parametrize("choice", ["required", NAMED])
async def test_a_call_that_has_to_be_made(buyer: AsyncOpenAI, choice: Any) -> None:
    """Whatever the model would have said."""
    answer = await buyer.chat.completions.create(
        model="toy",
        messages=asking("I would rather not."),
        tools=TOOLS if choice == NAMED else [STRICT],
        tool_choice=choice,
        parallel_tool_calls=False,
    )
    (choice_made,) = answer.choices
    assert choice_made.finish_reason == "tool_calls"
    calls: Any = choice_made.message.tool_calls
    (call,) = calls
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "set_alarm"
    assert arguments["day"] in ("today", "tomorrow")
    assert arguments["hour"] <= 23


async def test_a_strict_tool_is_held_to_its_schema_among_text(client: Client) -> None:
    """From where a call opens, and not before."""
    wrong = spelt({"day": "yesterday", "hour": 7}, "set_alarm")
    folded = FoldedSpans()
    await client.send("start", request_id="a", messages=asking(f"Well, {wrong}"), tools=TOOLS)
    await read(client, "a", folded)
    assert folded.content.startswith("Well, ")
    assert json.loads(folded.calls[0]["arguments"])["day"] in ("today", "tomorrow")


async def test_one_that_says_that_it_is_not_is_not(client: Client) -> None:
    loose = {"type": "function", "function": STRICT["function"] | {"strict": False}}
    folded = FoldedSpans()
    wrong = {"day": "yesterday", "hour": 7}
    await client.send(
        "start", request_id="a", messages=asking(spelt(wrong, "set_alarm")), tools=[loose, WEATHER]
    )
    await read(client, "a", folded)
    assert json.loads(folded.calls[0]["arguments"]) == wrong


async def test_an_answer_in_a_format_beside_tools(buyer: AsyncOpenAI) -> None:
    """Calls or an answer, each by its schema: what the model begins with says which."""
    asked: dict[str, Any] = {
        "model": "toy",
        "tools": TOOLS,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object", "properties": {"a": {"enum": [1, 2]}}}},
        },
    }
    answered = await buyer.chat.completions.create(messages=asking('{"a":1}'), **asked)
    assert answered.choices[0].message.content == '{"a":1}'
    called = await buyer.chat.completions.create(messages=asking(spelt(PARIS)), **asked)
    assert called.choices[0].message.tool_calls is not None
    assert given(called.choices[0].message.tool_calls) == [PARIS]


async def test_a_result_of_a_call_that_had_to_be_made(client: Client) -> None:
    """The model's next turn may be its answer."""
    script = spelt({"city": "Rome"})
    end = len(script.encode())
    folded = FoldedSpans()
    await client.send(
        "start",
        request_id="a",
        messages=asking(script + "It is warm."),
        tools=[WEATHER],
        tool_choice="required",
        credit={"limit": end},
    )
    while folded.index < end:
        folded.read([typed(await client.next("a"))])
    result = {"role": "tool", "tool_call_id": folded.calls[0]["id"], "content": "30 degrees"}
    await client.send("inject", request_id="a", messages=[result])
    await client.send("credit", request_id="a", limit=1000)
    final = await read(client, "a", folded)
    assert final["finish_reason"] == "stop"
    assert folded.content == "It is warm."
    assert [json.loads(call["arguments"]) for call in folded.calls] == [{"city": "Rome"}]


async def test_a_schema_that_nobody_can_be_held_to(buyer: AsyncOpenAI) -> None:
    bad: Any = {"type": "function", "function": {"name": "f", "strict": True, "parameters": {"if": {}}}}
    with pytest.raises(openai.BadRequestError) as refused:
        await buyer.chat.completions.create(model="toy", messages=asking("x"), tools=[WEATHER, bad])
    assert "`tools[1].function.parameters` cannot be followed" in refused.value.message
    assert refused.value.param == "tools[1].function.parameters"
