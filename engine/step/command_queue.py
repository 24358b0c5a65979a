"""The command queue: commands on their way into an engine, put by any thread, and taken once a step.

It knows lists of commands, and nothing of what they do.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from engine import api

FEW = 256  # commands, which take some five milliseconds


class CommandSource(Protocol):
    """Where an engine takes its commands from."""

    @property
    def empty(self) -> bool: ...
    def put(self, commands: list[api.AnyCommand]) -> None: ...
    def wait(self, timeout_s: float | None = None) -> None:
        """Until there is something to take, or for so long."""

    def take(self, most_s: float) -> Iterable[api.AnyCommand]:
        """What there is, once a step; of very many, those that are dealt with in so long."""


class CommandQueue:
    def __init__(self) -> None:
        self._lists: SimpleQueue[list[api.AnyCommand]] = SimpleQueue()
        self._waited_for: list[api.AnyCommand] = []

    @property
    def empty(self) -> bool:
        return self._lists.empty()

    def put(self, commands: list[api.AnyCommand]) -> None:
        self._lists.put(commands)

    def wait(self, timeout_s: float | None = None) -> None:
        with suppress(Empty):
            self._waited_for += self._lists.get(timeout=timeout_s)

    def take(self, most_s: float) -> Iterator[api.AnyCommand]:
        """Also what is put while the first are dealt with. What was put together is taken together; and a few
        are taken in any case."""
        commands, self._waited_for = self._waited_for, []
        began_s, taken = time.perf_counter(), 0
        while True:
            yield from commands
            taken += len(commands)
            if taken >= FEW and time.perf_counter() - began_s >= most_s:
                return
            try:
                commands = self._lists.get_nowait()
            except Empty:
                return
