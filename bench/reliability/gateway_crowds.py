"""Crowds of gateways: two on one engine, with ten thousand connections between them, and a stream on each.
One is killed, and its half comes to the other at once: how long until the last of them is attached again, and
whether each stream goes on with the very text that it would have had, as those do that lost nothing."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from bench.reliability.raw_clients import most_sockets
from bench.reliability.scoring import rank
from bench.reliability.trial_server import complaints, serving
from tests.server.listening_engine import ListeningEngine, listening

CONNECTIONS, AT_ONCE = 10_000, 100
ADDRESSES = 250  # that they come from: whoever shares one shares what it may take of a gateway
BEFORE, TOKENS = 8, 16  # tokens that each has when the gateway dies, and in the end
MOST_S = 30.0
START: dict[str, Any] = {
    "type": "start",
    "prompt": "Hello",
    "params": {"ignore_eos": True, "temperature": 0, "max_tokens": TOKENS},
    "credit": {"limit": BEFORE},
    "on_disconnect": "continue",
    "grace_ms": 600_000,
}


class Follower:
    """One client, its stream, and all that it has read of it."""

    def __init__(self, number: int) -> None:
        self.number, self.name = number, f"{number}"
        self.own = (f"127.0.1.{1 + number % ADDRESSES}", 0)
        self.text, self.index, self.seq = "", 0, -1
        self.wrong: list[str] = []
        self._socket: ClientConnection | None = None

    async def begin(self, url: str) -> None:
        await self._connect(url)
        await self._say(START | {"request_id": self.name})
        while self.index < BEFORE:
            await self._read()

    async def come_back(self, url: str) -> None:
        """From whatever is gone: at `url` its stream is to be as it was."""
        assert self._socket is not None
        try:
            while True:
                await self._read()
        except ConnectionClosed:
            await self._connect(url)
        await self._say({"type": "attach", "request_id": self.name, "after": self.seq})
        while await self._read() != "attached":
            pass

    async def finish(self) -> None:
        await self._say({"type": "credit", "request_id": self.name, "limit": TOKENS})
        while await self._read() != "final":
            pass
        assert self._socket is not None
        await self._socket.close()

    async def _connect(self, url: str) -> None:
        options = {"compression": None, "ping_interval": None, "open_timeout": None, "local_addr": self.own}
        self._socket = await connect(url, **options)  # type: ignore[arg-type]

    async def _say(self, frame: dict[str, Any]) -> None:
        assert self._socket is not None
        await self._socket.send(json.dumps(frame))

    async def _read(self) -> str:
        assert self._socket is not None
        event = json.loads(await self._socket.recv())
        self.seq = event.get("seq") or self.seq
        match event:
            case {"type": "token", "index": index, "count": count, "delta": delta}:
                if index != self.index:
                    self.wrong.append(f"stream {self.name} has {self.index} tokens, and is told of {index}")
                self.index, self.text = index + count, self.text + delta
            case {"type": "snapshot", "index": index, "text": text}:
                if (index, text) != (self.index, self.text):
                    self.wrong.append(f"stream {self.name} has {self.text!r}, and is told {text!r}")
            case {"type": "error"}:
                raise AssertionError(f"stream {self.name} is told {event}")
        return str(event["type"])


async def measure(scale: float) -> dict[str, Any]:
    count = most_sockets(int(CONNECTIONS * scale))
    room = ("--max-streams", str(2 * count))
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        engine = ListeningEngine(*room, listen=f"unix:{folder}/engine")
        await stack.enter_async_context(listening([engine]))
        fleet = ("--fleet", "static", "--engine-addresses", engine.address)
        options = (*fleet, *room, "--max-connections", str(2 * count))
        dying, living = [await stack.enter_async_context(serving(*options)) for _ in range(2)]
        alone = Follower(-1)
        await alone.begin(living.url)
        await alone.finish()
        crowd = [Follower(number) for number in range(count)]
        half = crowd[count // 2 :]
        line = asyncio.Semaphore(AT_ONCE)

        async def begin(follower: Follower) -> None:
            async with line:
                await follower.begin((living if follower.number < count // 2 else dying).url)

        await asyncio.gather(*map(begin, crowd))
        print(f"{count} connections, each with a stream", file=sys.stderr, flush=True)
        dying.tell(signal.SIGKILL)
        since, waited = time.perf_counter(), list[float]()

        async def come_back(follower: Follower) -> None:
            async with line:
                await follower.come_back(living.url)
            waited.append(time.perf_counter() - since)

        await asyncio.gather(*map(come_back, half))
        print(f"{len(waited)} attached again in {max(waited):.1f} s", file=sys.stderr, flush=True)
        await asyncio.gather(*(follower.finish() for follower in crowd))
        wrong = [said for follower in crowd for said in follower.wrong] + complaints(living)
        wrong += [f"stream {each.name} has {each.text!r}" for each in crowd if each.text != alone.text]
    return {
        "name": "crowds of gateways",
        "connections": count,
        "attached again": len(waited),
        "p50 s": round(rank(waited, 0.5), 1),
        "the last s": round(max(waited), 1),
        "wrong": wrong[:20],
        "goal": f"all attached again in {MOST_S:g} s, none wrong",
        "met": not wrong and len(waited) == len(half) and max(waited) <= MOST_S,
    }
