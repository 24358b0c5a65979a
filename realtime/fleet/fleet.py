"""The fleet: all engines of one gateway, each with its supervisor, and a spare behind them.

It knows where engines are to be had, and not what is said to them, nor for whom.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import NamedTuple

from engine import api
from realtime.background_tasks import BackgroundTasks
from realtime.fleet.served_models import ServedModels
from realtime.fleet.spare import Spare
from realtime.fleet.supervisor import Patience, Supervisor
from realtime.fleet.watched_engine import Connect, WatchedEngine
from realtime.hub.hub import Hub
from realtime.hub.observers import Observer
from realtime.tools.spelling import AUTO


class EnginePlace(NamedTuple):
    """Where an engine is to be had."""

    name: str  # as the log is to say it, with its article
    connect: Connect


class Fleet:
    def __init__(
        self,
        places: Sequence[EnginePlace],
        observer: Observer,
        tasks: BackgroundTasks,
        *,
        patience: Patience,
        spare: bool = False,
        tool_format: str = AUTO,
    ) -> None:
        """`spare`: whether another engine stands ready for when one dies, wherever that is."""
        self.hub: Hub | None = None
        self._places = places
        self._observer = observer
        self._background = tasks
        self._patience = patience
        self._spare = Spare(lambda: WatchedEngine(places[0].connect)) if spare else None
        self._models = ServedModels(tool_format)
        self._supervisors: dict[int, Supervisor] = {}
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> api.Hello:
        """The first engine: whoever starts a server waits for it, and hears why if it cannot be. The others
        follow one by one, since each looks how much memory there is."""
        assert self.hub is not None
        self._supervisors = {
            number: Supervisor(
                number, name, connect, self.hub, self._observer, self._models, self._patience, self._spare
            )
            for number, (name, connect) in enumerate(self._places)
        }
        first, *others = self._supervisors.values()
        hello = await first.open()
        self._keep(first)
        if others:
            self._tasks.append(asyncio.create_task(self._start_others(others)))
        if self._spare is not None:
            self._tasks.append(self._background.start("the supervisor of the spare engine", self._spare.keep))
        return hello

    async def _start_others(self, supervisors: list[Supervisor]) -> None:
        for supervisor in supervisors:
            self._keep(supervisor)
            await supervisor.tried.wait()

    def _keep(self, supervisor: Supervisor) -> None:
        start, name = self._background.start, supervisor.name
        self._tasks += [
            start(f"the supervisor of {name}", supervisor.keep_running),
            start(f"the watch over {name}", supervisor.end_if_hung),
        ]

    def send(self, engine: int, commands: list[api.AnyCommand]) -> None:
        self._supervisors[engine].send(commands)

    def give_up(self) -> None:
        """The server ends, and an engine does not do what it is told: all streams hear that theirs is gone,
        and no other is started."""
        self._end_tasks()
        for supervisor in self._supervisors.values():
            supervisor.give_up()

    async def stop(self) -> None:
        self._end_tasks()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        ends = [supervisor.close() for supervisor in self._supervisors.values()]
        await asyncio.gather(*ends, *([] if self._spare is None else [self._spare.close()]))

    def _end_tasks(self) -> None:
        for task in self._tasks:
            task.cancel()
