"""Agents: what a loop of tool calls computes in one stream, and what it takes, beside the same loop over the
chat door with the whole history anew each time; and what it is worth that a tool starts when its call is
whole.

The model is the toy, which says what it is told to, so that both loops make the very same calls. Counts need
no clock.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Mapping
from typing import Any

from msgspec import to_builtins

import midstream
from bench.__main__ import report
from bench.result_tables import Figure
from tests.server.server_process import Metrics, Served

CALLS, TOOL_S, STEP_MS, ROUNDS = 20, 0.5, 4, 3
PROMPT_GOAL, EAGER_GOAL = 3, 1.28
PHASES = ("prefill", "decode")


def spelt(city: str) -> str:
    call = json.dumps({"name": "weather", "arguments": {"city": city}})
    return f"<tool_call>\n{call}\n</tool_call>"


def script(*answers: str) -> str:
    return f"Say ⟦{'⏭'.join(answers)}⟧"


async def weather(city: str) -> str:
    """The weather of a city. It says what the model, where it is asked anew, is to say next."""
    await asyncio.sleep(TOOL_S)
    number = int(city)
    return f"20 degrees ⟦{spelt(str(number + 1)) if number + 1 < CALLS else 'Mild.'}⟧"


def rows(before: Metrics, after: Metrics) -> dict[str, float]:
    """What went through the model meanwhile."""
    names = {phase: f'midstream_tokens_computed_total{{phase="{phase}"}}' for phase in PHASES}
    return {phase: after[name] - before.get(name, 0) for phase, name in names.items()}


async def in_one_stream(server: Served, question: str) -> midstream.Run:
    async with midstream.connect(server.http) as client:
        run = await client.run(midstream.Agent(tools=[weather]), question)
        assert await run.answer() == "Mild."
        return run


def post(url: str, body: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]


async def over_the_chat_door(server: Served, question: str) -> None:
    """As every client of that API does it."""
    messages: list[Any] = [{"role": "user", "content": question}]
    tools = [to_builtins(midstream.tool_of(weather))]
    while True:
        answer = await asyncio.to_thread(post, server.http, {"messages": messages, "tools": tools})
        messages.append(answer)
        if not answer.get("tool_calls"):
            assert answer["content"] == "Mild."
            return
        for call in answer["tool_calls"]:
            content = await weather(**json.loads(call["function"]["arguments"]))
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


async def loops() -> list[Figure]:
    server = Served("--toy-step-ms", str(STEP_MS), scripted=True)
    question = script(*[spelt(str(number)) for number in range(CALLS)], "Mild.")
    try:
        before = await server.until_idle()
        began = time.perf_counter()
        run = await in_one_stream(server, question)
        own_s = time.perf_counter() - began
        between = await server.until_idle()
        began = time.perf_counter()
        await over_the_chat_door(server, question)
        door_s = time.perf_counter() - began
        after = await server.until_idle()
    finally:
        server.end()
    assert run.stream.final is not None
    usage = run.stream.final.usage
    own, door = rows(before, between), rows(between, after)
    known = usage.prompt_tokens + usage.injected_tokens + usage.completion_tokens
    told = f"agents: {CALLS} calls"
    prompt = usage.prompt_tokens
    return [
        Figure(f"{told}: rows computed beyond each token once", sum(own.values()) - (known - 1), "", "0"),
        Figure(
            f"{told}: computed of prompts and results",
            own["prefill"],
            "tokens",
            f">= {PROMPT_GOAL} x fewer",
            door["prefill"] / own["prefill"],
            "over the chat door",
        ),
        Figure(
            f"{told}: the same behind the question",
            own["prefill"] - prompt,
            "tokens",
            "",
            (door["prefill"] - prompt) / max(own["prefill"] - prompt, 1),
            "over the chat door",
        ),
        Figure(
            f"{told} of {TOOL_S:g} s: the whole loop", own_s, "s", "", door_s / own_s, "over the chat door"
        ),
    ]


async def turn_s(client: midstream.Client, calls: int, *, eager: bool) -> float:
    """A turn of so many calls, each of whose tools takes half as long as the one before."""

    async def weather(city: str) -> str:
        await asyncio.sleep(2 * TOOL_S / 2 ** int(city))
        return "mild"

    question = script("".join(spelt(str(number)) for number in range(calls)), "Mild.")
    began = time.perf_counter()
    if eager:
        run = await client.run(midstream.Agent(tools=[weather]), question)
        await run.answer()
    else:
        messages = [{"role": "user", "content": question}]
        stream = await client.start(messages=messages, tools=[weather], on_tool_call="pause")
        made: list[midstream.Call] = []
        async for call in stream.tool_calls():
            made.append(call)
            if len(made) == calls:
                results = await asyncio.gather(*(midstream.run_call(one, [weather]) for one in made))
                for one, result in zip(made, results, strict=True):
                    await stream.tool_result(one, result)
    return time.perf_counter() - began


async def eagerness() -> list[Figure]:
    server = Served("--toy-step-ms", str(STEP_MS), scripted=True)
    figures = []
    try:
        async with midstream.connect(server.http) as client:
            for calls in (2, 3):
                pairs = [
                    (await turn_s(client, calls, eager=True), await turn_s(client, calls, eager=False))
                    for _ in range(ROUNDS)
                ]
                own = statistics.median(eager for eager, _ in pairs)
                ratio = statistics.median(waiting / eager for eager, waiting in pairs)
                figures.append(
                    Figure(
                        f"agents: a turn of {calls} calls",
                        own,
                        "s",
                        f">= {EAGER_GOAL} x less",
                        ratio,
                        "tools at the end of the turn",
                    )
                )
    finally:
        server.end()
    return figures


async def measured() -> list[Figure]:
    return [*await loops(), *await eagerness()]


def main() -> int:
    return report(asyncio.run(measured()))


if __name__ == "__main__":
    sys.exit(main())
