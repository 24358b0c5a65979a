"""Many connections: ten thousand that do nothing, by their memory; a thousand that stream, by their delay."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import selectors
import socket
import statistics
import time
from typing import Any

from bench.gateway import resident_kb
from bench.reliability.raw_clients import framed, greeted, most_sockets
from bench.server import ServerProcess

IDLE, STREAMING = 10_000, 1000
AT_ONCE = 100
TOKENS, STEP_MS = 50, 100.0
MOST_KIB, MOST_ADDED_MS = 40.0, 50.0


async def crowd(host: str, count: int) -> list[socket.socket]:
    found: list[socket.socket] = []
    while len(found) < count:
        found += await asyncio.gather(*(greeted(host) for _ in range(min(AT_ONCE, count - len(found)))))
    return found


def hang_up(sockets: list[socket.socket]) -> None:
    for sock in sockets:
        sock.close()


async def idle_kib(count: int) -> float:
    """Memory of the gateway's process, for each of so many connections."""
    with ServerProcess("--model", "toy", "--max-connections", str(count + AT_ONCE)) as served:
        warm = await crowd(served.host, AT_ONCE)
        before = resident_kb(served.process.pid)
        idle = await crowd(served.host, count)
        each = (resident_kb(served.process.pid) - before) / count
        hang_up(warm + idle)
    return each


class Reader:
    """One stream's events, by when they came."""

    def __init__(self, sock: socket.socket) -> None:
        self.socket = sock
        self.came: dict[int, float] = {}  # by the token's index
        self.ended = False
        self._waiting = b""

    def start(self) -> None:
        params = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0}
        start = {"type": "start", "request_id": secrets.token_hex(8), "prompt": "Hello", "params": params}
        self.socket.sendall(framed(json.dumps(start | {"credit": {"limit": TOKENS}}).encode()))

    def read(self) -> None:
        self._waiting += self.socket.recv(65536)
        now = time.perf_counter()
        for index in re.findall(rb'"index":(\d+),"count":1', self._waiting):
            self.came.setdefault(int(index), now)
        assert b'"error"' not in self._waiting, self._waiting
        self.ended = b'"final"' in self._waiting
        self._waiting = self._waiting[-200:]  # an event may be cut between two reads


async def streaming(host: str, count: int) -> list[float]:
    """The times between tokens, of so many streams at once, each on its connection."""
    sockets = await crowd(host, count)
    readers = [Reader(sock) for sock in sockets]
    for reader in readers:
        reader.start()
    await asyncio.to_thread(read_all, readers)
    hang_up(sockets)
    return gaps_ms(readers)


def read_all(readers: list[Reader]) -> None:
    with selectors.DefaultSelector() as waiting:
        for reader in readers:
            waiting.register(reader.socket, selectors.EVENT_READ, reader)
        while waiting.get_map():
            for key, _ in waiting.select():
                key.data.read()
                if key.data.ended:
                    waiting.unregister(key.fileobj)


def gaps_ms(readers: list[Reader]) -> list[float]:
    """The time between one token and the next, of all streams."""
    assert all(len(reader.came) > TOKENS / 2 for reader in readers), "tokens came in bundles"
    return [
        (reader.came[index + 1] - reader.came[index]) * 1000
        for reader in readers
        for index in range(1, TOKENS - 1)
        if index in reader.came and index + 1 in reader.came
    ]


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98]


async def measure(scale: float) -> dict[str, Any]:
    idle = most_sockets(int(IDLE * scale))
    many = most_sockets(int(STREAMING * scale))
    kib = await idle_kib(idle)
    options = ("--toy-step-ms", str(STEP_MS), "--batch-rows", "65536", "--max-connections", str(many + 1))
    with ServerProcess("--model", "toy", *options) as served:
        alone = p99(await streaming(served.host, 1))
        among = p99(await streaming(served.host, many))
    return {
        "name": "connections",
        "idle connections": idle,
        "KiB an idle connection": round(kib, 1),
        "streaming connections": many,
        "between tokens, one connection, p99 ms": round(alone, 1),
        "between tokens, all of them, p99 ms": round(among, 1),
        "added p99 ms": round(among - alone, 1),
        "goal": f"at most {MOST_KIB:g} KiB each, at most {MOST_ADDED_MS:g} ms added",
        "met": kib <= MOST_KIB and among - alone <= MOST_ADDED_MS,
    }
