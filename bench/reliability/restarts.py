"""Both homes of streams die: a server that computes for itself is killed, and its engine with it, under
streams that are sampled and steered. Their client starts them again at another server, from what it knows:
what was read stands, and the rest is what it would have been.

The model is the default one, whose text hangs on every token before. Each stream is played twice by the same
plan: undisturbed, at the server that stays; and through the death of the other.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import midstream
from bench.reliability.trial_server import complaints, serving
from tests.server.server_process import Served
from tests.server.test_restarts import doomed

DEATHS, SEED, AT_ONCE = 20, 4100, 4
MODEL = "smollm2-135m-instruct"
TOKENS, ACTS = 100, 5
START: dict[str, Any] = {"max_tokens": TOKENS, "ignore_eos": True, "return_tokens": True}
WORDS = (" but", " and so", " Then", " never", " I wonder whether")


class Played(NamedTuple):
    text: str
    tokens: list[int]
    restarts: list[midstream.Restarted]


async def measure(scale: float) -> dict[str, Any]:
    count = max(int(DEATHS * scale), 1)
    wrong: list[str] = []
    exact = 0
    async with serving("--model", MODEL) as stays:
        for number in range(count):
            exact += await one_death(stays, MODEL, SEED + AT_ONCE * number, wrong)
        wrong += complaints(stays)
    return {
        "name": "both homes of streams die",
        "deaths": count,
        "streams": AT_ONCE * count,
        "that were started again, exactly": exact,
        "wrong": wrong[:5],
        "goal": f"{DEATHS} deaths, what was read stands and the rest is what it would have been",
        "met": not wrong and exact >= count,
    }


async def one_death(stays: Served, model: str, seed: int, wrong: list[str]) -> int:
    """Of a server with the same model. Returns how many of its streams were started again."""
    seeds = range(seed, seed + AT_ONCE)
    async with midstream.connect(stays.http) as client:
        expected = await asyncio.gather(*(played(client, one) for one in seeds))
    async with serving("--model", model) as dies, doomed(dies, stays) as (client, kill):
        doom = Doom(kill, random.Random(seed).randrange(AT_ONCE * TOKENS // 2))
        found = await asyncio.gather(*(played(client, one, doom) for one in seeds))
    for one, known, came in zip(seeds, expected, found, strict=True):
        if (known.text, known.tokens) != (came.text, came.tokens):
            wrong.append(f"seed {one} says {came.text!r}, and undisturbed {known.text!r}")
        if not all(restart.exact for restart in came.restarts):
            wrong.append(f"seed {one} was not started again exactly")
    return sum(bool(came.restarts) for came in found)


class Doom:
    """It comes when streams have so many tokens together."""

    def __init__(self, kill: Callable[[], None], tokens: int) -> None:
        self._kill = kill
        self._left = tokens

    def came(self, tokens: int) -> None:
        """Of any stream."""
        if 0 <= self._left < tokens:
            self._kill()
        self._left -= tokens


async def played(client: midstream.Client, seed: int, doom: Doom | None = None) -> Played:
    """By a plan that hangs on the seed alone. Where it goes back it is decoded anew as far as it had come, so
    it always stands where the next act finds it."""
    chance = random.Random(seed)
    stream = await client.start(
        prompt=f"Of the number {seed} it is said that",
        seed=seed,
        temperature=chance.uniform(0.3, 1.1),
        window=1,
        credit={"limit": 0},
        **START,
    )
    index = 0
    for _ in range(ACTS):
        index += chance.randint(3, 12)
        await until(stream, index, doom)
        match chance.choice(("adjust", "inject", "put before", "rewind", "pause")):
            case "adjust":
                await stream.adjust(temperature=chance.uniform(0.3, 1.1), top_p=chance.uniform(0.6, 1.0))
            case "inject":
                await stream.inject(text=chance.choice(WORDS))
            case "put before":
                await stream.inject(text=chance.choice(WORDS), at=index - chance.randint(0, 2))
            case "rewind":
                await stream.rewind(index - chance.randint(1, 3))
            case "pause":
                await stream.pause()
                await stream.resume()
    await until(stream, TOKENS, doom)
    async for _ in stream:
        pass
    return Played(stream.text, stream.tokens, stream.restarts)


async def until(stream: midstream.Stream, index: int, doom: Doom | None) -> None:
    """It has come so far, and no further."""
    stream.grant(index)
    while stream.consumed < index:
        before = stream.consumed
        assert await stream.next() is not None, "it was to have more tokens"
        if doom is not None:
            doom.came(stream.consumed - before)
