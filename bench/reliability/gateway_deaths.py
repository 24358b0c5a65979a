"""Deaths of gateways: two on one engine that listens. One is killed amid streams that are paused, rewound,
injected into and adjusted; their clients attach at the other, and each stream has the very tokens that it
would have had."""

from __future__ import annotations

import asyncio
import random
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bench.reliability.scoring import rank
from bench.reliability.trial_server import complaints, serving
from tests.server.independent_client import Client, Stream, client_of
from tests.server.listening_engine import ListeningEngine, listening

DEATHS, STREAMS = 200, 6  # and in each, streams
MOST_S = 2.0  # from the attach until all that was missed is there
KEPT: dict[str, Any] = {"on_disconnect": "continue", "return_tokens": True, "credit": {"limit": 10_000}}
PARAMS = {"ignore_eos": True, "temperature": 0, "max_tokens": 80}


class Steps(NamedTuple):
    """What a client asks for, one after the other, each at a token that it has."""

    frames: list[tuple[str, str, dict[str, Any]]]

    async def ask(self, stream: Stream, begin: int, end: int) -> None:
        for kind, answer, fields in self.frames[begin:end]:
            await stream.ask(kind, answer, **fields)


STEPS = Steps(
    [
        ("pause", "paused", {"ref": "p"}),
        ("rewind", "rewound", {"to": 8}),
        ("inject", "injected", {"text": " and then,"}),
        ("adjust", "adjusted", {"params": {"temperature": 0.7, "seed": 5}}),
        ("resume", "resumed", {}),
    ]
)


async def measure(scale: float) -> dict[str, Any]:
    deaths = max(1, int(DEATHS * scale))
    waited, wrong, chance = list[float](), list[str](), random.Random(1)
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        engine = ListeningEngine("--toy-step-ms", "5", listen=f"unix:{folder}/engine")
        await stack.enter_async_context(listening([engine]))
        fleet = ("--fleet", "static", "--engine-addresses", engine.address)
        living = await stack.enter_async_context(serving(*fleet))
        async with client_of(living.url) as client:
            truth = await client.start("truth", params=PARAMS, **KEPT)
            await truth.until_index(12)
            await STEPS.ask(truth, 0, len(STEPS.frames))
            await truth.rest()
        for number in range(deaths):
            async with serving(*fleet) as dying, client_of(dying.url) as ours, client_of(living.url) as there:
                asked = [1 + at % len(STEPS.frames) for at in range(STREAMS)]
                lost = [await begun(ours, f"{at}", steps) for at, steps in enumerate(asked)]
                await asyncio.sleep(chance.uniform(0, 0.05))
                dying.tell(signal.SIGKILL)
                for at, stream in enumerate(lost):
                    began = time.perf_counter()
                    again = await come_back(there, stream)
                    waited.append(time.perf_counter() - began)
                    await STEPS.ask(again, asked[at], len(STEPS.frames))
                    await again.rest()
                    if again.tokens != truth.tokens or again.text != truth.text:
                        wrong.append(f"death {number}, stream {at} has {again.tokens}")
            if not (number + 1) % 10:
                print(f"{number + 1} of {deaths}, wrong: {len(wrong)}", file=sys.stderr, flush=True)
        wrong += complaints(living)
    p99 = rank(waited, 0.99)
    return {
        "name": "deaths of gateways",
        "deaths": deaths,
        "streams adopted": len(waited),
        "attached again, p99 ms": round(1000 * p99),
        "wrong": wrong,
        "goal": f"every token and every frame once, p99 {MOST_S:g} s",
        "met": not wrong and p99 <= MOST_S,
    }


async def begun(client: Client, name: str, steps: int) -> Stream:
    """A stream of which so many steps were answered; it stands still, or has gone on behind the last."""
    stream = await client.start(name, params=PARAMS, **KEPT)
    await stream.until_index(12)
    await STEPS.ask(stream, 0, steps)
    return stream


async def come_back(client: Client, lost: Stream) -> Stream:
    stream = client.adopt(lost)
    await stream.send("attach", after=lost.events[-1]["seq"])
    await stream.next("snapshot")
    return stream
