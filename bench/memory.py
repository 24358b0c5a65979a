"""Memory at rest: what a server of the default model holds when it starts, after a burst of long streams, and
when nobody has wanted anything for a while.

A page that several processes share counts in parts, one for each of them, so that the sum is what the machine
gives. The peer is llama.cpp's server, where the package xllamacpp is installed, with the same weights
in the same width: with as much context as the whole of our KV cache, and as one stream's.

It ends in a few minutes on whatever machine: the burst is cut short when its time is up, and everything that
is waited for has a limit.
"""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

from bench.peer_model import gguf_file
from bench.result_tables import Figure
from bench.server import ServerProcess
from engine.ggml.weights import weights_bytes
from engine.model.default_model import DEFAULT_MODEL
from engine.model.names import resolve

STREAMS, PROMPT, TOKENS = 64, 448, 64
CONTEXT, BLOCK = 8192, 16  # of a stream of the default model, and of the KV cache
IDLE_S, BURST_S, PATIENCE_S = 20, 100, 60
MB = 1e6
PEER = """
import os, sys, xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel = sys.argv[1], *map(int, sys.argv[2:])
server = xllamacpp.Server(params)
print(open("/proc/self/smaps_rollup").read(), flush=True)
os._exit(0)
"""


def shared_out_bytes(rollup: str) -> int:
    """A process's part of the machine's memory."""
    found = re.search(r"^Pss: +(\d+) kB", rollup, re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def part_of(pid: int) -> int:
    return shared_out_bytes(Path(f"/proc/{pid}/smaps_rollup").read_text())


def engine_processes(server: int) -> list[int]:
    """The engine and its spare, the elder first, once both are there."""
    children = Path(f"/proc/{server}/task/{server}/children")
    until = time.monotonic() + PATIENCE_S
    while len(found := children.read_text().split()) < 2:
        assert time.monotonic() < until, "there is no spare"
        time.sleep(0.1)
    return sorted(map(int, found))


async def burst(server: ServerProcess) -> None:
    """All at once, for as long as the time allows."""
    async with server.connect() as socket:
        for row in range(STREAMS):
            prompt = [(7919 * row + 31 * at) % 40_000 + 10 for at in range(PROMPT)]
            params = {"temperature": 0, "ignore_eos": True, "max_tokens": TOKENS}
            start = {"type": "start", "request_id": f"{row}", "prompt": prompt, "params": params}
            await socket.send(json.dumps(start))
        live = {f"{row}" for row in range(STREAMS)}
        until = time.monotonic() + BURST_S
        cut_short = False
        while live:
            event = json.loads(await socket.recv())
            if event["type"] == "final":
                live.remove(event["request_id"])
            if not cut_short and time.monotonic() > until:
                cut_short = True
                for stream in live:
                    await socket.send(json.dumps({"type": "cancel", "request_id": stream}))


def cached_blocks(server: ServerProcess) -> int:
    return int(server.metrics()['midstream_kv_blocks{state="cached"}'])


def wait_until_given_back(server: ServerProcess) -> None:
    until = time.monotonic() + IDLE_S + PATIENCE_S
    while cached_blocks(server):
        assert time.monotonic() < until, "cached blocks were not given back"
        time.sleep(1)


def measure() -> list[Figure]:
    weights = weights_bytes(resolve(), "q8")
    with ServerProcess("--model", DEFAULT_MODEL, "--kv-idle-s", str(IDLE_S)) as server:
        gateway = server.process.pid
        engine, spare = engine_processes(gateway)
        at_start, *others = (part_of(pid) for pid in (engine, gateway, spare))
        together = at_start + sum(others)
        asyncio.run(burst(server))
        behind, cached = part_of(engine), cached_blocks(server) * BLOCK
        wait_until_given_back(server)
        at_rest = part_of(engine)
        blocks = int(server.metrics()['midstream_kv_blocks{state="free"}'])
    figures = [
        Figure("the engine at its start", at_start / MB, "MB", f"<= {weights / MB + 350:.0f}"),
        Figure(f"the engine behind {STREAMS} streams, {cached:,} tokens cached", behind / MB, "MB"),
        Figure(
            f"the engine when they are idle for {IDLE_S} s",
            at_rest / MB,
            "MB",
            "<= 1.5 x",
            at_rest / at_start,
            "its start",
        ),
        Figure("gateway, engine and spare at their start", together / MB, "MB", "<= 1.1 x"),
    ]
    for context in (blocks * BLOCK, CONTEXT):
        if peer := llama_cpp(context):
            name = f"llama.cpp at its start, {context} tokens"
            figures.append(Figure(name, peer / MB, "MB", "", together / peer, "all of ours to it"))
    return figures


def llama_cpp(context: int) -> int | None:
    """Bytes of its server, with so many tokens of context."""
    if find_spec("xllamacpp") is None:
        return None
    command = [
        sys.executable,
        "-c",
        PEER,
        str(gguf_file("q8")),
        str(context),
        str(max(1, context // CONTEXT)),
    ]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=PATIENCE_S)
    return shared_out_bytes(done.stdout)


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure()))
