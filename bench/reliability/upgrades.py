"""Rolling upgrades: engines that listen are told to end, one after the other, and begin anew, while a hundred
streams are read. Each stream goes on at another engine, with the text that it would have had."""

from __future__ import annotations

import asyncio
import sys
from contextlib import AsyncExitStack
from tempfile import NamedTemporaryFile
from typing import Any

from bench.reliability.fleet_deaths import ENGINES, Watched, truth, whole
from bench.reliability.scoring import Score, rank
from bench.reliability.trial_server import complaints, serving
from tests.server.independent_client import client_of
from tests.server.listening_engine import ListeningEngine, listening

UPGRADES, READERS = 20, 100
STEP_MS = 50
MOST_S = 1.0


async def measure(scale: float) -> dict[str, Any]:
    count = max(int(UPGRADES * scale), 1)
    score, watched = await upgrade(count, READERS, STEP_MS)
    most_s = max(watched.stood_s)
    return {
        "name": "rolling upgrades",
        "upgrades": count,
        "engines told to end": watched.blows,
        "streams read through them": watched.read,
        "times that one had to move": len(watched.stood_s),
        "wrong": score.wrong,
        "paused, median s": round(rank(watched.stood_s, 0.5), 3),
        "paused, most s": round(most_s, 3),
        "told to end to resumed, most s": round(max(watched.resumed_s), 3),
        "goal": f"{UPGRADES} of {ENGINES} engines under {READERS} streams, none cancelled, longest pause"
        f" {MOST_S:g} s",
        "met": not score.wrong and most_s <= MOST_S,
    }


async def upgrade(count: int, readers: int, step_ms: int) -> tuple[Score, Watched]:
    """So many times, each of the engines in its turn."""
    async with AsyncExitStack() as stack:
        token = stack.enter_context(NamedTemporaryFile("w"))  # noqa: SIM115 - the stack closes it
        print("sesame", file=token, flush=True)
        options = ("--toy-step-ms", str(step_ms), "--token-file", token.name)
        engines = [ListeningEngine(*options) for _ in range(ENGINES)]
        await stack.enter_async_context(listening(engines))
        addresses = " ".join(engine.address for engine in engines)
        static = ("--fleet", "static", "--engine-addresses", addresses, "--engine-token-file", token.name)
        served = await stack.enter_async_context(serving(*static))
        await whole(served, ENGINES)
        watching = [await stack.enter_async_context(client_of(served.url)) for _ in range(readers)]
        score, over = Score({}), asyncio.Event()
        watched = Watched(served, score, await truth(watching[0]))
        async with asyncio.TaskGroup() as group:
            for watcher in watching:
                group.create_task(watched.keep_reading(watcher, over))
            for number in range(count):
                for engine in engines:
                    await asyncio.gather(watched.strike(engine.tell), begin_anew(engine, score))
                print(f"{number + 1} of {count}, wrong: {len(score.wrong)}", file=sys.stderr, flush=True)
            over.set()
        await served.until_idle()
        score.wrong += complaints(served)
    return score, watched


async def begin_anew(engine: ListeningEngine, score: Score) -> None:
    """Once it has ended."""
    if status := await asyncio.to_thread(engine.ended):
        score.fail(f"an engine that was told to end had exit status {status}: {engine.said[-5:]}")
    engine.start()
    await engine.until_ready()
