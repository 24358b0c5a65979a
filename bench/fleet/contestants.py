"""Who serves in `make bench-fleet`: this server with two engines, and routers by others with two workers.

Each is started at a URL and names the processes that may be the one that writes. One that is not there, or
does not start, raises.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from bench.fleet.words_model import words_model
from bench.server import ServerProcess

INSTALLED = Path(".venv/bench-fleet").absolute()
STEP_MS = 20
MOST_START_S = 60.0
WORKERS = 2
MIGRATIONS = "3"  # of a stream of Dynamo's, which by default has none
MOCKER_STEP_MS = 6  # Dynamo's, as it comes: its clock may be slowed
DYNAMO = ("ai-dynamo", "ai-dynamo-runtime")
DYNAMO_NEEDS = (  # what is used here of all that it names: the rest cannot be had, or is for other uses
    "aiohttp",
    "msgspec",
    "prometheus-client",
    "pydantic<2.14",
    "pyzmq",
    "tqdm",
    "transformers",
    "typing-extensions",
    "uvloop",
    "zstandard",
)


class Serving(NamedTuple):
    url: str
    workers: list[int]  # processes


@contextmanager
def midstream() -> Iterator[Serving]:
    with ServerProcess("--model", "toy", "--engines", str(WORKERS), "--toy-step-ms", str(STEP_MS)) as server:
        while server.metrics()["midstream_engines"] < WORKERS:
            time.sleep(0.1)
        yield Serving(f"http://{server.host}", children(server.process.pid))


@contextmanager
def sglang_router() -> Iterator[Serving]:
    with _router("sglang-router", "sglang_router.launch_router") as serving:
        yield serving


@contextmanager
def vllm_router() -> Iterator[Serving]:
    with _router("vllm-router", "vllm_router.launch_router") as serving:
        yield serving


@contextmanager
def _router(package: str, module: str) -> Iterator[Serving]:
    """With its own defaults, in front of mock workers."""
    python = installed(package)
    with ExitStack() as stack:
        ports = [free_port() for _ in range(WORKERS)]
        worker = Path(__file__).with_name("mock_worker.py")
        workers = [
            stack.enter_context(running([sys.executable, str(worker), str(port), str(STEP_MS)]))
            for port in ports
        ]
        for port in ports:
            until_answers(f"http://127.0.0.1:{port}/health")
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        port = free_port()
        command = [python, "-m", module, "--host", "127.0.0.1", "--port", str(port)]
        command += ["--prometheus-port", str(free_port()), "--worker-urls", *urls]
        stack.enter_context(running(command))
        url = f"http://127.0.0.1:{port}"
        until_answers(f"{url}/health")
        yield Serving(url, [worker.pid for worker in workers])


@contextmanager
def dynamo() -> Iterator[Serving]:
    """Its frontend before its own mock workers, which find each other by files."""
    python = installed("ai-dynamo", DYNAMO, DYNAMO_NEEDS)
    with TemporaryDirectory() as folder, ExitStack() as stack:
        model = words_model(Path(folder) / "model")
        found = {"DYN_FILE_KV": f"{folder}/found", "DYN_DISCOVERY_BACKEND": "file", "HF_HUB_OFFLINE": "1"}
        mocker = [python, "-m", "dynamo.mocker", "--model-path", str(model), "--model-name", "toy"]
        mocker += ["--speedup-ratio", str(MOCKER_STEP_MS / STEP_MS)]
        workers = [stack.enter_context(running(mocker, found)) for _ in range(WORKERS)]
        port = free_port()
        frontend = [python, "-m", "dynamo.frontend", "--http-port", str(port)]
        stack.enter_context(running([*frontend, "--migration-limit", MIGRATIONS], found))
        url = f"http://127.0.0.1:{port}"
        until_answers(f"{url}/v1/models")
        until(lambda: instances(url) >= WORKERS)
        yield Serving(url, [worker.pid for worker in workers])


def instances(url: str) -> int:
    """Workers that Dynamo's frontend knows to write."""
    with urllib.request.urlopen(f"{url}/health", timeout=5) as answer:
        known = json.load(answer).get("instances", ())
    return sum(one["endpoint"] == "generate" for one in known)


ALL = {
    "midstream": midstream,
    "sglang-router": sglang_router,
    "vllm-router": vllm_router,
    "dynamo": dynamo,
}


def installed(name: str, alone: Sequence[str] = (), needs: Sequence[str] = ()) -> str:
    """The Python of an environment that has what is so named, or these alone and what they need; it is made
    once."""
    folder = INSTALLED / name
    python, stamp = str(folder / "bin/python"), folder / "installed"
    if not stamp.exists():
        venv.create(folder, clear=True, with_pip=True)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:"]
        if alone:
            subprocess.run([*pip, "--no-deps", *alone], check=True)
        subprocess.run([*pip, *(needs or [name])], check=True)
        stamp.touch()
    return python


@contextmanager
def running(command: list[str], environ: Mapping[str, str] = {}) -> Iterator[subprocess.Popen[bytes]]:
    nowhere = subprocess.DEVNULL
    process = subprocess.Popen(command, stdout=nowhere, stderr=nowhere, env=os.environ | environ)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def until_answers(url: str) -> None:
    def answers() -> bool:
        with urllib.request.urlopen(url, timeout=5):
            return True

    until(answers)


def until(holds: Callable[[], bool]) -> None:
    """Whoever cannot be reached yet is asked again."""
    since = time.perf_counter()
    while True:
        try:
            if holds():
                return
            failure: Exception = TimeoutError("it did not start")
        except OSError as error:
            failure = error
        if time.perf_counter() - since > MOST_START_S:
            raise failure
        time.sleep(0.2)


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [line.split() for line in listed.stdout.splitlines()]
    return [int(child) for child, parent in pairs if int(parent) == pid]
