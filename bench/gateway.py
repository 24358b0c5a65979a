"""Gateway throughput: tokens a second beside a server that only sends, how soon a short answer is there, and
the memory of idle streams and connections.

The engine is the toy in its own process, so that what is measured is the gateway's core: streams, text,
encoding, sockets. The peer is a bare `websockets` server that sends ready-made frames of the same size from
memory, one for each token, which is as fast as a Python WebSocket server gets by that library.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path

from websockets.asyncio.client import ClientConnection, connect
from websockets.asyncio.server import ServerConnection, serve

from bench.result_tables import Figure
from bench.server import ServerProcess

CONNECTIONS, TOKENS = 50, 1000
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


def midstream_rate() -> tuple[float, float, float, float]:
    """Tokens a second, tokens a CPU second of the gateway process, how long a short answer takes, and tokens
    an event."""
    params = {"temperature": 0, "ignore_eos": True, "max_tokens": TOKENS}
    start = {
        "type": "start",
        "request_id": "NUMBER",
        "prompt": "Hello",
        "params": params,
        "credit": {"limit": TOKENS},
    }
    with ServerProcess("--model", "toy") as server:
        before = cpu_s(server.process.pid)
        url = f"ws://{server.host}/v1/realtime"
        events, seconds = asyncio.run(read_all(url, json.dumps(start), 10**9))
        cpu = cpu_s(server.process.pid) - before
        short = start | {"request_id": "short NUMBER", "params": params | {"max_tokens": SHORT}}
        wait_ms = asyncio.run(waits_ms(url, json.dumps(short), '"final"'))
        tokens = CONNECTIONS * TOKENS
        return tokens / seconds, tokens / cpu, wait_ms, tokens / events


def bare_rate() -> tuple[float, float, float]:
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve_bare, args=(theirs,))
    process.start()
    port = ours.recv()
    before = cpu_s(process.pid or 0)
    url = f"ws://127.0.0.1:{port}/"
    events, seconds = asyncio.run(read_all(url, str(TOKENS), TOKENS))
    cpu = cpu_s(process.pid or 0) - before
    wait_ms = asyncio.run(waits_ms(url, str(SHORT), f'"index": {SHORT - 1}'))
    process.terminate()
    process.join()
    return events / seconds, events / cpu, wait_ms


def _serve_bare(pipe: Connection) -> None:
    async def run() -> None:
        event = {"type": "token", "request_id": "a", "seq": 1000, "count": 1, "delta": " word"}
        frames = [json.dumps(event | {"index": index}) for index in range(TOKENS)]

        async def send(socket: ServerConnection) -> None:
            async for wanted in socket:
                for frame in frames[: int(wanted)]:
                    await socket.send(frame)

        async with serve(send, "127.0.0.1", 0, compression=None) as server:
            pipe.send(next(iter(server.sockets)).getsockname()[1])
            await server.wait_closed()

    asyncio.run(run())


def cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


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
    ours, ours_per_cpu, ours_ms, tokens_an_event = midstream_rate()
    bare, bare_per_cpu, bare_ms = bare_rate()
    with ServerProcess("--model", "toy", "--streams-per-connection", "2000") as server:
        per_stream, per_connection = asyncio.run(memory(server))
    peer = "bare websockets server"
    return [
        Figure(f"tokens, {CONNECTIONS} connections", ours, "tok/s", "", ours / bare, peer),
        Figure(
            "tokens a gateway CPU second",
            ours_per_cpu,
            "tok/s",
            "",
            ours_per_cpu / bare_per_cpu,
            peer,
        ),
        Figure("tokens an event, where they come faster than they are told", tokens_an_event, ""),
        Figure(peer, bare, "events/s"),
        Figure(f"{peer}, a CPU second", bare_per_cpu, "events/s"),
        Figure(f"a short answer of {SHORT} tokens, p50", ours_ms, "ms", "", ours_ms / bare_ms, peer),
        Figure(f"{peer}, {SHORT} ready-made ones", bare_ms, "ms"),
        Figure("memory a paused stream", per_stream, "KiB"),
        Figure("memory an idle connection", per_connection, "KiB"),
    ]


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure()))
