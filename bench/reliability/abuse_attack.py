"""One abusive client, in a process of its own: it says the same frames round and round, or the same request,
as fast as they are taken, for a while: `python -m bench.reliability.abuse_attack HOST KINDS READS SECONDS`,
kinds with `+` between them.

What it reads of the answers is nothing, a little now and then, or all.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
import sys

from bench.reliability.abusive_frames import encoded, start
from bench.reliability.abusive_requests import REQUESTS
from bench.reliability.raw_clients import framed, greeted, opened

READS = ("nothing", "little", "all")
LITTLE_BYTES, NOW_AND_THEN_S = 64, 0.2
ROOM_BYTES = 4096  # of the kernel's, for what is not read
DECODED = b'"type":"token"'
REQUESTS_AT_ONCE = 4


async def attack(host: str, kinds: list[str], reads: str, seconds: float) -> None:
    name = f"abused {os.getpid()}"
    with await greeted(host, room_bytes=ROOM_BYTES) as sock, contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await _begin(sock, name)
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(_send(sock, [framed(encoded(kind, name)) for kind in kinds]))
                tasks.create_task(_read(sock, reads))


async def attack_by_requests(host: str, kind: str, reads: str, seconds: float) -> None:
    request = REQUESTS[kind].encoded(host)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as tasks:
            for _ in range(REQUESTS_AT_ONCE):
                tasks.create_task(_ask(host, request, reads))


async def _ask(host: str, request: bytes, reads: str) -> None:
    loop = asyncio.get_running_loop()
    while True:
        with await opened(host, ROOM_BYTES) as sock, contextlib.suppress(ConnectionError):
            await loop.sock_sendall(sock, request)
            if reads == "nothing":
                await asyncio.sleep(NOW_AND_THEN_S)  # and gone, as whoever stops a page's loading
            await _read(sock, reads)


async def _begin(sock: socket.socket, name: str) -> None:
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, framed(start(name)))
    while DECODED not in await loop.sock_recv(sock, 1 << 20):
        pass


async def _send(sock: socket.socket, frames: list[bytes]) -> None:
    loop = asyncio.get_running_loop()
    for frame in itertools.cycle(frames):
        await loop.sock_sendall(sock, frame)


async def _read(sock: socket.socket, reads: str) -> None:
    loop = asyncio.get_running_loop()
    while reads != "nothing" and await loop.sock_recv(sock, 1 << 20 if reads == "all" else LITTLE_BYTES):
        if reads == "little":
            await asyncio.sleep(NOW_AND_THEN_S)


if __name__ == "__main__":
    with contextlib.suppress(ExceptionGroup):  # the server hung up, which it may
        _, host, kinds, reads, seconds = sys.argv
        print("begun", flush=True)
        if kinds in REQUESTS:
            asyncio.run(attack_by_requests(host, kinds, reads, float(seconds)))
        else:
            asyncio.run(attack(host, kinds.split("+"), reads, float(seconds)))
