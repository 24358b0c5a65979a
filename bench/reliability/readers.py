"""Slow readers: a hundred that read nothing and a hundred without credit, beside good ones: nobody is held
up.

The good ones' throughput is measured alone and in that company, by turns, in the same run. Then those to whom
too much was sent are cut off by the send deadline, the others hang up, and all must be free again.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import statistics
import time
from typing import Any, NamedTuple

import midstream
from bench.reliability.process_memory import resident_mib
from bench.reliability.raw_clients import framed, greeted
from bench.reliability.trial_server import complaints, serving
from tests.server.server_process import Served, streams, used

CROWD, GOOD = 100, 16
ROUNDS, WINDOW_S = 4, 5.0
DEADLINE_S = 10.0  # --send-timeout-s: longer than a round's window, and less than is allowed in all
CREDIT = 300  # tokens whose events, with twenty alternatives each, are more than all buffers on the way hold
LEAST_KEPT, MOST_FREED_S = 0.95, 10.0
ROOM_BYTES = 4096  # of their receive buffers: soon their window is zero
STEP_MS = 10
_names = itertools.count()


async def measure(scale: float) -> dict[str, Any]:
    count = max(int(CROWD * scale), 2)
    pace = ("--toy-step-ms", str(STEP_MS), "--send-timeout-s", str(DEADLINE_S))
    async with serving(*pace, "--max-connections", "1000") as served:
        return await beside(served, count, ROUNDS, WINDOW_S)


async def beside(served: Served, count: int, rounds: int, window_s: float) -> dict[str, Any]:
    good = Good()
    async with midstream.connect(served.http) as client, asyncio.TaskGroup() as group:
        tasks = [group.create_task(good.keep_reading(client, number)) for number in range(GOOD)]
        await good.rate(window_s / 2)  # warms up
        before = await weighed(served)
        rounds_of = [await one_round(served, good, count, window_s) for _ in range(rounds)]
        after = await weighed(served)
        good.over = True
        await asyncio.gather(*tasks)
    metrics = await served.until_idle()
    return report(count, rounds_of, after - before, good.wrong + complaints(served), int(used(metrics)))


class Round(NamedTuple):
    entering: float  # throughput of the good ones to that alone: while the others come, and are served
    held: float  # when the others have had all that they are given
    grown_mib: float
    freed_s: float


async def one_round(served: Served, good: Good, count: int, window_s: float) -> Round:
    before = await weighed(served)
    alone = await good.rate(window_s)
    entered = asyncio.create_task(hostile(served, count))
    entering = await good.rate(window_s)
    crowd = await entered
    await served.until(lambda now: streams(now, "running") + streams(now, "queued") <= GOOD)
    held = await good.rate(window_s)
    grown = await weighed(served) - before
    return Round(entering / alone, held / alone, grown, await until_freed(served, crowd, GOOD))


class Good:
    """Readers that read, and what each must read, which is what it read the first time."""

    def __init__(self) -> None:
        self.over = False
        self.wrong: list[str] = []
        self._tokens = 0
        self._texts: dict[int, str] = {}

    async def keep_reading(self, client: midstream.Client, number: int) -> None:
        while not self.over:
            stream = await client.start(
                prompt=f"Good {number}", temperature=0, max_tokens=300, ignore_eos=True
            )
            async for chunk in stream:
                self._tokens += chunk.count
            if stream.text != self._texts.setdefault(number, stream.text):
                self.wrong.append(f"good reader {number} read {stream.text}")

    async def rate(self, for_s: float) -> float:
        """Tokens a second, of all together, from now on."""
        before, since = self._tokens, time.perf_counter()
        await asyncio.sleep(for_s)
        return (self._tokens - before) / (time.perf_counter() - since)


class Crowd:
    def __init__(self) -> None:
        self.silent: list[socket.socket] = []  # without credit, or with credit that follows their reading
        self.clogged: list[socket.socket] = []  # more is sent to them than fits the buffers on the way

    async def enter(self, host: str, kept: list[socket.socket], fields: dict[str, Any]) -> None:
        sock, name = await greeted(host, ROOM_BYTES), f"hostile {next(_names)}"
        params = {"ignore_eos": True, "max_tokens": 4000, "logprobs": 20}
        frame = {"type": "start", "request_id": name, "prompt": name, "params": params}
        await asyncio.get_running_loop().sock_sendall(sock, framed(json.dumps(frame | fields).encode()))
        kept.append(sock)


async def hostile(served: Served, count: int) -> Crowd:
    """As many that read nothing as have no credit; every other of the first has more than it can be sent."""
    crowd, host = Crowd(), f"{served.host}:{served.port}"
    for number in range(count):
        await crowd.enter(host, crowd.silent, {"credit": {"limit": 0}})
        if number % 2:
            await crowd.enter(host, crowd.clogged, {"credit": {"limit": CREDIT}})
        else:
            await crowd.enter(host, crowd.silent, {})
    return crowd


async def until_freed(served: Served, crowd: Crowd, others: int) -> float:
    """The clogged ones are cut off by the server, then the others hang up: how long their streams stay."""
    await served.until(lambda now: streams(now) <= others + len(crowd.silent))
    since = time.perf_counter()
    for sock in crowd.silent:
        sock.close()
    await served.until(lambda now: streams(now) <= others)
    took_s = time.perf_counter() - since
    for sock in crowd.clogged:
        sock.close()
    return took_s


async def weighed(served: Served) -> float:
    return await asyncio.to_thread(resident_mib, served.process.pid)


def report(count: int, rounds: list[Round], left_mib: float, wrong: list[str], blocks: int) -> dict[str, Any]:
    held = statistics.median(one.held for one in rounds)
    freed_s = max(one.freed_s for one in rounds)
    return {
        "name": "hostile readers",
        "that read nothing": count,
        "without credit": count,
        "wrong": wrong,
        "throughput of good ones beside them, to alone": round(held, 3),
        "in each round": [round(one.held, 3) for one in rounds],
        "while they come and are served": [round(one.entering, 3) for one in rounds],
        "all gone within, most s": round(freed_s, 2),
        "gateway MiB more, among them": round(max(one.grown_mib for one in rounds), 1),
        "gateway MiB more, after all rounds": round(left_mib, 1),
        "KV blocks used in the end": blocks,
        "goal": f"at least {LEAST_KEPT:.0%} kept, all freed within {MOST_FREED_S:g} s",
        "met": not wrong and held >= LEAST_KEPT and freed_s <= MOST_FREED_S and not blocks,
    }
