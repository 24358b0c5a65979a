"""The server under measurement: a real one, in a process of its own, and what its `/metrics` say."""

from __future__ import annotations

import re
import subprocess
import sys
import urllib.request
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from websockets.asyncio.client import connect


class ServerProcess:
    def __init__(self, *options: str, module: str = "realtime") -> None:
        """`module`: that serves when it is run."""
        self._command = [sys.executable, "-m", module, "--port", "0", "--log-level", "warning", *options]

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        found = None
        while found is None:
            line = self.process.stdout.readline()
            assert line, "the server ended before it served"
            found = re.search(r"http://(\S+)", line)
        self.host = found.group(1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        self.process.wait()

    def connect(self) -> connect:
        return connect(f"ws://{self.host}/v1/realtime", compression=None, max_queue=None)

    def metrics(self) -> Mapping[str, float]:
        with urllib.request.urlopen(f"http://{self.host}/metrics") as answer:
            text = answer.read().decode()
        return {name: float(value) for name, value in re.findall(r"^(\w\S*) (\S+)$", text, re.MULTILINE)}
