"""The command queue: commands on their way into an engine, put by any thread, and taken once a step.

It knows lists of commands and whose each is, and of what they do that a rewind may be for what follows it.
"""

from __future__ import annotations

import time
from collections import deque
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

    def take(self, most_s: float) -> Iterable[api.AnyCommand]:
        """What there is, once a step; of very many, those that are dealt with in so long."""


class CommandQueue:
    def __init__(self) -> None:
        self._lists: SimpleQueue[list[api.AnyCommand]] = SimpleQueue()
        self._begun = deque[api.AnyCommand]()  # what is left of the list that is dealt with

    @property
    def empty(self) -> bool:
        return not self._begun and self._lists.empty()

    def put(self, commands: list[api.AnyCommand]) -> None:
        self._lists.put(commands)

    def wait(self, timeout_s: float | None = None) -> None:
        if not self._begun:
            with suppress(Empty):
                self._begun += self._lists.get(timeout=timeout_s)

    def take(self, most_s: float) -> Iterator[api.AnyCommand]:
        """Also what is put while the first are dealt with. With a rewind the stream's next is taken, for
        which that may be; and no more of one stream's together, since its context may be very long."""
        began_s, rewound = time.perf_counter(), None
        while self._begun or self._begin_next():
            command = self._begun[0]
            stream = command.stream if isinstance(command, api.Command) else None
            goes_with_the_last = stream is not None and stream == rewound
            if not goes_with_the_last and time.perf_counter() - began_s >= most_s:
                return
            rewound = stream if isinstance(command, api.Truncate) else None
            yield self._begun.popleft()

    def _begin_next(self) -> bool:
        """Whether there is another list that has any."""
        with suppress(Empty):
            while not self._begun:
                self._begun += self._lists.get_nowait()
        return bool(self._begun)
