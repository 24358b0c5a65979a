"""The search for dear frames: random sequences of valid frames, fed to a connection in this process, and
ranked by the milliseconds of work and the bytes held that each cost a frame. What is decoded there is
nonsense: nothing is called, and results are refused."""

from __future__ import annotations

import asyncio
import random
import time
from typing import NamedTuple

from bench.reliability.abusive_frames import KINDS, LONGEST, PLAIN_START, SEED, encoded, start
from realtime.codec import Codec
from realtime.hub.observers import Caller, Observer
from realtime.websocket.connection import Connection, ConnectionLimits
from realtime.work_ledger import PayerWork
from tests.fakes.fake_websocket import FakeWebSocket
from tests.fakes.simulated_server import EngineSize, SimulatedServer

SIZE = EngineSize(kv_tokens=4096, block=16, step_tokens=4096)
CALLER = Caller("websocket", tenant="tenant")
LIMITS = ConnectionLimits(
    max_message_bytes=2**20, streams_per_connection=10, auto_credit_window=64, ack_every=16
)
FRAMES = 60  # of a sequence, which goes round and round; the engine has its turn after each ten


class Found(NamedTuple):
    ms: float  # a frame
    held_bytes: int
    kinds: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.ms:.2f} ms, {self.held_bytes / 1024:.0f} KiB: {' + '.join(self.kinds)}"


class Mute(FakeWebSocket):
    def write(self, messages: list[bytes], *, text: bool, ping: bytes | None = None) -> None:
        """Nobody hears it."""


def tried(kinds: tuple[str, ...], *, reads: bool, tokens: int) -> Found:
    server, peer = SimulatedServer(SIZE), Mute()
    connection = Connection(peer, peer, server.hub, Codec(None), CALLER, PayerWork(), LIMITS, {}, Observer())  # type: ignore[arg-type]
    connection._receive(start("abused", PLAIN_START | {"credit": {"limit": tokens}}).decode())
    while not server.at_rest:
        server.tick()
    peer.writable = reads
    before = connection.memory.held
    work_s = 0.0
    for number in range(FRAMES):
        data = encoded(kinds[number % len(kinds)], "abused", number, tokens=tokens).decode()
        began_s = time.thread_time()
        connection._receive(data)
        work_s += time.thread_time() - began_s
        if number % 10 == 9:
            server.tick()
    held = connection.memory.held - before + connection._reply_bytes
    connection.leave()
    return Found(work_s * 1000 / FRAMES, held, kinds)


async def search(sequences: int, *, tokens: int = LONGEST) -> list[Found]:
    """Alone, then at random; the dearest first. They are about a stream that has said so much."""
    chance = random.Random(SEED)
    alone = [(kind,) for kind in KINDS]
    mixed = [tuple(chance.choices(list(KINDS), k=chance.randint(2, 5))) for _ in range(sequences)]
    found = []
    for number, kinds in enumerate([*alone, *mixed]):
        found.append(tried(kinds, reads=number % 2 == 0, tokens=tokens))
        await asyncio.sleep(0)
    return sorted(found, reverse=True)


def top_ten(found: list[Found]) -> list[Found]:
    """By milliseconds, and then by bytes."""
    by_bytes = sorted(found, key=lambda one: one.held_bytes, reverse=True)
    return [*found[:5], *by_bytes[:5]]
