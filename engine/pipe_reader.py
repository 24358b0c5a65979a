"""The reader of the engine's end of the pipe, in a thread of its own from the moment that there is a model to
load: whoever loads one listens to nobody, and must go all the same when the gateway does.

It hands on the commands, and does not know what they do.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from engine import api
from engine.pipe import Pipe

log = logging.getLogger("engine")

LAST_STEP_S = 5.0  # how long the step under way may take when the gateway is gone


class PipeReader:
    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._engine: tuple[Callable[[list[api.AnyCommand]], None], Callable[[], None]] | None = None
        threading.Thread(target=self._run, name="pipe reader", daemon=True).start()

    def attach(self, send: Callable[[list[api.AnyCommand]], None], stop: Callable[[], None]) -> None:
        """There is an engine now, that takes commands and can end in good order."""
        self._engine = send, stop

    def _run(self) -> None:
        try:
            self._read()
        except Exception:  # as where the gateway is of another version
            log.exception("what the gateway said could not be taken in, and the engine ends")
        finally:
            self._end()

    def _read(self) -> None:
        for commands in self._pipe.commands():
            assert self._engine is not None, "nothing is sent before Hello"
            self._engine[0](commands)

    def _end(self) -> None:
        if self._engine is not None:
            self._engine[1]()
            time.sleep(LAST_STEP_S)  # of a thread that does not keep the process from ending sooner
        os._exit(1)
