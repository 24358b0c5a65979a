"""A head of Ray's with Redis, as docs/operations.md has it: when its GCS dies all of it ends, and started
again it knows what it knew."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

import pytest

from tests.server.ray_fleet import below, free_port, processes
from tests.server.server_process import PATIENCE_S, environment

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),  # whatever it waits for is waited for with patience
    pytest.mark.skipif(find_spec("ray") is None, reason="it is about Ray, which is not installed"),
    pytest.mark.skipif(which("redis-server") is None, reason="it is about Redis: install redis-server"),
]
DOCUMENT = Path(__file__).parents[2] / "docs/operations.md"
UP = "will now block"  # until then it would wait for a GCS that is gone
SMALL = (
    " --num-cpus 1 --object-store-memory 80000000 --include-dashboard false --include-log-monitor false"
    " --no-monitor --temp-dir "
)


@contextmanager
def running(command: str, folder: Path, up: str) -> Iterator[subprocess.Popen[str]]:
    """From when it says `up`. Nothing of it is left afterwards."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    process = subprocess.Popen(
        ["bash", "-c", command],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment() | {"PATH": path, "PYTHONUNBUFFERED": "1", "RAY_USAGE_STATS_ENABLED": "0"},
    )
    try:
        assert process.stdout is not None
        said = list(itertools.takewhile(lambda line: up not in line, process.stdout))
        assert process.poll() is None, said
        yield process
    finally:
        for one in below(process.pid):
            with suppress(ProcessLookupError):
                os.kill(one, signal.SIGKILL)
        process.communicate()


def gcs_of(head: subprocess.Popen[str]) -> int:
    ours = below(head.pid)
    (found,) = [process for process, _, name in processes() if process in ours and "gcs_server" in name]
    return found


def test_a_head_with_redis_ends_with_its_gcs_and_knows_what_it_knew_when_it_is_started_again() -> None:
    from keeper.ledger import Ledger
    from keeper.plan import Kept

    redis, head = DOCUMENT.read_text().partition("### With Redis")[2].split("```")[1].strip().splitlines()
    redis_port, port = free_port(), free_port()
    with TemporaryDirectory() as folder:
        place = Path(folder)
        (place / "redis-password").write_text("sesame\n")
        redis, head = (
            line.replace("10.0.0.8", "127.0.0.1").replace("6380", str(redis_port)).replace("6379", str(port))
            for line in (redis, head)
        )
        address, kept = f"127.0.0.1:{port}", {"toy#0": Kept("ready", "m0", "10.0.0.7:7000")}
        with running(redis, place, "Ready to accept connections"):
            with running(head + SMALL + folder, place, UP) as first:
                Ledger(address).tell("toy#0", kept["toy#0"])
                os.kill(gcs_of(first), signal.SIGKILL)
                assert first.wait(PATIENCE_S) == 1
            with running(head + SMALL + folder, place, UP):
                assert Ledger(address).kept() == kept
