"""Frame queues: frames that wait behind one for the same stream whose text takes long to tokenize.

A queue is one stream's frames, worked off one after the other; queues do not wait for one another, and the
event loop waits for none of them: behind each frame others have their turn. What is done with a frame is not
known here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, KeysView
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
F = TypeVar("F")


class SerialQueues(Generic[K, F]):
    """`work` does whatever a frame needs, and raises nothing."""

    def __init__(self, work: Callable[[K, F], Awaitable[None]], emptied: Callable[[], None]) -> None:
        self._work = work
        self._emptied = emptied
        self._queues: dict[K, deque[F]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def keys(self) -> KeysView[K]:
        return self._queues.keys()

    def latest_first(self, key: K) -> Iterable[F]:
        """What waits there, or is worked at."""
        return reversed(self._queues.get(key, ()))

    def enqueue(self, key: K, frame: F) -> bool:
        """Wait behind what is there; False where nothing is."""
        if key not in self._queues:
            return False
        self._queues[key].append(frame)
        return True

    def start(self, key: K, frame: F) -> None:
        self._queues[key] = deque([frame])
        task = asyncio.get_running_loop().create_task(self._work_off(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work_off(self, key: K) -> None:
        queue = self._queues[key]
        try:
            while queue:
                await self._work(key, queue[0])
                queue.popleft()
                await asyncio.sleep(0)
        finally:  # a bug must not keep others of this name waiting for ever
            del self._queues[key]
            self._emptied()
