"""Half-open handshakes: thousands of them, and a good client that connects among them: how long each
waits."""

from __future__ import annotations

import asyncio
import selectors
import socket
import statistics
import time
from typing import Any

from bench.reliability.raw_clients import HANDSHAKE, greeted, most_sockets, opened
from bench.server import ServerProcess

HALVES = 5000
BETWEEN_S = 0.01
MOST_P99_MS, MOST_REAPED_S = 250.0, 10.0


async def connect_ms(host: str) -> float:
    since = time.perf_counter()
    (await greeted(host)).close()
    return (time.perf_counter() - since) * 1000


async def half(host: str) -> socket.socket:
    sock = await opened(host)
    await asyncio.get_running_loop().sock_sendall(sock, HANDSHAKE[:60])
    return sock


async def until_all_gone(halves: list[socket.socket]) -> None:
    """Each is readable once: what it is told, if anything, and the end."""
    with selectors.DefaultSelector() as waiting:
        for sock in halves:
            waiting.register(sock, selectors.EVENT_READ)
        while waiting.get_map():
            for key, _ in await asyncio.to_thread(waiting.select, 1.0):
                if ended(key.fileobj):  # type: ignore[arg-type]
                    waiting.unregister(key.fileobj)


def ended(sock: socket.socket) -> bool:
    try:
        return not sock.recv(4096)
    except ConnectionError:
        return True


async def measure(scale: float) -> dict[str, Any]:
    with ServerProcess("--model", "toy") as served:
        calm = [await connect_ms(served.host) for _ in range(50)]
        since = time.perf_counter()
        halves = [await half(served.host) for _ in range(most_sockets(int(HALVES * scale)))]
        arrived_s = time.perf_counter() - since
        since = time.perf_counter()
        gone = asyncio.create_task(until_all_gone(halves))
        times = []
        while not gone.done():  # to the moment at which they are all hung up on, and through it
            times.append(await connect_ms(served.host))
            await asyncio.wait([gone], timeout=BETWEEN_S)
        reaped_s = time.perf_counter() - since
        for sock in halves:
            sock.close()
    p99_ms = statistics.quantiles(times, n=100)[98]
    return {
        "name": "half handshakes",
        "half handshakes": len(halves),
        "good connects": len(times),
        "arrived within s": round(arrived_s, 2),
        "good client connects, alone, median ms": round(statistics.median(calm), 2),
        "good client connects, among them, median ms": round(statistics.median(times), 2),
        "good client connects, among them, p99 ms": round(p99_ms, 2),
        "all reaped within s": round(reaped_s, 2),
        "goal": f"p99 at most {MOST_P99_MS:g} ms, all reaped within {MOST_REAPED_S:g} s",
        "met": p99_ms <= MOST_P99_MS and reaped_s <= MOST_REAPED_S,
    }
