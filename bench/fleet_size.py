"""What a token costs as the fleet grows with its users: processor time of the gateway, and of its engines,
with one to eight engines of the toy at a fixed rate, each with as many streams.

The gateway sees more engines, more messages and more streams. Each size takes its turn in each round, since
the machine is not the same from one second to the next; clients are in this process, and count for nothing.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

from websockets.asyncio.client import ClientConnection

from bench.__main__ import report
from bench.gateway import cpu_s
from bench.result_tables import Figure
from bench.server import ServerProcess

SIZES = (1, 2, 4, 8)
STREAMS, STEP_MS = 24, 40.0  # of each engine
TOKENS, FIRST_TOKENS = 200, 20  # of each stream, and of each before, when all is new
ROUNDS = 3
MOST_RATIO = 1.1
LOOK_EVERY_S = 0.05


class Cost(NamedTuple):
    """Microseconds of the processor a token."""

    gateway: float
    engines: float


class Engine(NamedTuple):
    address: str
    pid: int


@contextmanager
def engines(folder: Path) -> Iterator[list[Engine]]:
    processes = []
    try:
        for number in range(max(SIZES)):
            command = [sys.executable, "-m", "midstream", "engine", "--model", "toy", "--threads", "1"]
            listen = ["--listen", f"unix:{folder}/{number}", "--address-file", f"{folder}/{number}.address"]
            processes.append(
                subprocess.Popen([*command, *listen, "--toy-step-ms", str(STEP_MS), "--log-level", "warning"])
            )
        while not all((folder / f"{number}.address").exists() for number in range(max(SIZES))):
            assert all(process.poll() is None for process in processes), "an engine ended before it listened"
            time.sleep(LOOK_EVERY_S)
        yield [Engine(f"unix:{folder}/{number}", process.pid) for number, process in enumerate(processes)]
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


async def answers(server: ServerProcess, count: int, tokens: int) -> None:
    """Of so many streams at once, to their ends."""
    sockets = await asyncio.gather(*(server.connect() for _ in range(count)))
    await asyncio.gather(
        *(_answer(socket, f"{tokens} {number}", tokens) for number, socket in enumerate(sockets))
    )
    await asyncio.gather(*(socket.close() for socket in sockets))


async def _answer(socket: ClientConnection, name: str, tokens: int) -> None:
    params = {"temperature": 0.8, "seed": 1, "ignore_eos": True, "max_tokens": tokens}
    start = {"type": "start", "request_id": name, "prompt": f"Hello {name}", "params": params}
    await socket.send(json.dumps(start | {"credit": {"limit": tokens}}))
    async for message in socket:
        assert '"error"' not in message, message
        if '"final"' in message:
            return


def cost(there: Sequence[Engine]) -> Cost:
    addresses = " ".join(engine.address for engine in there)
    count = STREAMS * len(there)
    with ServerProcess("--model", "toy", "--fleet", "static", "--engine-addresses", addresses) as server:
        asyncio.run(answers(server, count, FIRST_TOKENS))
        pids = [server.process.pid, *(engine.pid for engine in there)]
        before = [cpu_s(pid) for pid in pids]
        asyncio.run(answers(server, count, TOKENS))
        gateway, *others = (cpu_s(pid) - was for pid, was in zip(pids, before, strict=True))
    return Cost(*(1e6 * taken_s / (count * TOKENS) for taken_s in (gateway, sum(others))))


def measure() -> list[Figure]:
    costs: dict[int, list[Cost]] = {size: [] for size in SIZES}
    with TemporaryDirectory() as folder, engines(Path(folder)) as there:
        for _ in range(ROUNDS):
            for size in SIZES:
                costs[size].append(cost(there[:size]))
    return [_figure(part, size, costs) for part in range(2) for size in SIZES]


def _figure(part: int, size: int, costs: dict[int, list[Cost]]) -> Figure:
    whose = ("the gateway's", "its engines'")[part]
    name = f"a token, {whose} processor, {size} x {STREAMS} streams at {size} engine{'s' * (size > 1)}"
    found = median(cost[part] for cost in costs[size])
    if size == 1:
        return Figure(name, found, "us")
    ratio = median(ours[part] / one[part] for ours, one in zip(costs[size], costs[1], strict=True))
    return Figure(name, found, "us", f"<= {MOST_RATIO} x", ratio, "one engine")


if __name__ == "__main__":
    sys.exit(report(measure()))
