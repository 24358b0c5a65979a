"""Control latency: how soon steering takes effect, in engine steps, and what is wasted when readers stall.

Counted by the server itself, in `midstream_control_steps` and `midstream_tokens_total`, under a steady load
of streams.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from collections.abc import Mapping

from websockets.asyncio.client import ClientConnection

from bench.result_tables import Figure
from bench.server import ServerProcess

STREAMS, CONTROLS, STALLED, WINDOW = 16, 300, 100, 64


async def steer(server: ServerProcess) -> None:
    """Many streams, of which one after the other is paused, resumed, adjusted, cancelled and replaced."""
    dice = random.Random(7)
    async with server.connect() as socket:
        await socket.recv()
        for number in range(STREAMS):
            await begin(socket, f"s{number}")
        names = [f"s{number}" for number in range(STREAMS)]
        for turn in range(CONTROLS):
            at = dice.randrange(STREAMS)
            for frame in (
                {"type": "pause"},
                {"type": "resume"},
                {"type": "adjust", "params": {"temperature": 0.5}},
            ):
                await ask(socket, frame | {"request_id": names[at], "ref": f"{turn}-{frame['type']}"})
            await ask(socket, {"type": "cancel", "request_id": names[at], "ref": f"{turn}-cancel"})
            names[at] = f"s{at}-{turn}"
            await begin(socket, names[at])


async def begin(socket: ClientConnection, name: str) -> None:
    params = {"ignore_eos": True, "temperature": 0}
    await socket.send(json.dumps({"type": "start", "request_id": name, "prompt": "Hello", "params": params}))


async def ask(socket: ClientConnection, frame: Mapping[str, object]) -> None:
    await socket.send(json.dumps(frame))
    while json.loads(await socket.recv()).get("ref") != frame["ref"]:
        pass


def quantile(metrics: Mapping[str, float], frame: str, share: float) -> float:
    """The least number of steps that at least this share of the frames took."""
    name = f'midstream_control_steps_bucket{{frame="{frame}",le="'
    buckets = sorted(
        (float(key[len(name) : -2]), value) for key, value in metrics.items() if key.startswith(name)
    )
    return next(bound for bound, count in buckets if count >= share * buckets[-1][1])


async def stall(server: ServerProcess) -> float:
    """Readers that read nothing: how many tokens are decoded for each before the engine leaves them alone."""
    before = server.metrics()["midstream_tokens_total"]
    sockets = []
    for number in range(STALLED):
        socket = await asyncio.wait_for(server.connect(), 10)
        await begin(socket, f"stalled-{number}")
        socket.transport.pause_reading()  # from here on nobody reads, and TCP fills up
        sockets.append(socket)
    metrics = server.metrics()
    while metrics['midstream_streams{state="stalled"}'] < STALLED:
        await asyncio.sleep(0.05)
        metrics = server.metrics()
    for socket in sockets:
        socket.transport.abort()
    return (metrics["midstream_tokens_total"] - before) / STALLED


def measure() -> list[Figure]:
    figures = []
    with ServerProcess("--model", "toy", "--toy-step-ms", "2") as server:
        asyncio.run(steer(server))
        metrics = server.metrics()
        for frame in ("pause", "adjust", "cancel"):
            for share in (0.5, 0.99):
                steps = quantile(metrics, frame, share)
                figures.append(Figure(f"{frame} to effect, p{share * 100:.0f}", steps, "steps", "1"))
    with ServerProcess("--model", "toy", "--auto-credit-window", str(WINDOW)) as server:
        wasted = asyncio.run(stall(server))
    figures.append(
        Figure(f"tokens decoded for each of {STALLED} stalled readers", wasted, "tokens", f"<= {WINDOW}")
    )
    return figures


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure()))
