"""Fleet links: what a step's news cost the gateway's processor where engines are elsewhere, by kind of link.

Eight engines that compute nothing, in a process of their own, tell of a hundred steps a second each, of 48
streams with a token each. The gateway's side is read and decoded, and goes no further: what a token costs
behind that is the same by any link. Kinds take turns, since the machine is not the same from one second to
the next; time is that of the processor, of all threads.
"""

from __future__ import annotations

import asyncio
import itertools
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from bench.__main__ import report
from bench.result_tables import Figure
from engine import api
from engine.listening.listener import Door, Listener
from engine.listening.socket_door import SocketDoor
from realtime.certificates import Certificates
from realtime.config import Options
from realtime.fleet import places
from realtime.fleet.watched_engine import News, WatchedEngine
from tests.fakes.certificates import Authority
from tests.fakes.engine_links import HELLO

ENGINES, STEPS_S, ROWS = 8, 100, 48
ROUNDS, MEASURED_S, SETTLING_S = 5, 3.0, 0.5
MOST_US, MOST_RATIO = 150, 2.5
KINDS = {"": "TCP", "tls:": "TLS", "grpc:": "gRPC", "grpc:tls:": "gRPC with TLS"}


class Files:
    """Of a fleet, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.token = folder / "token"
        self.engine = Certificates(
            *(str(folder / name) for name in ("authority.pem", "engine.pem", "engine.key"))
        )
        self.gateway = self.engine._replace(own=str(folder / "gateway.pem"), key=str(folder / "gateway.key"))

    def write(self) -> None:
        self.token.write_text("sesame")
        authority = Authority(self.folder)
        for name in ("engine", "gateway"):
            authority.signed(name)


# -- the engines -----------------------------------------------------------------------------------


def engines(kind: str, files: Files) -> None:
    """Says where they are, and computes until nobody reads what it says."""
    doors = [_door(kind, files) for _ in range(ENGINES)]
    token = files.token.read_text()
    listeners = [Listener(door, token, HELLO, lambda commands: None) for door in doors]
    print(" ".join(door.address for door in doors).replace("127.0.0.1", "localhost"), flush=True)
    began = time.perf_counter()
    for turn in itertools.count():
        time.sleep(max(0.0, began + turn / (STEPS_S * ENGINES) - time.perf_counter()))
        listeners[turn % ENGINES].emit(_output(turn // ENGINES))


def _door(kind: str, files: Files) -> Door:
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    is_tls = kind.endswith("tls:")
    if kind.startswith("grpc:"):
        from engine.listening.grpc_door import GrpcDoor  # not in the gateway, which says how gRPC waits

        return GrpcDoor(bound, files.engine.contents() if is_tls else None)
    return SocketDoor(bound, files.engine.of_an_engine() if is_tls else None)


def _output(step: int) -> api.StepOutput:
    news = [api.News(number, index=step, tokens=[15_000 + number]) for number in range(ROWS)]
    return api.StepOutput(step, news, api.Stats(step_s=0.01, decode_rows=ROWS))


# -- the gateway -----------------------------------------------------------------------------------


class Gateway:
    """Links to all of them, and what it takes of this process's time to hear their steps."""

    def __init__(self, addresses: str, files: Files) -> None:
        self._steps = 0
        options = Options(
            fleet="static",
            engine_addresses=addresses,
            engine_token_file=str(files.token),
            engine_ca_file=files.gateway.authorities,
            engine_cert_file=files.gateway.own,
            engine_key_file=files.gateway.key,
        )
        self._engines = [WatchedEngine(place.connect) for place in places.listening(options)]

    async def cost_us(self) -> float:
        """Of one step."""
        for engine in self._engines:
            await engine.open(self._hear, lambda engine: None, answer_s=10, start_silence_s=10)
        await asyncio.sleep(SETTLING_S)
        before, steps = time.process_time(), self._steps
        await asyncio.sleep(MEASURED_S)
        cost_s, steps = time.process_time() - before, self._steps - steps
        for engine in self._engines:
            await engine.close()
        return cost_s / steps * 1e6

    def _hear(self, news: list[News]) -> None:
        self._steps += len(news)


@contextmanager
def running(kind: str, files: Files) -> Iterator[str]:
    """Engines, and where they are."""
    command = [sys.executable, "-m", "bench.fleet_links", str(files.folder), kind]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


async def costs_us(files: Files) -> dict[str, list[float]]:
    """Of each kind, in turns."""
    costs: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _, kind in itertools.product(range(ROUNDS), KINDS):
        with running(kind, files) as addresses:
            costs[kind].append(await Gateway(addresses, files).cost_us())
    return costs


def measure() -> list[Figure]:
    with TemporaryDirectory() as folder:
        files = Files(Path(folder))
        files.write()
        costs = asyncio.run(costs_us(files))
    figures = []
    for kind, name in KINDS.items():
        what = f"link by {name}, a step's news at {ENGINES} x {STEPS_S} steps/s, gateway's processor"
        cost = median(costs[kind])
        if not kind.startswith("grpc:"):
            figures.append(Figure(what, cost, "us", f"<= {MOST_US}"))
            continue
        socket_kind = kind.removeprefix("grpc:")
        ratio = median(ours / theirs for ours, theirs in zip(costs[kind], costs[socket_kind], strict=True))
        figures.append(Figure(what, cost, "us", f"<= {MOST_RATIO} x", ratio, KINDS[socket_kind]))
    return figures


if __name__ == "__main__":
    if len(sys.argv) > 1:
        engines(sys.argv[2], Files(Path(sys.argv[1])))
    else:
        sys.exit(report(measure()))
