"""Gateway throughput: tokens a second, and what each costs, beside a server that only sends; how soon a short
answer is there, and the memory of idle streams and connections.

The engine is the toy in its own process, so that what is measured is the gateway's core: streams, text,
encoding, sockets. The peer is a bare `websockets` server that sends ready-made frames of the same size from
memory, one for each token, which is as fast as a Python WebSocket server gets by that library: all of one
reader's without a pause; or in steps, as an engine's tokens come, one to each reader, who has slept since the
last. All are asked in turn, several times, and medians count: no machine is the same from one second to the
next.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

from bench.result_tables import Figure
from bench.server import ServerProcess

CONNECTIONS, TOKENS = 50, 1000
TURNS = 5  # of each server, one after the other
IN_STEPS, STEP_S = "in steps", 0.001  # the bare server then writes to all readers, and waits so long
SHORT, TIMES = 3, 300  # tokens of a short answer, and how often it is asked for, one after the other
PAUSED, IDLE = 500, 500


async def read_all(url: str, frame: str, until: int) -> tuple[int, float]:
    """Everybody connects and starts; returns events received, and the seconds from first to last."""
    sockets = await asyncio.gather(
        *(connect(url, compression=None, max_queue=None) for _ in range(CONNECTIONS))
    )
    since = time.perf_counter()

    async def read(number: int, socket: ClientConnection) -> int:
        count = 0
        await socket.send(frame.replace("NUMBER", str(number)))
        async for message in socket:
            assert '"error"' not in message, message
            count += 1
            if '"final"' in message or count == until:
                break
        return count

    counts = await asyncio.gather(*(read(number, socket) for number, socket in enumerate(sockets)))
    seconds = time.perf_counter() - since
    await asyncio.gather(*(socket.close() for socket in sockets))
    return sum(counts), seconds


async def waits_ms(url: str, frame: str, last: str) -> float:
    """From asking for a short answer to its last event, at the median."""
    waits = []
    async with connect(url, compression=None) as socket:
        for number in range(TIMES):
            since = time.perf_counter()
            await socket.send(frame.replace("NUMBER", str(number)))
            while last not in await socket.recv(decode=True):
                pass
            waits.append(1e3 * (time.perf_counter() - since))
    return statistics.median(waits)


def midstream_start(name: str, tokens: int) -> str:
    params = {"temperature": 0, "ignore_eos": True, "max_tokens": tokens}
    start = {"type": "start", "request_id": name, "prompt": "Hello", "params": params}
    return json.dumps(start | {"credit": {"limit": TOKENS}})


class Turn(NamedTuple):
    """Tokens a second, by the clock and of the server's processor time."""

    rate: float
    rate_of_cpu: float


def turn_of(pid: int, url: str, frame: str, until: int) -> Turn:
    before = cpu_s(pid)
    _, seconds = asyncio.run(read_all(url, frame, until))
    tokens = CONNECTIONS * TOKENS
    return Turn(tokens / seconds, tokens / (cpu_s(pid) - before))


def median_of(turns: list[Turn]) -> Turn:
    return Turn(*map(statistics.median, zip(*turns, strict=True)))


@contextmanager
def bare_server() -> Iterator[tuple[int, str]]:
    """Its process, and where it listens."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve_bare, args=(theirs,))
    process.start()
    yield process.pid or 0, f"ws://127.0.0.1:{ours.recv()}/"
    process.terminate()
    process.join()


def _serve_bare(pipe: Connection) -> None:
    async def run() -> None:
        event = {"type": "token", "request_id": "a", "seq": 1000, "count": 1, "delta": " word"}
        frames = [json.dumps(event | {"index": index}) for index in range(TOKENS)]

        readers: list[ServerConnection] = []

        async def send(socket: ServerConnection) -> None:
            async for wanted in socket:
                if wanted != IN_STEPS:
                    for frame in frames[: int(wanted)]:
                        await socket.send(frame)
                    continue
                readers.append(socket)
                if len(readers) == CONNECTIONS:
                    await send_in_steps()

        async def send_in_steps() -> None:
            for frame in frames:
                for reader in readers:
                    await reader.send(frame)
                await asyncio.sleep(STEP_S)
            readers.clear()

        async with serve(send, "127.0.0.1", 0, compression=None) as server:
            pipe.send(next(iter(server.sockets)).getsockname()[1])
            await server.wait_closed()

    asyncio.run(run())


def cpu_s(pid: int) -> float:
    """Of all its threads, in nanoseconds' grain."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def resident_kb(pid: int, kind: str = "VmRSS") -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split(f"{kind}:")[1].split()[0])


