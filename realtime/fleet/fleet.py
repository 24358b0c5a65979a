"""The fleet: all engines of one gateway, each with its supervisor, and a spare behind them.

It knows where engines are to be had, and not what is said to them, nor for whom.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine import api
from realtime.background_tasks import BackgroundTasks
from realtime.fleet.served_models import ServedModels
from realtime.fleet.spare import LONGEST_WAIT_S, Spare
from realtime.fleet.supervisor import Patience, Supervisor
from realtime.fleet.watched_engine import Connect, WatchedEngine
from realtime.hub.hub import Hub
from realtime.hub.observers import Observer

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
RECONNECT_S = 2.0  # at most, until it is looked again whether an engine that is not ours is there


class PlaceError(Exception):
    """Where engines are, or how to come in, cannot be told; the message is a sentence."""


class EnginePlace(NamedTuple):
    """Where an engine is to be had."""

    name: str  # as the log is to say it, with its article
    connect: Connect
    ours: bool = True  # whether it is there because we start it


class Fleet:
    def __init__(
        self,
        places: Sequence[EnginePlace],
        observer: Observer,
        tasks: BackgroundTasks,
        *,
        patience: Patience,
        spare: bool = False,
        models: ServedModels | None = None,
    ) -> None:
        """`spare`: whether another engine stands ready for when one dies, wherever that is."""
        self.hub: Hub | None = None
        self._places = places
        self._observer = observer
        self._background = tasks
        self._patience = patience
        self._spare = Spare(lambda: WatchedEngine(places[0].connect)) if spare else None
        self._models = models or ServedModels()
        self._numbers = itertools.count()
        self._supervisors: dict[int, Supervisor] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}  # by whose they are
        self._first: asyncio.Future[api.Hello] | None = None

    async def start(self) -> api.Hello:
        """The first engine: whoever starts a server waits for it, and hears why if one of ours cannot be. Our
        others follow one by one, since each looks how much memory there is."""
        self._first = asyncio.get_running_loop().create_future()
        supervisors = [self._supervise(place) for place in self._places]
        if not self._places:
            log.warning("no engine is named yet")
        if not any(place.ours for place in self._places):
            for supervisor in supervisors:
                self._keep(supervisor)
            return await self._first
        first, *others = supervisors
        hello = await first.open()
        self._keep(first)
        if others:
            self._tasks["others"] = [asyncio.create_task(self._keep_one_by_one(others))]
        if self._spare is not None:
            keep = self._background.start("the supervisor of the spare engine", self._spare.keep)
            self._tasks["the spare"] = [keep]
        return hello

    def send(self, engine: int, commands: list[api.AnyCommand]) -> None:
        self._supervisors[engine].send(commands)

    async def follow(self, read: Callable[[], list[EnginePlace]]) -> None:
        """Engines that are not ours come and go, as `read` says."""
        told = ""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            try:
                await self.use(read())
            except PlaceError as problem:
                if str(problem) != told:
                    log.error("%s; the engines stay those that there are", problem)
                told = str(problem)
            else:
                told = ""

    async def use(self, places: Sequence[EnginePlace]) -> None:
        """These engines, and no others: the streams of those that are left go on at those that stay."""
        wanted = {place.name: place for place in places}
        had = {supervisor.name: number for number, supervisor in self._supervisors.items()}
        for name in wanted.keys() - had.keys():
            log.info("%s is used from now on", name)
            self._keep(self._supervise(wanted[name]))
        for name in had.keys() - wanted.keys():
            log.info("%s is used no more", name)
            self._end(self._tasks.pop(name))
            supervisor = self._supervisors[had[name]]
            supervisor.leave()
            await supervisor.close()
            del self._supervisors[had[name]]

    def give_up(self) -> None:
        """The server ends, and an engine does not do what it is told: all streams hear that theirs is gone,
        and no other is started."""
        self._end_all()
        for supervisor in self._supervisors.values():
            supervisor.give_up()

    async def stop(self) -> None:
        self._end_all()
        tasks = itertools.chain.from_iterable(self._tasks.values())
        await asyncio.gather(*tasks, return_exceptions=True)
        closing = [supervisor.close() for supervisor in self._supervisors.values()]
        if self._spare is not None:
            closing.append(self._spare.close())
        await asyncio.gather(*closing)

    def _supervise(self, place: EnginePlace) -> Supervisor:
        assert self.hub is not None
        number = next(self._numbers)
        self._supervisors[number] = supervisor = Supervisor(
            number,
            place.name,
            place.connect,
            self.hub,
            self._observer,
            self._models,
            self._patience,
            self._spare,
            self._note_up,
            LONGEST_WAIT_S if place.ours else RECONNECT_S,
        )
        return supervisor

    def _note_up(self, hello: api.Hello) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(hello)

    def _keep(self, supervisor: Supervisor) -> None:
        start, name = self._background.start, supervisor.name
        self._tasks[name] = [
            start(f"the supervisor of {name}", supervisor.keep_running),
            start(f"the watch over {name}", supervisor.end_if_hung),
        ]

    async def _keep_one_by_one(self, supervisors: list[Supervisor]) -> None:
        for supervisor in supervisors:
            self._keep(supervisor)
            await supervisor.tried.wait()

    def _end_all(self) -> None:
        for tasks in self._tasks.values():
            self._end(tasks)

    def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
