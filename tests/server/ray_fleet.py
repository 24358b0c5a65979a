"""Engines that Ray keeps on machines, a gateway that knows no Ray, and what an operator does with them."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.server.server_process import PATIENCE_S, Served, environment, serving

MACHINES = ENGINES = 3
SILENCE_S = 1.0  # --engine-silence-s
POLL_S = 0.2  # engines take seconds, and want the processor to themselves
TOY = f"""
[models.toy]
source = "toy"
replicas = {ENGINES}
threads = 1
toy_step_ms = 30
"""
ACTOR = "ray::ProcessActor"
ENGINE = "--model-name=toy"
SERVES = "midstream serve "


class Fleet:
    """The machines, the engines on them, and a gateway. `redis`: the address of one in which the GCS has what
    it knows."""

    def __init__(self, folder: Path, models: str = TOY, redis: str = "") -> None:
        self._models, self._token = folder / "models.toml", folder / "token"
        self._models.write_text(models)
        self._token.write_text("sesame\n")
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.fakes.ray_machines", str(MACHINES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment() | ({"RAY_REDIS_ADDRESS": redis} if redis else {}),
        )
        self._heard()
        ray = ("--fleet", "ray", "--ray", self.address, "--engine-token-file", str(self._token))
        with ThreadPoolExecutor() as beside:
            up = beside.submit(self.up)
            served = (*ray, "--models", str(self._models), "--engine-silence-s", str(SILENCE_S))
            self.served = Served(*served, loaded=False)  # Ray is not for copies of processes
        up.result()

    def _heard(self) -> None:
        assert self._process.stdout is not None
        said = json.loads(self._process.stdout.readline())
        self.address: str = said["address"]
        self.gcs: int = said["gcs"]
        self._machines: list[int] = said["machines"]

    # -- what an operator does -------------------------------------------------------------------

    def do(self, what: str) -> None:
        """As `tests.fakes.ray_machines` knows it."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{what}\n")
        self._process.stdin.flush()
        self._heard()

    def up(self, *options: str) -> str:
        return self.told("up", "--models", str(self._models), "--token-file", str(self._token), *options)

    def told(self, command: str, *arguments: str) -> str:
        """`midstream fleet`."""
        done = self.tell(command, *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def words(self, command: str, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "keeper.command", command, "--ray", self.address, *arguments]

    def tell(self, command: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.words(command, *arguments),
            check=False,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
            env=environment(),
        )

    # -- what befalls it -------------------------------------------------------------------------

    async def until(self, engines: int, model: str = "toy") -> None:
        await self.served.until(lambda now: now.get(serving(model), 0) == engines, poll_s=POLL_S)

    async def struck(self, processes: Sequence[int], blow: signal.Signals) -> None:
        """Returns when the fleet has felt it and is whole again."""
        for process in processes:
            os.kill(process, blow)
        await self.until_felt()
        await self.until(ENGINES)

    def gateways(self) -> list[int]:
        """Those that Ray keeps."""
        ours = set(below(self._process.pid))
        return [process for process, _, name in processes() if process in ours and SERVES in name]

    async def until_felt(self) -> None:
        await self.served.until(lambda now: now.get(serving("toy"), 0) < ENGINES, poll_s=POLL_S)

    def actors(self) -> list[int]:
        """Those that keep an engine of the toy's. One whose engine is gone is there for some seconds more,
        and may be the first: behind the highest number a new process gets a low one."""
        ours, all_of_them = set(below(self._process.pid)), list(processes())
        keepers = {parent for _, parent, name in all_of_them if ENGINE in name}
        return [
            process
            for process, _, name in all_of_them
            if process in ours & keepers and name.startswith(ACTOR)
        ]

    def machine(self) -> list[int]:
        """All processes of one with as few engines as any that has some, its own the first."""
        actors = self.actors()
        engines = [parent for process, parent, _ in processes() if process in actors]
        return below(min((one for one in self._machines if one in engines), key=engines.count))

    def end(self) -> None:
        self.served.end()
        all_of_ray = below(self._process.pid)
        self._process.communicate()
        for process in all_of_ray:  # some wait for ever for a GCS that was killed
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def processes() -> Iterator[tuple[int, int, str]]:
    listed = subprocess.run(
        ["ps", "-A", "-ww", "-o", "pid=,ppid=,args="], capture_output=True, text=True, check=True
    ).stdout
    for line in listed.splitlines():
        process, parent, name = line.split(maxsplit=2)
        yield int(process), int(parent), name


def below(*top: int) -> list[int]:
    """They, what they have started, and so on."""
    found, all_of_them = [*top], list(processes())
    for parent in found:
        found += [process for process, of, _ in all_of_them if of == parent]
    return found


def free_port() -> int:
    """Below those that connections get: one that is tried before anybody listens could connect to itself."""
    while True:
        port = random.randrange(20_000, 32_000)
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


@contextmanager
def redis_server() -> Iterator[str]:
    """Its address. What it knows is gone with it."""
    port = free_port()
    redis = subprocess.Popen(
        ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", ""],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert redis.stdout is not None
        said = next((line for line in redis.stdout if "Ready to accept connections" in line), None)
        assert said is not None, "it did not start"
        yield f"127.0.0.1:{port}"
    finally:
        redis.kill()
        redis.communicate()
