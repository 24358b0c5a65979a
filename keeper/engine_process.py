"""`midstream engine` as a child of this process, that lives no longer than it does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

from engine.model.with_parent import with_this_process

LOOK_EVERY_S = 0.05  # whether it is ready


class EngineProcess:
    def __init__(self, arguments: Sequence[str], host: str, token: str) -> None:
        """From the thread that keeps it: Linux ends it with that."""
        self._folder = TemporaryDirectory(prefix="midstream-engine-")
        self._address_file = Path(self._folder.name, "address")
        token_file = Path(self._folder.name, "token")
        token_file.write_text(token)
        places = ["--token-file", str(token_file), "--address-file", str(self._address_file)]
        listen = ["--listen", f"[{host}]:0" if ":" in host else f"{host}:0"]
        self._process = subprocess.Popen(
            with_this_process("midstream", "engine", *listen, *places, *arguments),
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if not name.startswith("MIDSTREAM_")},
        )
        self._last_words = ""
        self._reading = Thread(target=self._read, daemon=True)
        self._reading.start()

    def address(self) -> str:
        """Where gateways may join, once they may; nowhere where it ends before."""
        while self._process.poll() is None:
            if self._address_file.exists():
                return self._address_file.read_text().strip()
            time.sleep(LOOK_EVERY_S)
        return ""

    def wait(self) -> str:
        """Until its end: how it came to it."""
        status = self._process.wait()
        self._reading.join()
        self._folder.cleanup()
        if status < 0:
            return f"it was ended by {signal.Signals(-status).name}"
        return self._last_words or f"it ended with status {status}"

    def leave(self) -> None:
        """It tells gateways that it goes, and ends."""
        self._process.terminate()

    def _read(self) -> None:
        """What it logs is Ray's to keep, as what this process logs."""
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                sys.stderr.write(line)
                self._last_words = line.strip().removeprefix("midstream: ") or self._last_words
