"""Agents: what a loop of tool calls computes in one stream, and what it takes, beside the same loop over the
chat door with the whole history anew each time; and what it is worth that a tool starts when its call is
whole.

The model is the toy, which says what it is told to, so that all loops make the very same calls. Counts need
no clock. The chat door knows again what it has decoded; where a client has told it so that it cannot, it
computes what any server does that has a prefix cache, and all that is sent where one has none.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
import urllib.request
from collections.abc import Mapping
from typing import Any, NamedTuple

from msgspec import to_builtins

import midstream
from bench.__main__ import report
from bench.result_tables import Figure
from tests.fakes.scripts import saying, spelt
from tests.server.server_process import Metrics, Served

CALLS, TOOL_S, STEP_MS, ROUNDS = 20, 0.5, 4, 3
SLOW_STEP_MS, WORDY = 10, "or wherever it is warmer than here by now"
PROMPT_GOAL, EAGER_GOAL = 3, 1.28
PHASES = ("prefill", "decode")


def turn(number: int) -> str:
    """What the model says then: a sentence, and a call, or the answer."""
    return "Let me see.\n\n" + spelt({"city": str(number)}) if number < CALLS else "Mild."


async def weather(city: str) -> str:
    """The weather of a city. It says what the model, where it is asked anew, is to say next."""
    await asyncio.sleep(TOOL_S)
    return f"20 degrees ⟦{turn(int(city) + 1)}⟧"


def rows(before: Metrics, after: Metrics) -> float:
    """What went through the model meanwhile."""
    names = [f'midstream_tokens_computed_total{{phase="{phase}"}}' for phase in PHASES]
    return sum(after[name] - before.get(name, 0) for name in names)


async def in_one_stream(server: Served, question: str) -> midstream.Run:
    async with midstream.connect(server.http) as client:
        run = await client.run(midstream.Agent(tools=[weather]), question)
        assert await run.answer() == "Mild."
        return run


class Told(NamedTuple):
    """Of the tokens of all prompts, those that were sent, and those that had to be computed."""

    sent: int
    computed: int


def post(url: str, body: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


async def over_the_chat_door(server: Served, question: str, *, respelt: bool) -> Told:
    """As every client of that API does it. `respelt`: by one that keeps conversations in a form of its own,
    with other ids for calls, and without blanks at the end of what was said before them."""
    messages: list[Any] = [{"role": "user", "content": question}]
    tools = [to_builtins(midstream.tool_of(weather))]
    sent = cached = 0
    while True:
        answer = await asyncio.to_thread(post, server.http, {"messages": messages, "tools": tools})
        sent += answer["usage"]["prompt_tokens"]
        cached += answer["usage"]["prompt_tokens_details"]["cached_tokens"]
        message = answer["choices"][0]["message"]
        messages.append(message)
        if not message.get("tool_calls"):
            assert message["content"] == "Mild."
            return Told(sent, sent - cached)
        [call] = message["tool_calls"]
        content = await weather(**json.loads(call["function"]["arguments"]))
        if respelt:
            message["content"], call["id"] = message["content"].strip(), f"call_{len(messages)}"
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": content})


async def loops() -> list[Figure]:
    """Each on a server of its own: none finds what another computed."""
    question = saying(*map(turn, range(CALLS + 1)))
    server = Served("--toy-step-ms", str(STEP_MS), scripted=True)
    try:
        before = await server.until_idle()
        began = time.perf_counter()
        run = await in_one_stream(server, question)
        own_s = time.perf_counter() - began
        computed = rows(before, await server.until_idle())
    finally:
        server.end()
    assert run.stream.final is not None
    usage = run.stream.final.usage
    prompts = usage.prompt_tokens + usage.injected_tokens
    told = f"agents: {CALLS} calls"
    tokens, loop = f"{told}: tokens of prompt and results", f"{told} of {TOOL_S:g} s: the whole loop"
    beyond = computed - (prompts + usage.completion_tokens - 1)
    figures = [Figure(f"{told}: rows computed beyond each token once", beyond, "", "0")]
    for respelt in (False, True):
        peer = "the chat door" + ", told in another spelling" * respelt
        door, door_s = await at_the_door(question, respelt=respelt)
        figures += [
            Figure(tokens, prompts, "tokens", "", door.computed / prompts, peer),
            Figure(loop, own_s, "s", "", door_s / own_s, peer),
        ]
    goal = f">= {PROMPT_GOAL} x fewer"
    return [*figures, Figure(tokens, prompts, "tokens", goal, door.sent / prompts, f"{peer}, uncached")]


async def at_the_door(question: str, *, respelt: bool) -> tuple[Told, float]:
    """And how long it took."""
    server = Served("--toy-step-ms", str(STEP_MS), scripted=True)
    try:
        began = time.perf_counter()
        told = await over_the_chat_door(server, question, respelt=respelt)
        return told, time.perf_counter() - began
    finally:
        server.end()


async def turn_s(client: midstream.Client, calls: int, *, eager: bool) -> float:
    """A turn of so many calls, of some fifty tokens each; each tool takes half as long as the one before."""

    async def weather(city: str) -> str:
        await asyncio.sleep(2 * TOOL_S / 2 ** int(city[0]))
        return "mild"

    question = saying("".join(spelt({"city": f"{number}, {WORDY}"}) for number in range(calls)), "Mild.")
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
    server = Served("--toy-step-ms", str(SLOW_STEP_MS), scripted=True)
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
