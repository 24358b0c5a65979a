"""Agents: what a loop of tool calls computes in one stream, and what it takes, beside the same loop over the
chat door with the whole history anew each time; and what it is worth that a tool starts when its call is
whole.

The model is the toy, which says what it is told to, so that all loops make the very same calls. Counts need
no clock. The chat door knows again what it has decoded; where a client has told it so that it cannot, it
computes what any server does that has a prefix cache, and all that is sent where one has none. All of them
run on a server of their own that nobody else uses, and on one where the prompts of others fill the cache anew
while each tool runs.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import statistics
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, NamedTuple

from msgspec import to_builtins

import midstream
from bench.__main__ import report
from bench.result_tables import Figure
from engine import toy_model
from tests.fakes.scripts import saying, spelt
from tests.server.server_process import Metrics, Served

CALLS, TOOL_S, STEP_MS, ROUNDS = 20, 0.5, 4, 3
KV_TOKENS, OTHERS, AT_ONCE = 16_384, 8, 2  # prompts of others that are as long as the cache together
SLOW_STEP_MS, WORDY = 10, "or wherever it is warmer than here by now"
PROMPT_GOAL, EAGER_GOAL = 3, 1.28
PHASES = ("prefill", "decode")
Weather = Callable[..., Awaitable[str]]


def turn(number: int) -> str:
    """What the model says then: a sentence, and a call, or the answer."""
    return "Let me see.\n\n" + spelt({"city": str(number)}) if number < CALLS else "Mild."


class Others:
    """Who else asks that server, while a tool runs, and nobody else may be computed. `computed`: the rows
    that the model computed for them."""

    def __init__(self, server: Served) -> None:
        self.computed = 0
        self._server = server
        self._dice = random.Random(1)

    async def ask(self) -> None:
        """For as many tokens as the cache holds, and never for those of before."""
        async with midstream.connect(self._server.http) as client:
            for _ in range(OTHERS // AT_ONCE):
                await asyncio.gather(*(self._one(client) for _ in range(AT_ONCE)))

    async def _one(self, client: midstream.Client) -> None:
        prompt = self._dice.choices(toy_model.WORDS, k=KV_TOKENS // OTHERS)
        stream = await client.start(prompt=prompt, max_tokens=1)
        async for _ in stream:
            pass
        assert stream.final is not None
        usage = stream.final.usage
        self.computed += usage.prompt_tokens - usage.cached_tokens + usage.completion_tokens - 1


class Ground(NamedTuple):
    """What a loop runs on."""

    server: Served
    others: Others | None

    @property
    def weather(self) -> Weather:
        async def weather(city: str) -> str:
            """The weather of a city. It says what the model, where it is asked anew, is to say next."""
            await asyncio.gather(asyncio.sleep(TOOL_S), *([self.others.ask()] if self.others else []))
            return f"20 degrees ⟦{turn(int(city) + 1)}⟧"

        return weather


@contextmanager
def ground(*, crowded: bool) -> Iterator[Ground]:
    """A server of its own: no loop finds what another computed."""
    server = Served("--toy-step-ms", str(STEP_MS), "--kv-tokens", str(KV_TOKENS), scripted=True, loaded=False)
    try:
        yield Ground(server, Others(server) if crowded else None)
    finally:
        server.end()


def rows(before: Metrics, after: Metrics) -> float:
    """What went through the model meanwhile."""
    names = [f'midstream_tokens_computed_total{{phase="{phase}"}}' for phase in PHASES]
    return sum(after[name] - before.get(name, 0) for name in names)


class Loop(NamedTuple):
    """Of a loop in one stream: how often the model computed a row, for how many tokens, and the time."""

    computed: float
    prompts: int
    written: int
    took_s: float


async def in_one_stream(question: str, *, crowded: bool) -> Loop:
    with ground(crowded=crowded) as there:
        before = await there.server.until_idle()
        began = time.perf_counter()
        async with midstream.connect(there.server.http) as client:
            run = await client.run(midstream.Agent(tools=[there.weather]), question)
            assert await run.answer() == "Mild."
        took_s = time.perf_counter() - began
        computed = rows(before, await there.server.until_idle())
    assert run.stream.final is not None
    usage = run.stream.final.usage
    return Loop(
        computed - (there.others.computed if there.others else 0),
        usage.prompt_tokens + usage.injected_tokens,
        usage.completion_tokens,
        took_s,
    )


class Told(NamedTuple):
    """Of the tokens of all prompts, those that were sent, and those that had to be computed."""

    sent: int
    computed: int


def post(url: str, body: Mapping[str, Any]) -> Any:
    request = urllib.request.Request(f"{url}/v1/chat/completions", json.dumps(body).encode())
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)


async def over_the_chat_door(there: Ground, question: str, *, respelt: bool) -> Told:
    """As every client of that API does it. `respelt`: by one that keeps conversations in a form of its own,
    with other ids for calls, and without blanks at the end of what was said before them."""
    messages: list[Any] = [{"role": "user", "content": question}]
    weather = there.weather
    tools = [to_builtins(midstream.tool_of(weather))]
    sent = cached = 0
    while True:
        answer = await asyncio.to_thread(post, there.server.http, {"messages": messages, "tools": tools})
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


async def loops(*, crowded: bool) -> list[Figure]:
    question = saying(*map(turn, range(CALLS + 1)))
    own = await in_one_stream(question, crowded=crowded)
    told = f"agents: {CALLS} calls" + ", the cache filled by others meanwhile" * crowded
    tokens, loop = f"{told}: tokens of prompt and results", f"{told} of {TOOL_S:g} s: the whole loop"
    beyond = own.computed - (own.prompts + own.written - 1)
    goal = f">= {PROMPT_GOAL} x fewer"
    figures = [Figure(f"{told}: rows computed beyond each token once", beyond, "", "0")]
    for respelt in (False, True):
        peer = "the chat door" + ", told in another spelling" * respelt
        door, door_s = await at_the_door(question, respelt=respelt, crowded=crowded)
        fewer = door.computed / own.prompts
        figures += [
            Figure(tokens, own.prompts, "tokens", goal if crowded else "", fewer, peer),
            Figure(loop, own.took_s, "s", "", door_s / own.took_s, peer),
        ]
    if crowded:
        return figures
    return [
        *figures,
        Figure(tokens, own.prompts, "tokens", goal, door.sent / own.prompts, f"{peer}, uncached"),
    ]


async def at_the_door(question: str, *, respelt: bool, crowded: bool) -> tuple[Told, float]:
    """And how long it took."""
    with ground(crowded=crowded) as there:
        began = time.perf_counter()
        told = await over_the_chat_door(there, question, respelt=respelt)
        return told, time.perf_counter() - began


class Turn(NamedTuple):
    """How long a turn took whose tools start with their calls; one whose tools start with its end; and how
    long that would have taken if each had started in the moment in which its call was read."""

    eager_s: float
    waiting_s: float
    ideal_s: float


async def compared(client: midstream.Client, took_s: list[float], *, in_turn: bool) -> Turn:
    """A turn of calls whose tools take so long; `in_turn`: one after the other, as if they shared one."""
    free = asyncio.Semaphore(1 if in_turn else len(took_s))

    async def weather(city: str) -> str:
        async with free:
            await asyncio.sleep(took_s[int(city[0])])
        return "mild"

    calls = "".join(map(call, range(len(took_s))))
    question = saying(calls, "Mild.")
    began = time.perf_counter()
    run = await client.run(midstream.Agent(tools=[weather]), question)
    await run.answer()
    eager_s = time.perf_counter() - began

    began = time.perf_counter()
    messages = [{"role": "user", "content": question}]
    stream = await client.start(messages=messages, tools=[weather], on_tool_call="pause")
    made, read_s = list[midstream.Call](), list[float]()
    async for one in stream.tool_calls():
        made.append(one)
        read_s.append(time.perf_counter() - began)
        if len(made) == len(took_s):
            results = await asyncio.gather(*(midstream.run_call(whole, [weather]) for whole in made))
            for answered, result in zip(made, results, strict=True):
                await stream.tool_result(answered, result)
    waiting_s = time.perf_counter() - began
    rest_s = waiting_s - read_s[-1] - (sum(took_s) if in_turn else max(took_s))
    return Turn(eager_s, waiting_s, done_s(read_s, took_s, in_turn=in_turn) + rest_s)


def done_s(read_s: list[float], took_s: list[float], *, in_turn: bool) -> float:
    """When the last of these tools is done, if each starts when its call is read."""
    done = 0.0
    for read, took in zip(read_s, took_s, strict=True):
        done = max(done, read) + took if in_turn else max(done, read + took)
    return done


def call(number: int) -> str:
    return spelt({"city": f"{number}, {WORDY}"})


async def writing_s(client: midstream.Client) -> float:
    """How long a call takes to be written: from the end of one to that of the next. What its grammar forces
    takes no time."""

    async def weather(city: str) -> str:
        return city

    messages = [{"role": "user", "content": saying(call(0) + call(1))}]
    stream = await client.start(messages=messages, tools=[weather])
    first_s, second_s = [time.perf_counter() async for _ in stream.tool_calls()]
    return second_s - first_s


def durations(calls: int, write_s: float, *, in_turn: bool) -> list[float]:
    """In turn, each as long as a call takes to be written. At once, the first twice as long, and each half as
    long as the one before: where all take as long, the last is done as late as ever."""
    return [write_s if in_turn else 2 * write_s / 2**number for number in range(calls)]


async def eagerness() -> list[Figure]:
    server = Served("--toy-step-ms", str(SLOW_STEP_MS), scripted=True, loaded=False)
    figures = []
    try:
        async with midstream.connect(server.http) as client:
            write_s = await writing_s(client)
            for in_turn, calls in itertools.product((False, True), (2, 3)):
                took_s = durations(calls, write_s, in_turn=in_turn)
                turns = [await compared(client, took_s, in_turn=in_turn) for _ in range(ROUNDS)]
                own = statistics.median(turn.eager_s for turn in turns)
                name = f"agents: a turn of {calls} calls, tools " + ("in turn" if in_turn else "at once")
                reached = statistics.median(turn.waiting_s / turn.eager_s for turn in turns)
                best = statistics.median(turn.waiting_s / turn.ideal_s for turn in turns)
                figures += [
                    Figure(name, own, "s", f">= {EAGER_GOAL} x less", reached, "tools at its end"),
                    Figure(name, own, "s", "", best, "tools at its end, at best"),
                ]
    finally:
        server.end()
    return figures


async def measured() -> list[Figure]:
    return [*await loops(crowded=False), *await loops(crowded=True), *await eagerness()]


def main() -> int:
    return report(asyncio.run(measured()))


if __name__ == "__main__":
    sys.exit(main())
