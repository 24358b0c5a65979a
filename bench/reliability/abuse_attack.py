"""One abusive client, in a process of its own: it says the same frames round and round, or the same request,
as fast as they are taken, for a while: `python -m bench.reliability.abuse_attack HOST KINDS READS SECONDS
CONNECTIONS`, kinds with `+` between them. It has an address of its own, so that others pay for nothing of it.

What it reads of the answers is nothing, a little now and then, or all.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import sys

from bench.reliability.abusive_frames import ANEW, encoded, start
from bench.reliability.abusive_requests import REQUESTS
from bench.reliability.idle_processors import keep_to_idle_processors
from bench.reliability.raw_clients import framed, greeted, opened

READS = ("nothing", "little", "all")
LITTLE_BYTES, NOW_AND_THEN_S = 64, 0.2
ROOM_BYTES = 4096  # of the kernel's, for what is not read
CALLED = b'"type":"tool_call_done"'  # and there is something to answer
ADDRESS = "127.0.0.2"
REQUESTS_AT_ONCE = 4


async def attack(host: str, kinds: list[str], reads: str, seconds: float, connections: int) -> None:
    names = [f"abused {os.getpid()} {number}" for number in range(connections)]
    begun = await asyncio.gather(*(_begun(host, name) for name in names), return_exceptions=True)
    print("begun", flush=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
            for name, sock in zip(names, begun, strict=True):
                if isinstance(sock, socket.socket):
                    tasks.create_task(_send(sock, kinds, name))
                    tasks.create_task(_read(sock, reads))


async def attack_by_requests(host: str, kind: str, reads: str, seconds: float) -> None:
    request = REQUESTS[kind].encoded(host)
    print("begun", flush=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
            for _ in range(REQUESTS_AT_ONCE):
                tasks.create_task(_ask(host, request, reads))


async def _ask(host: str, request: bytes, reads: str) -> None:
    loop = asyncio.get_running_loop()
    while True:
        with await opened(host, ROOM_BYTES, ADDRESS) as sock, contextlib.suppress(ConnectionError):
            await loop.sock_sendall(sock, request)
            if reads == "nothing":
                await asyncio.sleep(NOW_AND_THEN_S)  # and gone, as whoever stops a page's loading
            await _read(sock, reads)


async def _begun(host: str, name: str) -> socket.socket:
    loop, sock = asyncio.get_running_loop(), await greeted(host, ROOM_BYTES, ADDRESS)
    await loop.sock_sendall(sock, framed(start(name)))
    read = b""
    while CALLED not in read:
        part = await loop.sock_recv(sock, 1 << 20)
        read = read[-len(CALLED) :] + part
        if not part:
            raise ConnectionError("the server hung up")
    return sock


async def _send(sock: socket.socket, kinds: list[str], name: str) -> None:
    """What is another each time is encoded anew, and the others once."""
    loop = asyncio.get_running_loop()
    known = {kind: framed(encoded(kind, name, 0)) for kind in kinds if kind not in ANEW}
    for number, kind in enumerate(itertools.cycle(kinds)):
        await loop.sock_sendall(sock, known.get(kind) or framed(encoded(kind, name, number)))


async def _read(sock: socket.socket, reads: str) -> None:
    loop = asyncio.get_running_loop()
    while reads != "nothing" and await loop.sock_recv(sock, 1 << 20 if reads == "all" else LITTLE_BYTES):
        if reads == "little":
            await asyncio.sleep(NOW_AND_THEN_S)


if __name__ == "__main__":
    keep_to_idle_processors()
    with contextlib.suppress(ExceptionGroup):  # the server hung up, which it may
        _, host, kinds, reads, seconds, connections = sys.argv
        if kinds in REQUESTS:
            asyncio.run(attack_by_requests(host, kinds, reads, float(seconds)))
        else:
            asyncio.run(attack(host, kinds.split("+"), reads, float(seconds), int(connections)))
