"""The engines of one model: as many as it is to have, from when somebody wants it until nobody does for long
enough. A model that is pinned is wanted for ever.

It knows when they come and go, and asks the hub who wants them. It does not know what a supervisor does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from engine import api
from realtime.background_tasks import BackgroundTasks
from realtime.backoff import Backoff
from realtime.fleet.spare import FIRST_WAIT_S, LONGEST_WAIT_S, Spare
from realtime.fleet.supervisor import Supervisor
from realtime.fleet.watched_engine import Connect, EngineFailed, WatchedEngine
from realtime.hub.hub import Hub
from realtime.hub.models import LoadState

log = logging.getLogger(__name__)

KEEP_ALIVE_S = 300.0  # of one that was pinned and is no more
LOOK_S = 0.25  # between two looks whether anybody wants it


class ModelEngines:
    def __init__(
        self,
        model: str,
        supervise: Callable[[Spare | None], Sequence[Supervisor]],
        hub: Hub,
        background: BackgroundTasks,
        turn: asyncio.Lock,
        *,
        keep_alive_s: float | None,
        spare: Connect | None,
    ) -> None:
        """`supervise` makes the supervisors of its engines. One model is loaded at a time, in its `turn`,
        since each looks how much memory there is. Without `keep_alive_s` it is pinned. `spare`: where another
        engine stands ready for when one dies."""
        self.state: LoadState = "cold"
        self.pinned = keep_alive_s is None
        self._model = model
        self._supervise = supervise
        self._hub = hub
        self._background = background
        self._turn = turn
        self._keep_alive_s = KEEP_ALIVE_S if keep_alive_s is None else keep_alive_s
        self._spare_at = spare
        self._spare: Spare | None = None
        self._supervisors: Sequence[Supervisor] = ()
        self._tasks: list[asyncio.Task[None]] = []
        self._wanted = asyncio.Event()
        self._told = asyncio.Event()  # that it is to be looked at anew whether it stays
        self._leaves = False  # whether it is to go again as soon as it is loaded, and nothing runs
        self._began_s = 0.0
        self._took_s: float | None = None  # to load it, the last time

    # -- asked by the hub, and by whoever runs the server ----------------------------------------

    @property
    def awaited(self) -> bool:
        """Whether streams wait for it to be loaded, and not for an engine that has died."""
        return self.state != "ready"

    @property
    def is_wanted(self) -> bool:
        """Whether it is to be loaded, or is."""
        return self._wanted.is_set()

    @property
    def eta_ms(self) -> int | None:
        """Until it is loaded, by how long that took before."""
        if self._took_s is None:
            return None
        since_s = asyncio.get_running_loop().time() - self._began_s if self.state == "loading" else 0.0
        return int(1000 * max(0.0, self._took_s - since_s))

    def want(self) -> None:
        """Somebody needs it."""
        self._wanted.set()

    def unload(self) -> None:
        """As soon as nothing runs: what runs goes on to its end, and what starts waits until it is loaded
        again. What is being loaded is loaded first: somebody may wait for it."""
        self._leaves = self.state == "loading"
        if self.state == "ready":
            self._go()
            self._hub.serving.drain(self._model, drains=True)
            self._told.set()

    def pin(self, *, pinned: bool) -> None:
        """`pinned`: it stays, and is loaded if it is not."""
        self.pinned = pinned
        self._told.set()
        if pinned:
            self._leaves = False
            self.want()

    # -- its life --------------------------------------------------------------------------------

    async def open(self) -> api.Hello:
        """Raises EngineFailed, or OSError, where it cannot be loaded."""
        now = asyncio.get_running_loop().time
        async with self._turn:
            self.state, self._began_s, self._leaves = "loading", now(), False
            self._spare = Spare(self._new_spare) if self._spare_at else None
            self._supervisors = self._supervise(self._spare)
            first, *others = self._supervisors
            try:
                hello = await first.open()
            except BaseException:
                await self.close()
                raise
            self.state, self._took_s = "ready", now() - self._began_s
            self._keep(first)
        if others:
            self._tasks.append(asyncio.create_task(self._keep_one_by_one(others)))
        if self._spare is not None:
            of = f' of "{self._model}"' if self._model else ""
            self._tasks.append(
                self._background.start(f"the supervisor of the spare engine{of}", self._spare.keep)
            )
        return hello

    async def keep(self) -> None:
        """For as long as the server runs; it may be loaded already."""
        backoff = Backoff(first_s=FIRST_WAIT_S, longest_s=LONGEST_WAIT_S)
        while True:
            if self.state == "cold":
                await self._wanted.wait()
                try:
                    await self.open()
                except (EngineFailed, OSError) as error:
                    log.error('"%s" cannot be loaded: %s', self._model, error)
                    self._wanted.clear()
                    self._hub.serving.fail_waiting(self._model)
                    await asyncio.sleep(backoff.next_s())
                    if self.pinned:
                        self.want()
                    continue
                backoff.reset()
                log.info('"%s" is loaded', self._model)
            if self._leaves:
                self.unload()
            await self._until_unwanted()
            await self._unload()

    def give_up(self) -> None:
        """Nothing is expected of its engines any more, and nobody brings them back."""
        for task in self._tasks:
            task.cancel()
        for supervisor in self._supervisors:
            supervisor.give_up()

    async def _until_unwanted(self) -> None:
        now = asyncio.get_running_loop().time
        wanted_s = now()
        while True:
            if self.pinned and self.state == "ready":
                await self._told.wait()
                wanted_s = now()
            self._told.clear()
            await asyncio.sleep(LOOK_S)
            if self.state != "ready":
                if not self._hub.serving.computes(self._model):
                    return
            elif self._hub.serving.wants(self._model):
                wanted_s = now()
            elif now() - wanted_s >= self._keep_alive_s and not self.pinned:
                return

    def _go(self) -> None:
        """Whoever wants it from now on has it loaded again."""
        self.state = "unloading"
        self._wanted.clear()

    async def _unload(self) -> None:
        """Nobody is computed there, which was looked at in this very turn of the event loop."""
        if self.state == "ready":
            self._go()
        for supervisor in self._supervisors:
            supervisor.leave()
        await self.close()
        self._hub.serving.drain(self._model, drains=False)
        log.info('"%s" is unloaded', self._model)
        if self.pinned or self._hub.serving.wants(self._model):
            self.want()

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        closing = [supervisor.close() for supervisor in self._supervisors]
        if self._spare is not None:
            closing.append(self._spare.close())
        await asyncio.gather(*closing)
        self._supervisors, self._tasks, self._spare = (), [], None
        self.state = "cold"

    def _new_spare(self) -> WatchedEngine:
        assert self._spare_at is not None
        return WatchedEngine(self._spare_at)

    def _keep(self, supervisor: Supervisor) -> None:
        self._tasks += watched(self._background, supervisor)

    async def _keep_one_by_one(self, supervisors: Sequence[Supervisor]) -> None:
        for supervisor in supervisors:
            self._keep(supervisor)
            await supervisor.tried.wait()


def watched(background: BackgroundTasks, supervisor: Supervisor) -> list[asyncio.Task[None]]:
    """Its tasks, for as long as its engine is wanted."""
    return [
        background.start(f"the supervisor of {supervisor.name}", supervisor.keep_running),
        background.start(f"the watch over {supervisor.name}", supervisor.end_if_hung),
    ]
