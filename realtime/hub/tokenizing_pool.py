"""The tokenizing pool: the threads that make tokens of long texts, and whose turn it is to use one.

Nothing else runs in these threads, and nothing that a client asks for runs in others: what the server itself
does beside its event loop, such as loading a tokenizer, never waits for a crowd of texts. Nobody's turn waits
for more of another's texts than are being worked at. What has a grammar stands in a line of its own, and
grammars that are to be compiled in another: one after the other is, which takes up to a second each, and
neither texts nor grammars that are known wait for that. A text takes up to some hundred bytes a character
meanwhile: long ones, with grammars or without, are in one line and worked at one by one, and what that took
goes back to the system. This knows no frame and no stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from enum import Enum
from typing import ParamSpec, TypeVar

from engine.heap import trim_heap
from realtime.hub.fair_queue import FairQueue

P = ParamSpec("P")
T = TypeVar("T")

THREADS = 2  # for texts, and one each for what has grammars
LONG = 128 << 10  # characters, of which there is one text at a time


class Line(Enum):
    TEXTS = "texts"
    RULED = "texts with grammars, as far as these are known"
    COMPILED = "grammars that are not: whatever they are, each may take as long"


class _Waiting:
    """Those in one line, which has so many threads left."""

    def __init__(self, threads: int) -> None:
        self.free = threads
        self.queue = FairQueue[asyncio.Future[None]]()


class TokenizingPool:
    def __init__(self, threads: int = THREADS) -> None:
        self._lines = {line: _Waiting(threads if line is Line.TEXTS else 1) for line in Line}
        most = sum(line.free for line in self._lines.values())
        self._executor = ThreadPoolExecutor(most, thread_name_prefix="tokenizing")
        self._has_long = False  # whether it is worked at

    @asynccontextmanager
    async def turn(
        self, tenant: str, client: object, size: int, at: Line = Line.TEXTS
    ) -> AsyncIterator[None]:
        """Wait for a thread, and have it for as long as the context lasts."""
        turn = asyncio.get_running_loop().create_future()
        line = self._lines[Line.TEXTS if size > LONG else at]
        line.queue.put(tenant, client, size, turn)
        self._give_turns()
        try:
            await turn
            yield
        finally:
            if not turn.cancelled():  # while it waited
                line.free += 1
                if size > LONG:
                    self._has_long = False
                    # Where no thread can be started who waits has a turn all the same.
                    with suppress(RuntimeError):
                        self._executor.submit(trim_heap)
                self._give_turns()

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """In a thread: whoever calls has a turn."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, lambda: work(*args, **kwargs))

    def _give_turns(self) -> None:
        for line in self._lines.values():
            self._give_turns_of(line)

    def _give_turns_of(self, line: _Waiting) -> None:
        while line.free and line.queue:
            is_long = line.queue.next_size > LONG
            if is_long and self._has_long:
                return
            turn = line.queue.take()
            if not turn.done():
                turn.set_result(None)
                line.free -= 1
                self._has_long = self._has_long or is_long
