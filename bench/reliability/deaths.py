"""Engine deaths: engines are killed under load, and every stream's text is what it would have been, and it
goes on soon.

Two servers, each with a dozen streams that read, steer, pause and stall, and begin anew as they end; one more
is watched event by event, and killing goes by its tokens. Now and then the spare is killed with its engine.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import midstream
from bench.reliability.scoring import Score, keep_playing, quiet_run, rank
from bench.reliability.trial_server import complaints, serving
from tests.fakes.steering_clients import STEERING_CLIENTS, SteeringClient, pausing, stalling
from tests.server.independent_client import Client, Stream, client_of
from tests.server.server_process import Served

DEATHS, SEED = 1000, 20260
MOST_MINUTES = 55.0  # a new engine takes its time: on a busy machine there are fewer deaths
SERVERS = 2
CLIENTS, SEEDS = 2, range(3)
STEP_MS = 20
BETWEEN = range(150, 350)  # tokens that the watched stream gets before each death
TOLD_EVERY = 50
BOTH_EVERY = 10  # deaths of the engine and of its spare
MOST_P99_S = 2.0


class Deaths:
    """Whoever waits for the next death is woken by it, or when there will be no more."""

    def __init__(self) -> None:
        self._next = asyncio.Event()

    async def next(self) -> None:
        await self._next.wait()

    def one(self) -> None:
        self._next.set()
        self._next = asyncio.Event()

    def over(self) -> None:
        self._next.set()


async def measure(scale: float) -> dict[str, Any]:
    each = max(int(DEATHS * scale / SERVERS), 1)
    found = await asyncio.gather(*(one_server(each, SEED + number) for number in range(SERVERS)))
    warm = [seconds for _, watched in found for seconds in watched.resumed_s]
    cold = [seconds for _, watched in found for seconds in watched.cold_s]
    p99_s = rank(warm + cold, 0.99)
    wrong = [what for score, _ in found for what in score.wrong]
    return {
        "name": "engine deaths",
        "deaths": len(warm + cold),
        "streams played through them": sum(score.plays for score, _ in found),
        "wrong": wrong,
        "kill to resumed, median s": round(rank(warm + cold, 0.5), 2),
        "kill to resumed, p99 s": round(p99_s, 2),
        "kill to resumed, most s": round(max(warm + cold), 2),
        "of them with the spare killed too": len(cold),
        "those, median s": round(rank(cold, 0.5), 2) if cold else None,
        "the others, p99 s": round(rank(warm, 0.99), 2),
        "goal": f"{DEATHS} deaths, nothing lost, doubled or reordered, resumed in {MOST_P99_S:g} s p99",
        "met": not wrong and p99_s <= MOST_P99_S and len(warm + cold) >= SERVERS * each,
    }


async def one_server(count: int, seed: int) -> tuple[Score, Watched]:
    async with serving("--engine-spare", "on", "--toy-step-ms", str(STEP_MS)) as served:
        return await strike(served, signal.SIGKILL, count, BETWEEN, seed)


async def strike(
    served: Served, blow: signal.Signals, count: int, between: range, seed: int = SEED
) -> tuple[Score, Watched]:
    """So many engines, under load; `between` are the tokens that the watched stream has got before each."""
    deaths, over = Deaths(), asyncio.Event()
    score = await quiet_run(served.http, SEEDS, crowd(nothing))
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(midstream.connect(served.http)) for _ in range(CLIENTS)]
        watcher = await stack.enter_async_context(client_of(served.url))
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(keep_playing(client, score, crowd(deaths.next), over.is_set))
            watched = Watched(served, watcher, score, blow)
            await watched.through(count, between, deaths, seed)
            over.set()
            deaths.over()
    await served.until_idle()
    score.wrong += complaints(served)
    return score, watched


def crowd(until: Callable[[], Awaitable[object]]) -> list[SteeringClient]:
    return [*STEERING_CLIENTS, pausing(until), stalling(until)]


async def nothing() -> None:
    """What those wait for whom nothing befalls."""


class Watched:
    """One stream a death, read event by event."""

    def __init__(self, served: Served, client: Client, score: Score, blow: signal.Signals) -> None:
        self.resumed_s: list[float] = []  # from the blow, where a spare stood ready
        self.cold_s: list[float] = []  # where it was killed too
        self._served = served
        self._client = client
        self._score = score
        self._blow = blow

    async def through(self, count: int, between: range, deaths: Deaths, seed: int) -> None:
        chance = random.Random(seed)
        truth = await self._start("truth")
        await truth.until_index(between.stop)
        await self._cancel(truth)
        until = time.perf_counter() + MOST_MINUTES * 60
        for number in range(count):
            if time.perf_counter() > until:
                break
            stream = await self._start(str(number))
            await stream.until_index(chance.choice(between))
            both = self._blow == signal.SIGKILL and number % BOTH_EVERY == BOTH_EVERY - 1
            victims = self._served.engines[: 2 if both else 1]
            since = time.perf_counter()
            for victim in victims:
                os.kill(victim, self._blow)
            await stream.until("paused")
            await stream.until("resumed")
            (self.resumed_s if len(victims) == 1 else self.cold_s).append(time.perf_counter() - since)
            deaths.one()
            await stream.until_index(stream.index + 1)
            await self._cancel(stream)
            if number % TOLD_EVERY == TOLD_EVERY - 1:
                print(
                    f"{number + 1} of {count}, wrong: {len(self._score.wrong)}", file=sys.stderr, flush=True
                )
            if stream.tokens[: between.stop] != truth.tokens[: len(stream.tokens)][: between.stop]:
                self._score.fail(f"death {number}: the watched stream had {stream.tokens}")

    async def _start(self, name: str) -> Stream:
        params = {"ignore_eos": True, "temperature": 0}
        return await self._client.start(name, params=params, credit={"limit": 8000}, return_tokens=True)

    async def _cancel(self, stream: Stream) -> None:
        await stream.send("cancel")
        await stream.rest()
