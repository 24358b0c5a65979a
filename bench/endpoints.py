"""Endpoint latency, side by side: how long a reader waits for its first token, and from one to the next.

Over server-sent events and over the WebSocket, with readers that each have a connection of their own; and the
same HTTP client at `transformers serve`. All have prompts of one length for the default model, and decode
greedily. What is timed is what a reader sees: from its request, on a connection that stands, to each text.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2
from msgspec import Struct, field
from websockets.asyncio.client import ClientConnection, connect

from bench.peer_model import safetensors_folder
from bench.result_tables import Figure
from bench.server import ServerProcess
from bench.transformers_serve import TransformersServe
from engine.model.default_model import DEFAULT_MODEL

ROUNDS = {1: 8, 8: 3, 32: 2}  # by how many read at a time
TOKENS = 32
SHARES = (0.5, 0.95, 0.99)
FLOAT32 = ("--dtype", "float32")
ROOM = (
    "--cb-num-blocks",
    "64",
    "--cb-max-batch-tokens",
    "2048",
)  # by itself it takes half of a machine's memory

Times = list[float]  # when something was asked for, and when each text of it came
Reader = Callable[[str], Awaitable[Times]]  # from a prompt
Readers = Callable[[int], AbstractAsyncContextManager[list[Reader]]]  # so many

_salts = itertools.count()


class Waits(Struct):
    """In seconds, of all readers of all rounds."""

    first: list[float] = field(default_factory=list)
    next: list[float] = field(default_factory=list)

    def add(self, times: Times) -> None:
        asked, *came = times
        self.first.append(came[0] - asked)
        self.next += [after - before for before, after in itertools.pairwise(came)]


def prompt() -> str:
    """Another one each time: nobody shall find it in a prefix cache."""
    salt = next(_salts)
    return " ".join(str((7919 * salt + 31 * at) % 900 + 100) for at in range(10))


# -- readers ---------------------------------------------------------------------------------------


@asynccontextmanager
async def over_sse(host: str, body: dict[str, Any], count: int) -> AsyncIterator[list[Reader]]:
    limits = httpx2.Limits(max_connections=count, max_keepalive_connections=count)
    async with httpx2.AsyncClient(base_url=f"http://{host}", limits=limits, timeout=None) as client:

        async def read(prompt: str) -> Times:
            times = [time.perf_counter()]
            asked = body | {"prompt": prompt, "stream": True}
            async with client.stream("POST", "/v1/completions", json=asked) as response:
                response.raise_for_status()
                times += [time.perf_counter() async for line in response.aiter_lines() if text_of(line)]
            return times

        yield [read] * count


def text_of(line: str) -> str:
    return str(json.loads(line[6:])["choices"][0]["text"]) if line.startswith("data: {") else ""


@asynccontextmanager
async def over_websocket(host: str, count: int) -> AsyncIterator[list[Reader]]:
    async with AsyncExitStack() as stack:
        sockets = [
            await stack.enter_async_context(connect(f"ws://{host}/v1/realtime", compression=None))
            for _ in range(count)
        ]
        yield [lambda prompt, socket=socket: read_frames(socket, prompt) for socket in sockets]  # type: ignore[misc]


async def read_frames(socket: ClientConnection, prompt: str) -> Times:
    params = {"temperature": 0, "ignore_eos": True, "max_tokens": TOKENS}
    start = {"type": "start", "request_id": f"r{next(_salts)}", "prompt": prompt, "params": params}
    times = [time.perf_counter()]
    await socket.send(json.dumps(start))
    while (event := json.loads(await socket.recv()))["type"] != "final":
        assert event["type"] != "error", event
        if event.get("delta"):
            times.append(time.perf_counter())
    return times


# -- contests --------------------------------------------------------------------------------------


async def waits(readers: Readers, count: int, rounds: int) -> Waits:
    waits = Waits()
    async with readers(count) as ready:
        await asyncio.gather(*(read(prompt()) for read in ready))  # connections stand, and memory is warm
        for _ in range(rounds):
            for times in await asyncio.gather(*(read(prompt()) for read in ready)):
                waits.add(times)
    return waits


def contest(readers: Readers) -> dict[int, Waits]:
    return {count: asyncio.run(waits(readers, count, rounds)) for count, rounds in ROUNDS.items()}


def measure() -> list[Figure]:
    greedy = {"temperature": 0, "max_tokens": TOKENS}
    with ServerProcess("--model", DEFAULT_MODEL) as server:
        sse = contest(lambda count: over_sse(server.host, greedy | {"ignore_eos": True}, count))
        websocket = contest(lambda count: over_websocket(server.host, count))
    endless = json.dumps({"max_new_tokens": TOKENS, "do_sample": False, "eos_token_id": -1})
    with TransformersServe(safetensors_folder(), *FLOAT32, *ROOM) as peer:
        asked = {"model": peer.model, "max_tokens": TOKENS, "generation_config": endless}
        theirs = contest(lambda count: over_sse(peer.host, asked, count))
    return _figures(sse, websocket, theirs)


def _figures(*contests: dict[int, Waits]) -> list[Figure]:
    figures = []
    for count in ROUNDS:
        for what, kind in (("first token", "first"), ("token to token", "next")):
            for share in SHARES:
                sse, websocket, theirs = (
                    1000 * quantile(getattr(waits[count], kind), share) for waits in contests
                )
                name = f"{what} at {count}, p{share * 100:.0f}"
                peer = "transformers serve"
                figures += [
                    Figure(f"{name}, SSE", sse, "ms", "", sse / theirs, peer),
                    Figure(f"{name}, WebSocket", websocket, "ms", "", websocket / sse, "SSE"),
                    Figure(f"{name}, {peer}", theirs, "ms"),
                ]
    return figures


def quantile(values: list[float], share: float) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[round(share * 100) - 1]


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure()))
