"""Fuzzing over real sockets: mutated frames and request bodies, beside a client that behaves: what comes back
of it.

A server may refuse what it is sent, in words, or close the connection. It may not answer with a status of its
own failure, log an exception, or keep memory.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import random
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed
from websockets.typing import Subprotocol

import midstream
from bench.reliability.mutated_frames import Frame, exaggerated, garbled, mutants, strange
from bench.reliability.process_memory import resident_mib
from bench.reliability.scoring import Score, keep_playing, quiet_run
from bench.reliability.trial_server import complaints, serving
from midstream.protocol import JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL
from tests.fakes.steering_clients import STEERING_CLIENTS
from tests.server.server_process import Served

CONNECTIONS = 8
A_CONNECTION = 1000  # frames of one connection; then it hangs up
BODIES = 0.02  # request bodies a frame
PATHS = ("/v1/chat/completions", "/v1/completions", "/v1/realtime/client_secrets", "/v1/streams/r0/control")
ASKED: list[Frame] = [
    {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 3, "stream": True},
    {"model": "toy", "messages": [{"role": "user", "content": "Hi"}], "n": 2, "logprobs": True},
    {"model": "toy", "prompt": "Once", "max_tokens": 3, "temperature": 0, "stop": ["a"], "echo": True},
    {"type": "pause", "request_id": "r0"},
]  # fmt: skip


class Sent(NamedTuple):
    frames: int
    bodies: int
    wrong: list[str]
    grown_mib: float


async def send(count: int, seed: int) -> Sent:
    async with serving("--log-level", "warning", loaded=False) as served:
        score = await quiet_run(served.http, range(3), STEERING_CLIENTS)
        await batter(served, score, count // 10, seed + 1000)  # warms up: ended streams are kept for a while
        before = resident_mib(served.process.pid)
        frames, bodies = await batter(served, score, count, seed)
        grown = resident_mib(served.process.pid) - before
        await served.until_idle()
        return Sent(frames, bodies, score.wrong + complaints(served), grown)


async def batter(served: Served, score: Score, count: int, seed: int) -> tuple[int, int]:
    over = asyncio.Event()
    async with midstream.connect(served.http) as client, asyncio.TaskGroup() as group:
        group.create_task(keep_playing(client, score, STEERING_CLIENTS, over.is_set))
        each = count // CONNECTIONS + 1
        shots = [shoot(served, each, seed + number, packed=bool(number % 2)) for number in range(CONNECTIONS)]
        posts = asyncio.to_thread(post, served, int(count * BODIES), seed, score)
        *frames, bodies = await asyncio.gather(*shots, posts)
        over.set()
    return sum(frames), bodies


async def shoot(served: Served, count: int, seed: int, *, packed: bool) -> int:
    stray, sent = mutants(seed, packed=packed), 0
    offered = Subprotocol(MSGPACK_SUBPROTOCOL if packed else JSON_SUBPROTOCOL)
    while sent < count:
        async with connect(served.url, subprotocols=[offered], compression=None, max_size=None) as socket:
            reading = asyncio.create_task(swallow(socket))
            with suppress(ConnectionClosed):
                for data in itertools.islice(stray, min(A_CONNECTION, count - sent)):
                    await socket.send(data if packed else data.decode(errors="replace"))
                    sent += 1
            socket.transport.abort()
            await reading
    return sent


async def swallow(socket: ClientConnection) -> None:
    with suppress(ConnectionClosed):
        while True:
            await socket.recv()


def post(served: Served, count: int, seed: int, score: Score) -> int:
    """Mutated bodies, each with an answer that is not the server's own failure."""
    bodies = spoilt(seed)
    for number in range(count):
        path, body = PATHS[number % len(PATHS)], next(bodies)
        line = http.client.HTTPConnection(served.host, served.port, timeout=2)
        with suppress(TimeoutError):  # it may well have asked for an answer without end
            line.request("POST", path, body, {"Content-Type": "application/json"})
            status = line.getresponse().status
            if status >= 500 and status != 503:
                score.fail(f"{path} answered {status} to {body[:200]!r}")
        line.close()
    return count


def spoilt(seed: int) -> Iterator[bytes]:
    chance = random.Random(seed)
    while True:
        body = chance.choice(ASKED)
        match chance.randrange(3):
            case 0:
                yield json.dumps(strange(body, chance)).encode(errors="replace")
            case 1:
                yield garbled(json.dumps(body).encode(), chance)
            case _:
                yield exaggerated(body, chance)
