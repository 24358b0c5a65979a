"""Routing: how much of the gateway's processor goes to choosing engines, and to what is known of them for it.

A real server with three engines of its own is asked for streams with prompts like nobody else's, and for
turns of conversations that one engine holds most of. In its process the calls that choose an engine and that
take in what engines hold are timed, by the processor time of their thread, and held against that of the
whole process from the first of them on. What it takes to look at the clock is taken off both.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ParamSpec, TypeVar

from bench.result_tables import Figure
from bench.server import ServerProcess

ENGINES, CLIENTS, STREAMS = 3, 24, 20
WORDS, TOKENS = 60, 100  # of a turn, and that are answered
MOST = 2.0
LOOKS = 10_000  # at the clock, to know what one takes
TOLD = "BENCH_ROUTING_TOLD"  # where the server is to tell

P = ParamSpec("P")
R = TypeVar("R")


# -- in the server's process -----------------------------------------------------------------------


class Spent:
    """On routing, beside all."""

    def __init__(self) -> None:
        self._first = 0.0  # of the process's time, when the first call had ended
        self._parts: dict[str, list[float]] = {}  # seconds, and calls
        began = time.thread_time()
        for _ in range(LOOKS):
            time.thread_time()
        self._look_s = (time.thread_time() - began) / LOOKS

    def timed(self, part: str, call: Callable[P, R]) -> Callable[P, R]:
        counted = self._parts.setdefault(part, [0.0, 0])

        @functools.wraps(call)
        def timing(*args: P.args, **named: P.kwargs) -> R:
            began = time.thread_time()
            result = call(*args, **named)
            ended = time.thread_time()
            counted[0] += ended - began - self._look_s
            counted[1] += 1
            self._first = self._first or time.process_time()
            return result

        return timing

    def tell(self) -> None:
        looks_s = 2 * self._look_s * sum(calls for _, calls in self._parts.values())
        told = {"cpu_s": time.process_time() - self._first - looks_s, "parts": self._parts}
        Path(os.environ[TOLD]).write_text(json.dumps(told))


def serve() -> None:
    """As `python -m realtime` does."""
    from realtime.__main__ import main
    from realtime.hub.serving_engine import ServingEngine
    from realtime.hub.submission import Submission

    spent = Spent()
    Submission.choose = spent.timed("choosing", Submission.choose)  # type: ignore[method-assign]
    ServingEngine.stepped = spent.timed("block news", ServingEngine.stepped)  # type: ignore[method-assign]
    atexit.register(spent.tell)
    sys.exit(main())


# -- beside it -------------------------------------------------------------------------------------


def run(words: int, turns: int) -> dict[str, Any]:
    """`turns`: of a conversation, each of which tells all before again."""
    with TemporaryDirectory() as folder:
        os.environ[TOLD] = str(told := Path(folder) / "told.json")
        options = ("--model", "toy", "--engines", str(ENGINES))
        with ServerProcess(*options, module="bench.routing") as server:
            asyncio.run(load(server, words, turns))
        found: dict[str, Any] = json.loads(told.read_text())
        return found


async def load(server: ServerProcess, words: int, turns: int) -> None:
    await asyncio.gather(*(ask(server, number, words, turns) for number in range(CLIENTS)))


async def ask(server: ServerProcess, client: int, words: int, turns: int) -> None:
    params = {"temperature": 0, "ignore_eos": True, "max_tokens": TOKENS}
    async with server.connect() as socket:
        for number in range(STREAMS):
            begin, turn = divmod(number, turns)
            said = " ".join(f"{client} {begin} {at}" for at in range((turn + 1) * words // 3))
            start = {"type": "start", "request_id": f"{client} {number}", "prompt": said, "params": params}
            await socket.send(json.dumps(start | {"credit": {"limit": TOKENS}}))
            async for message in socket:
                assert '"error"' not in message, message
                if '"final"' in message:
                    break


def measure() -> list[Figure]:
    figures = []
    for name, words, turns in (("short prompts", WORDS, 1), ("conversations", WORDS, 10)):
        told = run(words, turns)
        parts, all_s = told["parts"], told["cpu_s"]
        share = sum(seconds for seconds, _ in parts.values()) / all_s
        figures.append(Figure(f"routing, of the gateway's CPU, {name}", 100 * share, "%", f"<= {MOST:g}"))
        for part, (seconds, calls) in parts.items():
            figures.append(Figure(f"{part}, a call", 1e6 * seconds / calls, "us"))
        figures.append(Figure("gateway's CPU, a stream", 1e3 * all_s / (CLIENTS * STREAMS), "ms"))
    return figures


if __name__ == "__main__":
    if TOLD in os.environ:
        serve()
    from bench.__main__ import report

    sys.exit(report(measure()))
