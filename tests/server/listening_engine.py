"""`midstream engine --listen` as a process of its own, which may end and begin again at the same place."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

from tests.server.loaded_process import LoadedProcess
from tests.server.server_process import PATIENCE_S, environment


class ListeningEngine:
    """With the toy model, from each `start` until `ended`. `options` are the command line's."""

    def __init__(self, *options: str, listen: str = "127.0.0.1:0") -> None:
        self.address = ""  # by which a gateway finds it
        self.said: list[str] = []
        self._listen = listen
        self._options = options
        self._places: SimpleQueue[str] = SimpleQueue()  # where it listens, and nowhere once it has ended
        self._process: LoadedProcess | None = None
        self._reading: Thread | None = None

    def start(self) -> None:
        """At the place of before; the first time a port may be any that is free."""
        ours, theirs = Pipe(duplex=False)
        command = ["--model", "toy", "--listen", self._listen, *self._options]
        self._process = LoadedProcess(_run, command, environment(), theirs)
        theirs.close()
        self._places = SimpleQueue()
        self._reading = Thread(target=self._read, args=[ours, self._places], daemon=True)
        self._reading.start()

    async def until_ready(self) -> None:
        self.address = await asyncio.to_thread(self._places.get, timeout=PATIENCE_S)
        assert self.address, self.said
        self._listen = self.address.replace("tls:", "")

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.tell(number)

    def hang(self) -> None:
        """Until it is told to go on: of its threads one may run on for a while after the signal."""
        self.tell(signal.SIGSTOP)
        assert self._process is not None
        threads = Path(f"/proc/{self._process.pid}/task")
        while not all(_state(thread) == "T" for thread in threads.iterdir()):
            time.sleep(0.001)

    def ended(self) -> int | None:
        """Wait for its end: the exit status."""
        assert self._process is not None
        assert self._reading is not None
        status = self._process.wait(PATIENCE_S)
        self._reading.join(PATIENCE_S)
        return status

    def end(self) -> None:
        """Whatever state it is in."""
        if self._process is not None:
            self.tell(signal.SIGKILL)
            self.ended()

    def _read(self, connection: Connection, places: SimpleQueue[str]) -> None:
        with os.fdopen(os.dup(connection.fileno())) as lines:
            connection.close()
            for line in lines:
                self.said.append(line)
                _, found, place = line.partition("gateways may join at ")
                if found:
                    places.put(place.strip())
        places.put("")


def _run(command: list[str], environ: dict[str, str], errors: Connection) -> None:
    """In the process."""
    from realtime import engine_command

    os.environ.clear()
    os.environ.update(environ)
    os.dup2(errors.fileno(), sys.stderr.fileno())
    errors.close()
    sys.exit(engine_command.main(command))


def _state(thread: Path) -> str:
    """As the kernel names it, behind the name of what it runs."""
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


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
