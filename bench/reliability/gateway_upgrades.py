"""Rolling upgrades of a whole fleet: of two gateways and three engines one after the other is told to end,
and begins anew, while a hundred streams are read by the SDK, which knows both gateways. Nobody is cancelled,
and each stream has the text that it would have had."""

from __future__ import annotations

import asyncio
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import midstream
from bench.fleet.contestants import free_port
from bench.reliability.fleet_deaths import ENGINES, whole
from bench.reliability.scoring import Score, rank
from bench.reliability.trial_server import complaints
from bench.reliability.upgrades import begin_anew
from tests.server.listening_engine import ListeningEngine, listening
from tests.server.server_process import Served

UPGRADES, CLIENTS, READERS = 20, 10, 10  # readers of each client
GATEWAYS, LENGTH, STEP_MS = 2, 100, 50
MOST_S = 1.0
ASKED: dict[str, Any] = {"prompt": "Once", "temperature": 0, "ignore_eos": True, "max_tokens": LENGTH}


class Gateway:
    """A server that can be told to end and begin anew at its port."""

    def __init__(self, *options: str) -> None:
        self._options = (*options, "--port", str(free_port()))
        self.served = Served(*self._options)

    def upgrade(self, score: Score) -> None:
        self.served.tell()
        if status := self.served.ended():
            score.fail(f"a gateway that was told to end had exit status {status}")
        self.close(score)
        self.served = Served(*self._options)

    def close(self, score: Score) -> None:
        score.wrong += complaints(self.served)
        self.served.end()


class Readers:
    def __init__(self, score: Score, truth: str) -> None:
        self.gaps_s: list[float] = []  # of each stream the longest
        self._score = score
        self._truth = truth

    async def keep_reading(self, client: midstream.Client, over: asyncio.Event) -> None:
        while not over.is_set():
            try:
                stream = await client.start(**ASKED)
            except midstream.RequestError as refused:
                self._score.fail(f"a start was refused: {refused}")
                continue
            longest_s, last = 0.0, time.perf_counter()
            async for _ in stream:
                longest_s, last = max(longest_s, time.perf_counter() - last), time.perf_counter()
            self.gaps_s.append(longest_s)
            if stream.text != self._truth or stream.final is None or stream.final.finish_reason != "length":
                self._score.fail(f"{stream} ended with {stream.final}, and has {stream.text!r}")


async def measure(scale: float) -> dict[str, Any]:
    count = max(int(UPGRADES * scale), 1)
    score = Score({})
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        options = ("--toy-step-ms", str(STEP_MS))
        engines = [ListeningEngine(*options, listen=f"unix:{folder}/{at}") for at in range(ENGINES)]
        await stack.enter_async_context(listening(engines))
        fleet = ("--fleet", "static", "--engine-addresses", " ".join(engine.address for engine in engines))
        gateways = [await asyncio.to_thread(Gateway, *fleet) for _ in range(GATEWAYS)]
        for gateway in gateways:
            stack.callback(gateway.close, score)
        urls = [gateway.served.http for gateway in gateways]
        clients = [await stack.enter_async_context(midstream.connect(urls)) for _ in range(CLIENTS)]
        truth = await clients[0].start(**ASKED)
        async for _ in truth:
            pass
        readers, over = Readers(score, truth.text), asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for client in clients * READERS:
                group.create_task(readers.keep_reading(client, over))
            for number in range(count):
                for gateway in gateways:
                    await asyncio.to_thread(gateway.upgrade, score)
                    await whole(gateway.served, ENGINES)
                for engine in engines:
                    engine.tell()
                    await begin_anew(engine, score)
                    for gateway in gateways:
                        await whole(gateway.served, ENGINES)
                print(f"{number + 1} of {count}, wrong: {len(score.wrong)}", file=sys.stderr, flush=True)
            over.set()
    return {
        "name": "rolling upgrades of gateways and engines",
        "upgrades": count,
        "streams read through them": len(readers.gaps_s),
        "wrong": score.wrong,
        "longest pause of a stream, median s": round(rank(readers.gaps_s, 0.5), 3),
        "longest pause of a stream, p99 s": round(rank(readers.gaps_s, 0.99), 3),
        "longest pause of all, s": round(max(readers.gaps_s), 3),
        "goal": f"{UPGRADES} of {GATEWAYS} gateways and {ENGINES} engines under {CLIENTS * READERS} streams,"
        f" none cancelled, no start refused, longest pause {MOST_S:g} s",
        "met": not score.wrong and max(readers.gaps_s) <= MOST_S,
    }
