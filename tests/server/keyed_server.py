"""A server with keys: an admin's, and that of a tenant who may take next to nothing."""

from __future__ import annotations

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from realtime.keys_command import main
from tests.server.server_process import Served


class Keyed:
    def __init__(self, folder: Path, *options: str) -> None:
        self._file = str(folder / "keys.toml")
        self.admin = self._add("root", "--admin", "--priority", "8")
        self.poor = self._add("poor", "--tokens-per-minute", "1")
        self.served = Served("--keys-file", self._file, *options)
        self.served.key = self.admin

    def _add(self, *words: str) -> str:
        with redirect_stdout(StringIO()) as told:
            assert main(["add", *words, "--file", self._file], {}) == 0
        return told.getvalue().strip()
