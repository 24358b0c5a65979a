"""Bystanders of a death: of three engines the one is killed that has forty long prompts, and those who read
at the others keep their pace while all of them are computed anew there.

With the toy, to which a prompt costs nothing, and with the default model, whose engines have a thread each.
The gaps between readers' tokens are held against those before the death.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.reliability.fleet_deaths import whole
from bench.reliability.scoring import rank
from bench.reliability.trial_server import complaints, serving
from engine.model import default_model
from tests.server.independent_client import Client, Stream, client_of
from tests.server.listening_engine import ListeningEngine, listening

ROUNDS = 2  # deaths, with each model
PROMPTS, LENGTH, TOKENS = 40, 250, 4  # long ones, tokens of each, and what it says
READERS = 8  # at the two other engines
QUIET_TOKENS = 150  # of each reader, before the death
MOST_RATIO = 2.0
KEPT = ("--kv-tokens", "30000")
MODELS = {"toy": ("--toy-step-ms", "20", *KEPT), "default model": (*KEPT, "--exact", "off")}


async def measure(scale: float) -> dict[str, Any]:
    rounds = max(1, int(ROUNDS * scale))
    ratios, wrong = list[float](), list[str]()
    figures: dict[str, Any] = {}
    for model, options in MODELS.items():
        named = () if model == "toy" else ("--model", str(default_model.ensure()))
        gaps = Gaps()
        for number in range(rounds):
            wrong += await one_death((*named, *options), gaps)
            print(f"{model}, {number + 1} of {rounds}: {gaps}", file=sys.stderr, flush=True)
        ratios.append(rank(gaps.beside_s, 0.99) / rank(gaps.quiet_s, 0.99))
        figures[f"gaps with the {model}"] = str(gaps)
    return {
        "name": "bystanders of a death",
        "deaths": 2 * rounds,
        **figures,
        "wrong": wrong,
        "goal": f"{PROMPTS} prompts of {LENGTH} tokens move, p99 gap of bystanders {MOST_RATIO:g} x quiet",
        "met": not wrong and max(ratios) <= MOST_RATIO,
    }


class Gaps:
    """From one token to a reader's next, of all readers."""

    def __init__(self) -> None:
        self.quiet_s: list[float] = []
        self.beside_s: list[float] = []  # while what moved is computed anew
        self.moved_s: list[float] = []  # from each death until all of it was

    def __str__(self) -> str:
        def ms(values: list[float], part: float) -> str:
            return f"{1000 * rank(values, part):.0f}"

        ratio = rank(self.beside_s, 0.99) / rank(self.quiet_s, 0.99)
        median = rank(self.beside_s, 0.5) / rank(self.quiet_s, 0.5)
        return (
            f"{ratio:.2f} x quiet at p99 ({ms(self.quiet_s, 0.99)} to {ms(self.beside_s, 0.99)} ms), "
            f"{median:.2f} x at the median ({ms(self.quiet_s, 0.5)} to {ms(self.beside_s, 0.5)} ms), "
            f"all moved in {', '.join(f'{value:.1f}' for value in self.moved_s)} s"
        )


async def one_death(options: tuple[str, ...], gaps: Gaps) -> list[str]:
    """Returns what went wrong."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        token, addresses = folder / "token", folder / "addresses"
        token.write_text("sesame")
        engines = [ListeningEngine(*options, "--token-file", str(token)) for _ in range(3)]
        for engine in engines:  # one after the other, since they have weights to load
            await stack.enter_async_context(listening([engine]))
        addresses.write_text(f"{engines[0].address}\n")
        static = ("--fleet", "static", "--engine-addresses-file", str(addresses))
        served = await stack.enter_async_context(serving(*static, "--engine-token-file", str(token)))
        await whole(served, 1)
        moving = await stack.enter_async_context(client_of(served.url))
        reading = [await stack.enter_async_context(client_of(served.url)) for _ in range(READERS)]
        prompts = [await begun(moving, number, LENGTH, TOKENS, credit=1) for number in range(PROMPTS)]
        addresses.write_text("".join(f"{engine.address}\n" for engine in engines))
        await whole(served, 3)
        readers = Readers([await begun(one, number, 20, 10**6) for number, one in enumerate(reading)])
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(readers.keep_reading(stream)) for stream in readers.streams]
            await readers.tokens(QUIET_TOKENS // 5)  # by then all decode
            quiet = await readers.gaps(readers.tokens(QUIET_TOKENS))
            engines[0].end()
            struck = time.perf_counter()
            beside = await readers.gaps(moved(prompts))
            gaps.moved_s.append(time.perf_counter() - struck)
            for task in tasks:
                task.cancel()
        gaps.quiet_s += readers.of_bystanders(quiet)
        gaps.beside_s += readers.of_bystanders(beside)
        wrong = [f"a prompt ended with {one.events[-1]}" for one in prompts if one.index != TOKENS]
        return wrong + complaints(served)


async def begun(client: Client, number: int, length: int, tokens: int, credit: int = 10**6) -> Stream:
    """With a prompt like nobody else's."""
    prompt = [60 + (number * 7 + at * (number + 3)) % 190 for at in range(length)]
    params = {"ignore_eos": True, "seed": number, "max_tokens": tokens}
    name = f"{length}-{number}"
    stream = await client.start(name, prompt=prompt, params=params, credit={"limit": credit})
    await stream.until_index(1)  # else the next would go elsewhere, to wait for less
    return stream


async def moved(prompts: list[Stream]) -> None:
    """All are read again, to their end."""
    for stream in prompts:
        await stream.send("credit", limit=TOKENS)
    for stream in prompts:
        await stream.rest()


class Gap(NamedTuple):
    stream: Stream
    seconds: float


class Readers:
    """Each on a connection of its own, and read as it comes."""

    def __init__(self, streams: list[Stream]) -> None:
        self.streams = streams
        self._gaps: list[Gap] = []
        self._told = asyncio.Event()

    async def keep_reading(self, stream: Stream) -> None:
        last = time.perf_counter()
        while True:
            event = await stream.next()
            if event.get("count"):
                now = time.perf_counter()
                self._gaps.append(Gap(stream, now - last))
                last = now
            self._told.set()

    async def tokens(self, more: int) -> None:
        """Until each has so many more."""
        goals = [stream.index + more for stream in self.streams]
        while any(stream.index < goal for stream, goal in zip(self.streams, goals, strict=True)):
            self._told.clear()
            await self._told.wait()

    async def gaps(self, until: Awaitable[object]) -> list[Gap]:
        """Those that end meanwhile."""
        self._gaps = []
        await until
        return self._gaps

    def of_bystanders(self, gaps: list[Gap]) -> list[float]:
        """But for who was at the engine that died: chance may have brought somebody there."""
        moved = [one for one in self.streams if any(event["type"] == "paused" for event in one.events)]
        return [gap.seconds for gap in gaps if gap.stream not in moved]
