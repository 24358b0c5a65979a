"""Who serves in `make bench-fleet`: this server with two engines, and routers by others with two workers.

Each is started at a URL and names the processes that may be the one that writes. One that is not there, or
does not start, raises.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.server import ServerProcess

INSTALLED = Path(".venv/bench-fleet").absolute()
STEP_MS = 20
MOST_START_S = 60.0
WORKERS = 2


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


ALL = {"midstream": midstream, "sglang-router": sglang_router, "vllm-router": vllm_router}


def installed(package: str) -> str:
    """The Python of an environment of its own that has it; it is made once."""
    folder = INSTALLED / package
    python, stamp = str(folder / "bin/python"), folder / "installed"
    if not stamp.exists():
        venv.create(folder, clear=True, with_pip=True)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--only-binary", ":all:"]
        subprocess.run([*pip, package], check=True)
        stamp.touch()
    return python


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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
    since = time.perf_counter()
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            if time.perf_counter() - since > MOST_START_S:
                raise
        time.sleep(0.2)


def children(pid: int) -> list[int]:
    listed = subprocess.run(["ps", "-A", "-o", "pid=,ppid="], capture_output=True, text=True, check=True)
    pairs = [line.split() for line in listed.stdout.splitlines()]
    return [int(child) for child, parent in pairs if int(parent) == pid]
