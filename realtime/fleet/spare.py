"""The spare: another engine process that stands ready, without a model, for when one dies.

It knows how one is prepared and kept. It does not know what an engine serves, nor for whom.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from realtime.backoff import Backoff
from realtime.fleet.watched_engine import WatchedEngine

log = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 30.0


class Spare:
    def __init__(self, new_engine: Callable[[], WatchedEngine]) -> None:
        self._new_engine = new_engine
        self._engine: WatchedEngine | None = None
        self._wanted = asyncio.Event()

    def stand_behind(self) -> None:
        """An engine is up: it may have left a copy of itself, and has what it needs of the machine."""
        self._wanted.set()

    def take(self) -> WatchedEngine | None:
        """It is a spare no more."""
        self._wanted.clear()
        taken, self._engine = self._engine, None
        return None if taken is None or taken.closed.is_set() else taken

    async def keep(self) -> None:
        """One that was taken is followed by another; so is one that cannot be prepared, or dies, but not at
        once again and again."""
        backoff = Backoff(first_s=FIRST_WAIT_S, longest_s=LONGEST_WAIT_S)
        while True:
            await self._wanted.wait()
            try:
                died = await self._prepare()
            except OSError as error:
                log.error("no spare engine can be prepared: %s; trying again", error)
            else:
                if died is None or died.prepared:
                    backoff.reset()
                if died is None:
                    continue
                log.warning("the spare engine has died; another is prepared")
            await asyncio.sleep(backoff.next_s())

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()

    async def _prepare(self) -> WatchedEngine | None:
        """Returns when it is a spare no more: the one that died as such, or nothing where it was taken."""
        spare = self._engine
        if spare is None:
            spare = self._new_engine()
            await spare.prepare()
            self._engine = spare
        await spare.spent.wait()
        if self._engine is not spare:
            return None
        self._engine = None
        await spare.close()
        return spare
