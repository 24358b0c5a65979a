"""`midstream serve` as a process of its own, and what can be seen of it from outside."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO

from tests.server.given_engine import become_server
from tests.server.loaded_process import LoadedProcess

# For what must happen: a second alone, but half a minute where three engines start beside other tests.
PATIENCE_S = 90.0
POLL_S = 0.02  # who asks all the time takes it from those who are waited for
SCRIPTS = Path(__file__).parents[1] / "fakes" / "scripted_engine"
OTHER_ENGINES = {
    "--engine",
    "--fleet",
    "--gateways",
    "--models",
}  # than a process of the server's with the toy
Metrics = dict[str, float]


def said(log: IO[str]) -> str:
    """What a process that writes to it has said so far. To seek would move the place where it writes."""
    return os.pread(log.fileno(), os.fstat(log.fileno()).st_size, 0).decode()


class Served:
    """A server with the toy model, from its first line until `end`. `options` are the command line's.
    `scripted`: whether the model says what it is told to. `loaded`: whether it and its first engine, if
    that is the toy by a pipe, are copies of a process that has loaded what they need: where it is to start as
    a user's, it takes seconds."""

    def __init__(
        self, *options: str, model: str = "toy", scripted: bool = False, loaded: bool = True
    ) -> None:
        self.key = ""  # that opens `/metrics`, where there are keys
        self.errors = TemporaryFile("w+")  # noqa: SIM115 - closed in `end`
        output, its_output = Pipe(duplex=False)
        self.output = os.fdopen(os.dup(output.fileno()))
        which = () if "--models" in options else ("--model", model)
        gives = loaded and model == "toy" and not OTHER_ENGINES & set(options)
        with output, its_output, Connection(os.dup(self.errors.fileno())) as its_errors:
            self.process = LoadedProcess(
                become_server,
                ["serve", *which, "--port", "0", *options],
                environment() | ({"PYTHONPATH": _with_scripts()} if scripted else {}),
                (its_output, its_errors),
                loaded,
                gives,
                str(SCRIPTS / "sitecustomize.py") if scripted else "",
            )
        self.greeting = self._greeting()
        found = re.search(r"http://(\S+):(\d+)", self.greeting)
        if found is None:
            said = self.log()
            self.end()
            raise AssertionError(f"no URL in {self.greeting!r}; it said {said}")
        self.http = found[0]
        self.host, self.port = found[1], int(found[2])
        self.url = f"ws://{self.host}:{self.port}/v1/realtime"

    def _greeting(self) -> str:
        text = ""
        while line := self.output.readline():
            text += line
            if "Try it" in text and line == "\n":
                break
        return text

    def log(self) -> str:
        return said(self.errors)

    # -- over HTTP -------------------------------------------------------------------------------

    def get(self, path: str) -> tuple[int, str]:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        request = urllib.request.Request(self.http + path, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as response:
                return response.status, response.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.read().decode()

    async def ask(self, path: str) -> tuple[int, str]:
        return await asyncio.to_thread(self.get, path)

    async def metrics(self) -> Metrics:
        _, text = await self.ask("/metrics")
        samples = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, _, value in samples}

    async def until(self, condition: Callable[[Metrics], bool], *, poll_s: float = POLL_S) -> Metrics:
        """The first metrics of which the condition holds."""
        metrics: Metrics = {}
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not condition(metrics := await self.metrics()):  # noqa: ASYNC110 - of another process
                    await asyncio.sleep(poll_s)
        except TimeoutError:
            raise AssertionError(f"it never came to that: {metrics}") from None
        return metrics

    async def until_idle(self) -> Metrics:
        return await self.until(lambda now: not streams(now) and not used(now))

    # -- its processes ---------------------------------------------------------------------------

    @property
    def engine(self) -> int:
        """The process of the engine."""
        return self.engines[0]

    @property
    def engines(self) -> list[int]:
        """The processes of the engine and of its spare, which is always the younger."""
        listed = subprocess.run(
            ["ps", "-A", "--sort=start_time", "-o", "pid=,ppid=,stat="],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        rows = (line.split() for line in listed.splitlines())
        ours = str(self.process.pid)
        return [int(pid) for pid, parent, state in rows if parent == ours and not state.startswith("Z")]

    def tell(self, number: signal.Signals = signal.SIGTERM) -> None:
        self.process.tell(number)

    def ended(self) -> int:
        """Wait for its end: the exit status. It leaves nobody behind."""
        status = self.process.wait(PATIENCE_S)
        assert status is not None, "it goes on"
        assert not self._left(), "a child outlived the server"
        return status

    def end(self) -> None:
        """Whatever state it is in, nothing of it is left afterwards."""
        if self.process.status() is None or self._left():
            with suppress(ProcessLookupError):  # it has ended since, and is being waited for
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE_S)
        self.output.close()
        self.errors.close()

    def _left(self) -> bool:
        try:
            os.killpg(self.process.pid, 0)
        except ProcessLookupError:
            return False
        return True


@contextmanager
def serving_models(folder: Path, models: str) -> Iterator[Served]:
    """A server with these models, as a file in the folder says, that ends as it should."""
    file = folder / "models.toml"
    file.write_text(models)
    served = Served("--models", str(file), "--engine-spare", "off")
    yield served
    served.tell()
    assert served.ended() == 0, served.log()
    assert "Traceback" not in served.log()
    served.end()


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "midstream", "serve", *arguments]


def environment() -> dict[str, str]:
    """Ours, without options for the server, with one thread and no spare engine: tests share the machine."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MIDSTREAM_")}
    return kept | {"OMP_NUM_THREADS": "1", "MIDSTREAM_ENGINE_SPARE": "off"}


def _with_scripts() -> str:
    return os.pathsep.join([str(SCRIPTS), os.environ.get("PYTHONPATH", "")])


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """`midstream serve` with what will not let it start, in a copy of a process that has loaded it."""
    words = ["serve", *arguments]
    with TemporaryFile("w+") as output, TemporaryFile("w+") as errors:
        with (
            Connection(os.dup(output.fileno())) as its_output,
            Connection(os.dup(errors.fileno())) as its_errors,
        ):
            process = LoadedProcess(
                become_server, words, environment(), (its_output, its_errors), True, False, ""
            )
        status = process.wait(PATIENCE_S)
        if status is None:
            os.killpg(process.pid, signal.SIGKILL)
            raise AssertionError(f"it goes on: {said(errors)}")
        return subprocess.CompletedProcess(words, status, said(output), said(errors))


# -- what the metrics say --------------------------------------------------------------------------


def streams(metrics: Metrics, state: str | None = None) -> float:
    """Live streams, of one state or of all."""
    return sum(
        value
        for name, value in metrics.items()
        if name.startswith("midstream_streams{") and (state is None or f'"{state}"' in name)
    )


def used(metrics: Metrics) -> float:
    return metrics['midstream_kv_blocks{state="used"}']


def decoded(metrics: Metrics) -> float:
    return metrics["midstream_tokens_total"]


def serving(model: str) -> str:
    """The name of the sample that says how many engines it has."""
    return f'midstream_model_engines{{model="{model}"}}'
