"""Frames that wait behind one for the same stream whose text takes long to tokenize.

A lane is one stream's frames, worked off one after the other; lanes do not wait for one another, and the
event loop waits for none of them. What is done with a frame is not known here.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable, KeysView
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
F = TypeVar("F")


class Lanes(Generic[K, F]):
    """`work` does whatever a frame needs, and raises nothing."""

    def __init__(self, work: Callable[[K, F], Awaitable[None]], emptied: Callable[[], None]) -> None:
        self._work = work
        self._emptied = emptied
        self._lanes: dict[K, deque[F]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def keys(self) -> KeysView[K]:
        return self._lanes.keys()

    def join(self, key: K, frame: F) -> bool:
        """Wait behind what is there; False where nothing is."""
        if key not in self._lanes:
            return False
        self._lanes[key].append(frame)
        return True

    def open(self, key: K, frame: F) -> None:
        self._lanes[key] = deque([frame])
        task = asyncio.get_running_loop().create_task(self._work_off(key))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _work_off(self, key: K) -> None:
        lane = self._lanes[key]
        while lane:
            await self._work(key, lane[0])
            lane.popleft()
        del self._lanes[key]
        self._emptied()
