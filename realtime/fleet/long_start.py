"""A long start: an engine that does not serve yet is named in the log now and then, since nobody can tell one
that hangs as it loads its model from one that takes long."""

from __future__ import annotations

import asyncio
import logging

log = logging.getLogger(__name__)

STILL_S = 30.0  # between two words of one that is waited for


class LongStart:
    """Around it. `name`: as the log is to say it, with its article."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()

    def __enter__(self) -> None:
        self._next_word = self._loop.call_later(STILL_S, self._say)

    def __exit__(self, *_: object) -> None:
        self._next_word.cancel()

    def _say(self) -> None:
        since_s = self._loop.time() - self._began_s
        log.warning("%s does not serve yet, %.0f s after it was started", self._name, since_s)
        self._next_word = self._loop.call_later(STILL_S, self._say)
