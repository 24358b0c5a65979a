"""The five commands by which docs/operations.md brings engines to several machines, as they stand there: both
machines are this one, at a port of its own, and `midstream` is what pyproject.toml says that it is."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.server.independent_client import client_of
from tests.server.ray_fleet import below, free_port
from tests.server.server_process import PATIENCE_S, Served, environment

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(600),  # whatever it waits for is waited for with patience
    pytest.mark.skipif(find_spec("ray") is None, reason="it is about Ray, which is not installed"),
]
ROOT = Path(__file__).parents[2]
OPERATIONS = (ROOT / "docs/operations.md").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
COMMANDS = OPERATIONS.partition("## Machines, by Ray")[2].split("```")[1].strip().splitlines()
ADDRESS = "10.0.0.7:6379"
MODELS = '[models.toy]\nsource = "toy"\nreplicas = 2\nthreads = 1\n'


class Newcomer:
    """Whoever has a folder, a port, and commands to type."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = ADDRESS
        # What Ray starts leaves its parent: it is known by where it writes.
        self._environment = environment() | {"RAY_TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
        self._port = free_port()

    def words(self, command: str) -> list[str]:
        """At our address, and at our port."""
        words = shlex.split(command, comments=True)
        return [str(self._port) if word == "6379" else word.replace(ADDRESS, self.address) for word in words]

    def exports(self, variable: str) -> None:
        name, _, value = variable.partition("=")
        self._environment[name] = value

    @contextmanager
    def begins(self, command: str) -> Iterator[subprocess.Popen[str]]:
        """What goes on until somebody ends it."""
        with subprocess.Popen(
            _program(command.split()),
            cwd=self.folder,
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        ) as process:
            try:
                yield process
            except BaseException:
                process.kill()  # else it would be waited for, and nobody told why
                raise

    def types(self, command: str) -> None:
        words, _, file = " ".join(self.words(command)).partition(" > ")
        done = subprocess.run(
            _program(words.split()),
            cwd=self.folder,
            env=self._environment,
            check=False,
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_S,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        if file:
            (self.folder / file).write_text(done.stdout)
        if told := re.search(r"ray start --address='(\S+)'", done.stdout):
            self.address = told[1]

    def ends(self) -> None:
        """Until none is left: some are started while others end."""
        while found := self.of_ray():
            for process in below(*found):  # some write their names over what they were started with
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)

    def of_ray(self) -> list[int]:
        """Processes."""
        mark = f"RAY_TMPDIR={self.folder}\0".encode()
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError):
                if mark in (process / "environ").read_bytes():
                    found.append(int(process.name))
        return found


def _program(words: list[str]) -> list[str]:
    program, *options = words
    if program == "ray":
        return [sys.executable, "-m", "ray.scripts.scripts", *options]
    if program == "midstream":
        subcommand, *options = options
        module, _, _ = PROJECT["entry-points"]["midstream.commands"][subcommand].partition(":")
        return [sys.executable, "-m", module, *options]
    return words


@pytest.fixture
def newcomer() -> Iterator[Newcomer]:
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        newcomer = Newcomer(Path(folder))
        try:
            yield newcomer
        finally:
            newcomer.ends()


def test_one_command_has_machines_for_trying_and_says_what_to_type(newcomer: Newcomer) -> None:
    (newcomer.folder / "models.toml").write_text(MODELS)
    (newcomer.folder / "token").write_text("sesame")
    with newcomer.begins("midstream fleet try --machines 2 --cpus 1") as trial:
        assert trial.stdout is not None
        assert trial.stdout.readline().startswith("2 machines of Ray's, each of 1 CPU, are here for trying.")
        said = list(itertools.takewhile(lambda line: "Ctrl-C" not in line, trial.stdout))
        export, up, serve = (line.strip() for line in said if line.startswith("  "))
        newcomer.exports(export.removeprefix("export "))
        newcomer.types(up)
        assert serve == "midstream serve --fleet ray --engine-token-file token"
        for _ in range(20):  # of who is impatient
            trial.send_signal(signal.SIGINT)
            trial.send_signal(signal.SIGTERM)
    assert trial.returncode == 0
    assert newcomer.of_ray() == []


async def test_five_commands_bring_engines_to_machines(
    newcomer: Newcomer, monkeypatch: pytest.MonkeyPatch
) -> None:
    (newcomer.folder / "models.toml").write_text(MODELS)
    *before, serve = COMMANDS
    assert len(before) == 4
    for command in before:
        newcomer.types(command)
    monkeypatch.chdir(newcomer.folder)
    program, subcommand, *options = newcomer.words(serve)
    assert (program, subcommand) == ("midstream", "serve")
    served = Served(*options)
    try:
        async with client_of(served.url) as client:
            stream = await client.start(
                "first", params={"max_tokens": 5, "ignore_eos": True}, credit={"limit": 9}
            )
            assert (await stream.rest())["finish_reason"] == "length"
        served.tell()
        assert served.ended() == 0, served.log()
    finally:
        served.end()
