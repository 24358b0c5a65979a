"""Fuzzing: millions of mutated frames, to the server's own connections in this process, and some over real
sockets.

Beside them a stream is read event by event by a reader that believes nothing. Nothing may raise, the stream
must say what it says alone, and memory must not grow with the number of frames.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import torch

from bench.reliability import socket_fuzz
from bench.reliability.mutated_frames import mutants
from bench.reliability.process_memory import resident_mib, slope
from midstream.protocol import MSGPACK_SUBPROTOCOL, Params, Start
from realtime.hub.observers import Caller, Observer
from realtime.websocket.connection import ConnectionLimits, serve
from realtime.work_ledger import PayerWork
from tests.fakes.checking_client import Account, Reader
from tests.fakes.fake_websocket import FakeWebSocket
from tests.fakes.simulated_server import EngineSize, SimulatedServer

FRAMES, SEED = 10_000_000, 90_000
OVER_SOCKETS = 0.01  # of them
WORKERS, MOST_S = 2, 3600.0
A_CONNECTION = 500  # frames; then another: streams left behind are cancelled, or wait for their grace
A_TICK = 100  # frames between two steps of the engine
MOST_MIB_A_MILLION = 1.0
ROOM = EngineSize(kv_tokens=8192, block=16, step_tokens=256, batch_rows=64, slots=512)
CALLER = Caller("websocket", tenant="hostile")
LIMITS = ConnectionLimits(
    max_message_bytes=2**20, streams_per_connection=24, auto_credit_window=64, ack_every=16
)


class Fed(NamedTuple):
    frames: int
    steered: int  # of them, that had an effect on a stream which a frame before had started
    good: int  # streams read beside them, to their ends
    wrong: list[str]
    mib_a_million: float


async def measure(scale: float) -> dict[str, Any]:
    each = max(int(FRAMES * scale * (1 - OVER_SOCKETS) / WORKERS), A_CONNECTION)
    with ProcessPoolExecutor(WORKERS) as pool:
        loop = asyncio.get_running_loop()
        jobs = [loop.run_in_executor(pool, feed, SEED + at, each, bool(at % 2)) for at in range(WORKERS)]
        fed = await asyncio.gather(*jobs)
    sent = await socket_fuzz.send(max(int(FRAMES * scale * OVER_SOCKETS), 1000), SEED)
    wrong = [what for one in fed for what in one.wrong] + sent.wrong
    grown = max(one.mib_a_million for one in fed)
    return {
        "name": "mutated frames",
        "in process": sum(one.frames for one in fed),
        "of them steered a stream": sum(one.steered for one in fed),
        "good streams beside them": sum(one.good for one in fed),
        "over sockets": sent.frames,
        "request bodies": sent.bodies,
        "wrong": wrong[:5],
        "MiB more a million frames, in process": round(grown, 2),
        "gateway MiB more, over sockets": round(sent.grown_mib, 2),
        "goal": f"{FRAMES:,}, nothing raised, the good stream exact, memory flat",
        "met": not wrong
        and sum(one.frames for one in fed) + sent.frames >= FRAMES * scale
        and grown < MOST_MIB_A_MILLION,
    }


def feed(seed: int, count: int, packed: bool) -> Fed:
    """In a process of its own, of which there are as many as cores: one thread each."""
    torch.set_num_threads(1)
    return asyncio.run(feeding(seed, count, packed))


async def feeding(seed: int, count: int, packed: bool) -> Fed:
    server, stray = SimulatedServer(ROOM, window=64), mutants(seed, packed=packed)
    good, wrong = Good(server), list[str]()
    weights: list[tuple[float, float]] = []
    done, until = 0, time.perf_counter() + MOST_S
    while done < count and time.perf_counter() < until and not wrong:
        try:
            fake = Fake(server, good, stray, packed)
            await serve(fake, server.hub, CALLER, PayerWork(), LIMITS, {}, Observer())  # type: ignore[arg-type]
        except Exception:  # noqa: BLE001 - whatever it is, it must not be
            wrong.append(f"seed {seed}, frame {done} and on: {traceback.format_exc(-4)}")
        done += A_CONNECTION
        server.clock.advance(1.0)
        weights.append((done / 1e6, resident_mib(os.getpid())))
    if not good.ended:
        wrong.append(f"seed {seed}: no good stream came to its end")
    steered = server.counts.acts.total()
    return Fed(done, steered, good.ended, wrong + good.wrong, slope(weights[len(weights) // 2 :]))


class Fake(FakeWebSocket):
    """So many frames, and then the end."""

    def __init__(self, server: SimulatedServer, good: Good, stray: Iterator[bytes], packed: bool) -> None:
        super().__init__([MSGPACK_SUBPROTOCOL] if packed else [])
        self._server, self._good, self._stray, self._packed = server, good, stray, packed
        self._left = A_CONNECTION

    async def close(self, code: int, reason: str) -> None:
        self._left = 0

    def write(self, messages: list[bytes], *, text: bool, ping: bytes | None = None) -> None:
        if ping is not None:
            asyncio.get_running_loop().call_soon(self.on_pong, ping)

    async def receive(self) -> dict[str, Any]:
        self._left -= 1
        if self._left < 0:
            return {"type": "websocket.disconnect", "code": 1005}
        if self._left % A_TICK == 0:
            await asyncio.sleep(0)  # what is tokenized in threads, and pongs
            self._server.tick()
            self._good.look()
        data = next(self._stray)
        text = None if self._packed else data.decode(errors="replace")
        return {"type": "websocket.receive", "text": text, "bytes": data if text is None else None}


class Good:
    """One stream after the other, each read by a strict account; all must come to the same."""

    def __init__(self, server: SimulatedServer) -> None:
        self.wrong: list[str] = []
        self.ended = 0
        self.texts: set[str] = set()
        self._server = server
        self._names = itertools.count()
        self._begin()

    def _begin(self) -> None:
        self._reader = Reader(self._server, "good")
        self._reader.prompt = True
        params = Params(max_tokens=50, ignore_eos=True, seed=1)
        name = f"good {next(self._names)}"
        self._reader.send(Start(request_id=name, prompt="Once upon", params=params, return_tokens=True))

    @property
    def account(self) -> Account:
        return self._reader.accounts[0]

    def look(self) -> None:
        if self.account.final is None:
            return
        self.ended += 1
        self.texts.add(self.account.text)
        if len(self.texts) > 1 and not self.wrong:
            self.wrong.append(f"the good stream said {self.texts}")
        self._reader.leave()
        self._server.frames.clear()
        self._server.counts.decoded.clear()
        self._server.counts.decoded_when_ended.clear()
        self._begin()
