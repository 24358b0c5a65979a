"""The link to an engine in a thread of this process, for embedding and debugging: its messages cross into the
event loop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from engine import api
from realtime.fleet.watched_engine import Hear

log = logging.getLogger("midstream")

CLOSE_S = 5.0


class ThreadLink:
    def __init__(
        self,
        options: api.EngineOptions,
        on_messages: Hear,
        on_closed: Callable[[], None],
    ) -> None:
        from engine.thread import EngineThread  # brings torch with it: only where it was asked for

        loop = asyncio.get_running_loop()

        def cross(call: Callable[..., None], *arguments: Any) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(call, *arguments)

        self._thread = EngineThread(
            options, lambda message: cross(on_messages, [message]), lambda: cross(on_closed)
        )

    async def prepare(self) -> None:
        """A thread has nothing to prepare."""

    async def open(self) -> None:
        self._thread.start()

    def send(self, commands: list[api.AnyCommand]) -> None:
        self._thread.send(commands)

    def kill(self) -> None:
        log.error("a thread cannot be ended: it keeps its memory until its step is over, beside another's")

    async def close(self) -> None:
        self._thread.stop()
        await asyncio.to_thread(self._thread.join, CLOSE_S)