async def memory(server: ServerProcess) -> tuple[float, float]:
    """KiB of the gateway a paused stream, and an idle connection."""
    pid = server.process.pid
    async with server.connect() as socket:
        await socket.recv()

        async def start(names: list[str]) -> None:
            for name in names:
                params = {"ignore_eos": True}
                begin = {
                    "type": "start",
                    "request_id": name,
                    "prompt": "Hello",
                    "params": params,
                    "credit": {"limit": 8},
                }
                await socket.send(json.dumps(begin))
                await socket.send(json.dumps({"type": "pause", "request_id": name}))
            paused = 0
            while paused < len(names):
                paused += json.loads(await socket.recv())["type"] == "paused"

        await start([f"warm-{number}" for number in range(50)])
        before = resident_kb(pid)
        await start([f"stream-{number}" for number in range(PAUSED)])
        per_stream = (resident_kb(pid) - before) / PAUSED
        before = resident_kb(pid)
        idle = [await server.connect() for _ in range(IDLE)]
        for other in idle:
            await other.recv()
        per_connection = (resident_kb(pid) - before) / IDLE
        await asyncio.gather(*(other.close() for other in idle))
    return per_stream, per_connection


def measure() -> list[Figure]:
    ours, ours_by_uvloop, bare, bare_in_steps = list[Turn](), list[Turn](), list[Turn](), list[Turn]()
    with (
        ServerProcess("--model", "toy") as server,
        ServerProcess("--model", "toy", "--event-loop", "uvloop") as by_uvloop,
        bare_server() as (bare_pid, bare_url),
    ):
        url = f"ws://{server.host}/v1/realtime"
        url_by_uvloop = f"ws://{by_uvloop.host}/v1/realtime"
        for number in range(1 + TURNS):  # the first warms up
            frame = midstream_start(f"{number} NUMBER", TOKENS)
            ours.append(turn_of(server.process.pid, url, frame, 10**9))
            ours_by_uvloop.append(turn_of(by_uvloop.process.pid, url_by_uvloop, frame, 10**9))
            bare.append(turn_of(bare_pid, bare_url, str(TOKENS), TOKENS))
            bare_in_steps.append(turn_of(bare_pid, bare_url, IN_STEPS, TOKENS))
        ours_ms = asyncio.run(waits_ms(url, midstream_start("short NUMBER", SHORT), '"final"'))
        bare_ms = asyncio.run(waits_ms(bare_url, str(SHORT), f'"index": {SHORT - 1}'))
    of_ours, of_uvloop, of_bare, of_steps = (
        median_of(turns[1:]) for turns in (ours, ours_by_uvloop, bare, bare_in_steps)
    )
    with ServerProcess("--model", "toy", "--streams-per-connection", "2000") as server:
        per_stream, per_connection = asyncio.run(memory(server))
    peer = "bare websockets server"
    return [
        Figure(
            f"tokens, {CONNECTIONS} connections", of_ours.rate, "tok/s", "", of_ours.rate / of_bare.rate, peer
        ),
        Figure(
            "gateway CPU a token",
            1e6 / of_ours.rate_of_cpu,
            "us",
            "<= 1.6 x",
            of_bare.rate_of_cpu / of_ours.rate_of_cpu,
            peer,
        ),
        Figure(
            "gateway CPU a token, once more",
            1e6 / of_ours.rate_of_cpu,
            "us",
            "",
            of_steps.rate_of_cpu / of_ours.rate_of_cpu,
            f"{peer}, in steps",
        ),
        Figure(
            "gateway CPU a token, --event-loop uvloop",
            1e6 / of_uvloop.rate_of_cpu,
            "us",
            "",
            of_bare.rate_of_cpu / of_uvloop.rate_of_cpu,
            peer,
        ),
        Figure(peer, of_bare.rate, "events/s"),
        Figure(f"{peer}, CPU an event", 1e6 / of_bare.rate_of_cpu, "us"),
        Figure(f"{peer}, in steps, CPU an event", 1e6 / of_steps.rate_of_cpu, "us"),
        Figure(f"a short answer of {SHORT} tokens, p50", ours_ms, "ms", "", ours_ms / bare_ms, peer),
        Figure(f"{peer}, {SHORT} ready-made ones", bare_ms, "ms"),
        Figure("memory a paused stream", per_stream, "KiB"),
        Figure("memory an idle connection", per_connection, "KiB"),
    ]


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure()))
