"""Draining: servers are told to end under load; what they had accepted ends in a `final`, and they end in
time and order.

Each has streams that run, wait for credit and are paused, and more are being started while the signal comes.
Some can finish within the grace, and must; the others are cancelled with what they had.
"""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from websockets.exceptions import ConnectionClosed

from bench.reliability.scoring import rank
from bench.reliability.trial_server import complaints, serving
from tests.server.independent_client import Client, Stream, client_of

DRAINS, SEED = 100, 7000
GRACE_S, MOST_S = 0.5, 10.0
SHORT, ENDLESS = 40, 8000  # tokens: those that the grace is long enough for, and those that it is not
GREEDY: dict[str, Any] = {"ignore_eos": True, "temperature": 0}


async def measure(scale: float) -> dict[str, Any]:
    count = max(int(DRAINS * scale), 1)
    wrong: list[str] = []
    times = [await drain(seed, wrong) for seed in range(SEED, SEED + count)]
    return {
        "name": "drains under load",
        "drains": count,
        "wrong": wrong[:5],
        "signal to exit, median s": round(rank(times, 0.5), 2),
        "signal to exit, most s": round(max(times), 2),
        "goal": f"{DRAINS} drains, nothing accepted lost, each within {MOST_S:g} s",
        "met": not wrong and max(times) <= MOST_S,
    }


async def drain(seed: int, wrong: list[str]) -> float:
    """One server's end: how long it took from the signal, and whatever was not as it must be."""
    chance = random.Random(seed)
    async with (
        serving("--toy-step-ms", "5", "--shutdown-grace-s", str(GRACE_S)) as served,
        client_of(served.url) as client,
        client_of(served.url) as other,
    ):
        truth = await client.start("truth", params=GREEDY | {"max_tokens": 2 * SHORT})
        await truth.rest()
        streams = await load(client, chance)
        await streams[0].until_index(chance.randrange(1, 30))
        since = time.perf_counter()
        late = asyncio.create_task(start_until_closed(other))
        served.tell()
        codes = await until_closed(client), await late
        status = await asyncio.to_thread(served.ended)
        took_s = time.perf_counter() - since
        found = [*amiss(await told(client) + await told(other), truth.text)]
        found += [f"closed with {code}" for code in codes if code != 1001]
        found += [f"exit status {status}"] * (status != 0) + complaints(served)
        wrong += [f"seed {seed}: {what}" for what in found]
    return took_s


async def load(client: Client, chance: random.Random) -> list[Stream]:
    """All accepted; the first is sure to run."""
    streams = [await client.start("running", params=GREEDY | {"max_tokens": ENDLESS})]
    for number in range(12):
        params = GREEDY | {"max_tokens": chance.choice([SHORT, ENDLESS])}
        credit = {"credit": {"limit": chance.choice([0, 5, 9000])}} if chance.random() < 0.7 else {}
        streams.append(await client.start(str(number), params=params, **credit))
        if chance.random() < 0.3:
            await streams[-1].send("pause")
    return streams


async def start_until_closed(client: Client) -> int | None:
    """Start one stream after the other while the server goes away."""
    reading = asyncio.create_task(until_closed(client))
    for number in itertools.count():
        await asyncio.wait([reading], timeout=0.005)
        if reading.done():
            break
        with suppress(ConnectionClosed):
            await client.start_blindly(f"late {number}", params=GREEDY | {"max_tokens": SHORT})
    return await reading


async def until_closed(client: Client) -> int | None:
    """All that comes is kept for `told`; returns the close code."""
    try:
        while True:
            await client.next("nobody")
    except ConnectionClosed as closed:
        return closed.rcvd.code if closed.rcvd else None


async def told(client: Client) -> list[Stream]:
    """Its streams, with all that came of them."""
    for stream in client.streams.values():
        while client.heard(stream.request_id):
            await stream.next()
    return [*client.streams.values()]


def amiss(streams: list[Stream], truth: str) -> Iterator[str]:
    for stream in streams:
        kinds = [event["type"] for event in stream.events]
        errors = [event["code"] for event in stream.events if event["type"] == "error"]
        if "started" in kinds and kinds[-1] != "final":
            yield f'"{stream.request_id}" was accepted and has no final'
        if "started" not in kinds and errors not in ([], ["draining"]):
            yield f'"{stream.request_id}" was answered by {errors}'
        said = stream.text.rstrip("\ufffd")  # the last character may never have become whole
        if not said.startswith(truth[: len(said)]):
            yield f'"{stream.request_id}" says {stream.text}'
