"""The soak test, everything at once for an hour: streams that are read and steered, wires that are cut,
clients that hang up, short answers without end, chats over HTTP, and two engines that die. What the server
holds once it has warmed up, and in the end."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import time
from contextlib import AsyncExitStack, suppress
from typing import Any, NamedTuple

import httpx2

import midstream
from bench.reliability.process_memory import open_files, own_mib, slope
from bench.reliability.scoring import Score, keep_playing, quiet_run
from bench.reliability.trial_server import complaints, serving
from tests.fakes.cutting_proxy import CuttingProxy, cuts
from tests.fakes.steering_clients import STEERING_CLIENTS
from tests.server.server_process import PATIENCE_S, Served, used

MINUTES = 60.0
SEED, SEEDS = 80_000, range(6)
STEADY, CUT, RUDE = 2, 2, 1  # clients
STEP_MS = 60  # a pace that leaves most of a core to others, for as long as this takes
MOST_BYTES = 60_000
SILENCE_S = 5.0
KV_TOKENS = (
    16_384  # soon full of prefixes that may be used again: what an engine knows of them is memory, too
)
SAMPLES = 600
DEATHS = 2  # of the engine, before memory is looked at: the next has its own
WARM = 1 / 2  # of the time: what has ended is kept for minutes, and thousands of names for longer
MOST_MIB_AN_HOUR = 1.0
LOOKS = 20
CHAT: dict[str, Any] = {
    "model": "toy",
    "messages": [{"role": "user", "content": "Hi"}],
    "max_tokens": 20,
    "temperature": 0,
}


class Sample(NamedTuple):
    hours: float
    gateway_mib: float
    engine_mib: float


async def measure(scale: float) -> dict[str, Any]:
    minutes = MINUTES * scale
    pace = ("--toy-step-ms", str(STEP_MS), "--kv-tokens", str(KV_TOKENS), "--log-level", "warning")
    async with serving("--engine-spare", "on", *pace, loaded=False) as served:
        score = await quiet_run(served.http, SEEDS, STEERING_CLIENTS)
        before = await held(served)
        samples = await under_load(served, score, minutes * 60)
        after = await settled(served, before)
        score.wrong += complaints(served)
    return report(score, minutes, samples, before, after)


async def under_load(served: Served, score: Score, for_s: float) -> list[Sample]:
    over = asyncio.Event()
    async with CuttingProxy(served.port, cuts(SEED, 10**9, MOST_BYTES)) as proxy, AsyncExitStack() as stack:
        urls = [served.http] * STEADY + [proxy.url] * CUT
        clients = [
            await stack.enter_async_context(midstream.connect(url, silence_s=SILENCE_S)) for url in urls
        ]
        async with asyncio.TaskGroup() as group:
            for client in clients:
                group.create_task(keep_playing(client, score, STEERING_CLIENTS, over.is_set))
            for number in range(RUDE):
                group.create_task(hang_up_often(served, SEED + number, over))
            group.create_task(ask_briefly(served, over))
            group.create_task(chat_often(served, score, over))
            samples = await watch(served, for_s)
            over.set()
    return samples


async def watch(served: Served, for_s: float) -> list[Sample]:
    """Look on, and kill an engine now and then while it is early."""
    samples, since = [], time.perf_counter()
    deaths = [WARM * for_s * (number + 1) / (DEATHS + 2) for number in range(DEATHS)]
    while (now := time.perf_counter() - since) < for_s:
        engines = await asyncio.to_thread(lambda: served.engines)
        if deaths and now > deaths[0] and engines:
            deaths.pop(0)
            os.kill(engines[0], signal.SIGKILL)
        elif engines:
            with suppress(OSError, IndexError):  # it may have died in this moment
                samples.append(Sample(now / 3600, own_mib(served.process.pid), own_mib(engines[0])))
        await asyncio.sleep(for_s / SAMPLES)
    return samples


async def hang_up_often(served: Served, seed: int, over: asyncio.Event) -> None:
    """Start some streams, read a little, and be gone without a word."""
    chance = random.Random(seed)
    while not over.is_set():
        client = await midstream.connect(served.http, reconnect_s=0)
        with suppress(midstream.Overloaded):
            streams = [await client.start(prompt="Once", max_tokens=200) for _ in range(chance.randint(1, 4))]
            for _ in range(chance.randrange(40)):
                await chance.choice(streams).next()
        await client.close()


async def ask_briefly(served: Served, over: asyncio.Event) -> None:
    """Answers of a few tokens, one after the other, on one connection that lasts."""
    chance = random.Random(SEED)
    async with midstream.connect(served.http) as client:
        while not over.is_set():
            with suppress(midstream.Overloaded):
                await client.complete(prompt="Hi", max_tokens=chance.randint(1, 8))


async def chat_often(served: Served, score: Score, over: asyncio.Event) -> None:
    """By the HTTP door, in one piece and as it is written: it says the same each time."""
    said: set[str] = set()
    async with httpx2.AsyncClient(base_url=served.http, timeout=PATIENCE_S) as client:
        while not over.is_set():
            for stream in (False, True):
                response = await client.post("/v1/chat/completions", json=CHAT | {"stream": stream})
                if response.status_code == 503:
                    await asyncio.sleep(float(response.headers["Retry-After"]))
                    continue
                said.add(
                    streamed(response.text) if stream else response.json()["choices"][0]["message"]["content"]
                )
            if len(said) > 1:
                score.fail(f"the HTTP door says {said}")


def streamed(body: str) -> str:
    events = [line.removeprefix("data: ") for line in body.splitlines() if line.startswith("data: {")]
    return "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events)


async def held(served: Served) -> dict[str, int]:
    """What must be the same before and after, exactly."""
    metrics = await served.until_idle()
    looks = [await asyncio.sleep(0.05, open_files(served.process.pid)) for _ in range(LOOKS)]
    blocks = sum(value for name, value in metrics.items() if name.startswith("midstream_kv_blocks{"))
    return {
        "open files": min(looks),  # the connection that asked is one for a moment
        "tasks": int(metrics["midstream_tasks"]),
        "KV blocks used": int(used(metrics)),
        "KV blocks": int(blocks),
    }


async def settled(served: Served, before: dict[str, int]) -> dict[str, int]:
    """What it holds in the end; the sockets of those who are gone without a word take a moment."""
    for _ in range(LOOKS):
        if (after := await held(served)) == before:
            break
    return after


def report(
    score: Score, minutes: float, samples: list[Sample], before: dict[str, int], after: dict[str, int]
) -> dict[str, Any]:
    warm = [sample for sample in samples if sample.hours * 60 >= WARM * minutes]
    few = samples[:: max(len(samples) // 12, 1)]
    gateway = slope([(sample.hours, sample.gateway_mib) for sample in warm])
    engine = slope([(sample.hours, sample.engine_mib) for sample in warm])
    return {
        "name": "soak",
        "minutes": round(minutes, 2),
        "streams": score.plays,
        "wrong": score.wrong,
        "gateway MiB more an hour": round(gateway, 2),
        "engine MiB more an hour": round(engine, 2),
        "gateway MiB, all the way": [round(sample.gateway_mib, 1) for sample in few],
        "engine MiB, all the way": [round(sample.engine_mib, 1) for sample in few],
        "held before": before,
        "held after": after,
        "goal": f"{MINUTES:g} minutes, less than {MOST_MIB_AN_HOUR:g} MiB an hour, all else as before",
        "met": not score.wrong and after == before and max(gateway, engine) < MOST_MIB_AN_HOUR,
    }
