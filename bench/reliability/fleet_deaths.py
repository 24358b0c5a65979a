"""Deaths in a fleet: of three engines each is killed in turn, under load, and every stream goes on at another
with the text that it would have had.

Two dozen streams read, steer, pause and stall, and begin anew as they end. Others are watched event by event:
they are never refused, and how long they stand still is measured.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from functools import partial
from typing import Any

import midstream
from bench.reliability.deaths import Deaths, crowd, nothing
from bench.reliability.scoring import Score, keep_playing, quiet_run, rank
from bench.reliability.trial_server import complaints, serving
from tests.server.independent_client import Client, Stream, client_of
from tests.server.server_process import Served

DEATHS, SEED = 300, 20270
MOST_MINUTES = 55.0
ENGINES = 3
CLIENTS, SEEDS = 4, range(3)
WATCHED, LENGTH = 6, 300  # streams at a time, and tokens of each
STEP_MS = 20
BETWEEN_S = (0.2, 1.0)  # from when all engines are there again to the next death
TOLD_EVERY = 25
MOST_MEDIAN_S = 1.0
RESTARTS = "midstream_engine_restarts_total"


async def measure(scale: float) -> dict[str, Any]:
    count = max(int(DEATHS * scale), ENGINES)
    options = ("--engines", str(ENGINES), "--engine-spare", "on", "--toy-step-ms", str(STEP_MS))
    async with serving(*options) as served:
        score, watched = await strike(served, signal.SIGKILL, count)
    return {
        "name": "deaths in a fleet",
        "deaths": watched.blows,
        **told(score, watched),
        "goal": f"{DEATHS} deaths, nothing lost, doubled or refused, resumed in {MOST_MEDIAN_S:g} s median",
        "met": not score.wrong and watched.blows >= count and rank(watched.resumed_s, 0.5) <= MOST_MEDIAN_S,
    }


def told(score: Score, watched: Watched) -> dict[str, Any]:
    return {
        "streams played through them": score.plays + watched.read,
        "watched streams that felt one": len(watched.resumed_s),
        "wrong": score.wrong,
        "blow to resumed, median s": round(rank(watched.resumed_s, 0.5), 3),
        "blow to resumed, p99 s": round(rank(watched.resumed_s, 0.99), 3),
        "blow to resumed, most s": round(max(watched.resumed_s), 3),
        "blow to a whole fleet, median s": round(rank(watched.whole_s, 0.5), 2),
    }


async def strike(
    served: Served, blow: signal.Signals, count: int, seed: int = SEED, clients: int = CLIENTS
) -> tuple[Score, Watched]:
    """So many engines, the oldest first."""
    await whole(served, ENGINES)
    chance = random.Random(seed)
    return await under_load(
        served, lambda watched, deaths: watched.through(blow, count, deaths, chance), clients
    )


async def under_load(
    served: Served, through: Callable[[Watched, Deaths], Awaitable[None]], clients: int = CLIENTS
) -> tuple[Score, Watched]:
    """`through`: what befalls the fleet meanwhile."""
    deaths, over = Deaths(), asyncio.Event()
    score = await quiet_run(served.http, SEEDS, crowd(nothing))
    async with AsyncExitStack() as stack:
        playing = [await stack.enter_async_context(midstream.connect(served.http)) for _ in range(clients)]
        watching = [await stack.enter_async_context(client_of(served.url)) for _ in range(WATCHED)]
        watched = Watched(served, score, await truth(watching[0]))
        async with asyncio.TaskGroup() as group:
            for client in playing:
                group.create_task(keep_playing(client, score, crowd(deaths.next), over.is_set))
            for watcher in watching:
                group.create_task(watched.keep_reading(watcher, over))
            await through(watched, deaths)
            over.set()
            deaths.over()
    await served.until_idle()
    score.wrong += complaints(served)
    return score, watched


async def whole(served: Served, engines: int, times: float = 0) -> None:
    """All engines are there, and so often another came in one's place."""
    await served.until(lambda now: now["midstream_engines"] == engines and now[RESTARTS] >= times)


async def restarts(served: Served) -> float:
    return (await served.metrics())[RESTARTS]


async def truth(client: Client) -> list[int]:
    stream = await begun(client, "truth")
    await stream.rest()
    return stream.tokens


async def begun(client: Client, name: str) -> Stream:
    """Who is refused raises."""
    params = {"ignore_eos": True, "temperature": 0, "max_tokens": LENGTH}
    return await client.start(name, params=params, credit={"limit": LENGTH}, return_tokens=True)


class Watched:
    """What befalls streams that are read event by event, one after the other on each connection."""

    def __init__(self, served: Served, score: Score, truth: list[int]) -> None:
        self.blows = 0
        self.read = 0
        self.resumed_s: list[float] = []  # from the last blow, of each stream that felt it
        self.stood_s: list[float] = []  # how long each of them stood still
        self.whole_s: list[float] = []  # from each blow until all engines were there again
        self._served = served
        self._score = score
        self._truth = truth
        self._struck = 0.0

    async def through(self, blow: signal.Signals, count: int, deaths: Deaths, chance: random.Random) -> None:
        until = time.perf_counter() + MOST_MINUTES * 60
        while self.blows < count and time.perf_counter() < until:
            await asyncio.sleep(chance.uniform(*BETWEEN_S))
            victim = await asyncio.to_thread(lambda: self._served.engines[0])
            await self.strike(partial(os.kill, victim, blow))
            deaths.one()
            if self.blows % TOLD_EVERY == 0:
                told = f"{self.blows} of {count}, wrong: {len(self._score.wrong)}"
                print(told, file=sys.stderr, flush=True)

    async def strike(self, blow: Callable[[], object]) -> None:
        """Returns when all engines are there again."""
        before = await restarts(self._served)
        self.hit(blow)
        await whole(self._served, ENGINES, before + 1)
        self.is_whole()

    def hit(self, blow: Callable[[], object]) -> None:
        self._struck = time.perf_counter()
        blow()
        self.blows += 1

    def is_whole(self) -> None:
        self.whole_s.append(time.perf_counter() - self._struck)

    async def keep_reading(self, client: Client, over: asyncio.Event) -> None:
        for number in itertools.count():
            stream = await begun(client, str(number))
            await self._read(stream)
            self.read += 1
            if stream.tokens != self._truth:
                self._score.fail(f"watched stream {number} had {stream.tokens}")
            if over.is_set():
                return

    async def _read(self, stream: Stream) -> None:
        paused = 0.0
        while (event := await stream.next())["type"] != "final":
            if event["type"] == "paused":
                paused = time.perf_counter()
            elif event["type"] == "resumed":
                self.resumed_s.append(time.perf_counter() - self._struck)
                self.stood_s.append(time.perf_counter() - paused)
        if event["finish_reason"] != "length":
            self._score.fail(f"a watched stream ended with {event}")
