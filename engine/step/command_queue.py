"""The command queue: commands on their way into an engine, put by any thread, and taken once a step.

It knows lists of commands, and nothing of what they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Protocol

from engine import api


class CommandSource(Protocol):
    """Where an engine takes its commands from."""

    @property
    def empty(self) -> bool: ...
    def put(self, commands: list[api.AnyCommand]) -> None: ...
    def wait(self, timeout_s: float | None = None) -> None:
        """Until there is something to take, or for so long."""

    def take(self) -> Iterable[api.AnyCommand]:
        """All that there is, once a step."""


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

    def take(self) -> Iterator[api.AnyCommand]:
        """Also what is put while the first are dealt with."""
        commands, self._waited_for = self._waited_for, []
        while True:
            yield from commands
            try:
                commands = self._lists.get_nowait()
            except Empty:
                return
