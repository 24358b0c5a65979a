"""`midstream engine --listen` as a process of its own, which may end and begin again at the same place."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from queue import SimpleQueue
from threading import Thread

from tests.server.server_process import PATIENCE_S, environment


class ListeningEngine:
    """With the toy model, from each `start` until `ended`. `options` are the command line's."""

    def __init__(self, *options: str, listen: str = "127.0.0.1:0") -> None:
        self.address = listen
        self.said: list[str] = []
        self._options = options
        self._places: SimpleQueue[str] = SimpleQueue()  # where it listens, and nowhere once it has ended
        self._process: subprocess.Popen[str] | None = None
        self._reading: Thread | None = None

    def start(self) -> None:
        """At the place of before; the first time a port may be any that is free."""
        command = ["engine", "--model", "toy", "--listen", self.address, *self._options]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "midstream", *command],
            stderr=subprocess.PIPE,
            text=True,
            env=environment(),
        )
        self._places = SimpleQueue()
        self._reading = Thread(target=self._read, args=[self._process, self._places], daemon=True)
        self._reading.start()

    async def until_ready(self) -> None:
        self.address = await asyncio.to_thread(self._places.get, timeout=PATIENCE_S)
        assert self.address, self.said

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def ended(self) -> int:
        """Wait for its end: the exit status."""
        assert self._process is not None
        assert self._reading is not None
        status = self._process.wait(PATIENCE_S)
        self._reading.join(PATIENCE_S)
        return status

    def end(self) -> None:
        """Whatever state it is in."""
        if self._process is not None:
            self._process.kill()
            self.ended()

    def _read(self, process: subprocess.Popen[str], places: SimpleQueue[str]) -> None:
        assert process.stderr is not None
        with process.stderr as lines:
            for line in lines:
                self.said.append(line)
                _, found, place = line.partition("gateways may join at ")
                if found:
                    places.put(place.strip())
        places.put("")


@asynccontextmanager
async def listening(engines: Sequence[ListeningEngine]) -> AsyncIterator[None]:
    """All of them, from when each is ready."""
    try:
        for engine in engines:
            engine.start()
        for engine in engines:
            await engine.until_ready()
        yield
    finally:
        for engine in engines:
            engine.end()
