"""Processes that begin as copies of one that has loaded what a server and its engine need, in seconds."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from multiprocessing.connection import wait
from threading import Lock
from typing import Any

_processes = multiprocessing.get_context("forkserver")
_processes.set_forkserver_preload(
    [
        "engine.__main__",
        "engine.listening.listen",
        "engine.sampling.numba_draw",
        "midstream.__main__",
        "realtime.__main__",
        "realtime.engine_command",
    ]
)
_reading = Lock()  # a status can be read once, and whoever starts a process looks at all others'


class LoadedProcess:
    """From its start. It runs `target`, and ends when that returns."""

    def __init__(self, target: Callable[..., None], *arguments: Any) -> None:
        self._process = _processes.Process(target=target, args=arguments, daemon=True)
        with _reading:
            self._process.start()
        assert self._process.pid is not None
        self.pid: int = self._process.pid

    def tell(self, number: signal.Signals) -> None:
        if self.status() is None:
            os.kill(self.pid, number)

    def status(self) -> int | None:
        """None while it runs; that of the signal that has ended it is below zero."""
        with _reading:
            return self._process.exitcode

    def wait(self, patience_s: float) -> int | None:
        wait([self._process.sentinel], patience_s)
        return self.status()
