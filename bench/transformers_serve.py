"""The peer `transformers serve`, with its own continuous batching, for as long as a measurement lasts.

It speaks the same HTTP. This knows how it is started, and neither prompts nor figures.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Self

START_TIMEOUT_S = 300.0  # that a busy machine may take to load a small model


class TransformersServe:
    def __init__(self, folder: Path, *options: str) -> None:
        self.model = str(folder)
        self._options = options
        self._log = TemporaryFile()  # noqa: SIM115 - closed in `__exit__`

    def __enter__(self) -> Self:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        self.host = f"127.0.0.1:{port}"
        main = "from transformers.cli.transformers import main; main()"
        where = ("--host", "127.0.0.1", "--port", str(port))
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-c",
                main,
                "serve",
                self.model,
                "--continuous-batching",
                *where,
                *self._options,
            ],
            stdout=self._log,
            stderr=self._log,
        )
        self._until_it_answers()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()
        self._log.close()

    def _said(self) -> str:
        self._log.seek(0)
        return self._log.read().decode()

    def _until_it_answers(self) -> None:
        last = time.monotonic() + START_TIMEOUT_S
        while True:
            assert self._process.poll() is None, f"it ended before it served: {self._said()}"
            assert time.monotonic() < last, (
                f"transformers serve did not answer within {START_TIMEOUT_S:.0f} s"
            )
            try:
                urllib.request.urlopen(f"http://{self.host}/health").close()
            except urllib.error.URLError:
                time.sleep(0.2)
            else:
                return
