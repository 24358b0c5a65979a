"""The background tasks: what goes on for as long as the server runs, each kept alive.

One that dies is logged with its stack and started anew, later and later while it goes on dying. It knows
tasks by name, and nothing of what they do; a task must be able to begin anew wherever it died.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from realtime.backoff import Backoff

log = logging.getLogger("midstream")

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 30.0

Work = Callable[[], Coroutine[Any, Any, None]]  # that never ends by itself


class BackgroundTasks:
    def __init__(self, *, first_wait_s: float = FIRST_WAIT_S) -> None:
        self._first_wait_s = first_wait_s
        self._tasks: set[asyncio.Task[None]] = set()
        self._dead: set[str] = set()

    @property
    def dead(self) -> list[str]:
        """Those that have died and are not started anew yet."""
        return sorted(self._dead)

    def start(self, name: str, work: Work) -> asyncio.Task[None]:
        """`name` as the log is to say it, with its article. Cancelling the task ends it for good."""
        task = asyncio.get_running_loop().create_task(self._keep_alive(name, work), name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def stop(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _keep_alive(self, name: str, work: Work) -> None:
        loop, backoff = (
            asyncio.get_running_loop(),
            Backoff(first_s=self._first_wait_s, longest_s=LONGEST_WAIT_S),
        )
        while True:
            began_s = loop.time()
            await self._run(name, work)
            if loop.time() - began_s > LONGEST_WAIT_S:
                backoff.reset()
            self._dead.add(name)
            try:
                await asyncio.sleep(backoff.next_s())
            finally:  # also where it is wanted no more
                self._dead.discard(name)

    async def _run(self, name: str, work: Work) -> None:
        try:
            await work()
        except (Exception, asyncio.CancelledError):
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            # Also where something that it waited for was cancelled, which would end it without a word.
            log.exception("%s has died; it is started anew", name)
        else:
            log.error("%s has ended, and never should; it is started anew", name)
