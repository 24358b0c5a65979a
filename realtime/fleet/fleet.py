"""The fleet: all engines of one gateway, each with its supervisor, and a spare behind them.

It knows where engines are to be had, and not what is said to them, nor for whom.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from engine import api
from realtime.background_tasks import BackgroundTasks
from realtime.fleet.model_engines import ModelEngines, watched
from realtime.fleet.place import EnginePlace, PlaceError
from realtime.fleet.served_models import ServedModels
from realtime.fleet.spare import LONGEST_WAIT_S, Spare
from realtime.fleet.supervisor import Patience, Supervisor
from realtime.fleet.watched_engine import EngineFailed
from realtime.hub.hub import Hub
from realtime.hub.observers import Observer

log = logging.getLogger(__name__)

LOOK_EVERY_S = 1.0
RECONNECT_S = 2.0  # at most, until it is looked again whether an engine that is not ours is there


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
        keep_alive_s: Mapping[str, float] | None = None,
    ) -> None:
        """`spare`: whether another engine stands ready for when one of ours dies. `keep_alive_s`: for which
        models that come and go stay loaded when nobody wants them."""
        self.hub: Hub | None = None
        self._places = places
        self._observer = observer
        self._background = tasks
        self._patience = patience
        self._has_spare = spare
        self._keep_alive_s = keep_alive_s or {}
        self._own: dict[str, ModelEngines] = {}  # by model
        self._models = models or ServedModels()
        self._numbers = itertools.count()
        self._supervisors: dict[int, Supervisor] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}  # by whose they are
        self._first: asyncio.Future[api.Hello] | None = None

    async def start(self, *, waits: bool = True) -> api.Hello | None:
        """Whoever starts a server waits for the first engine, and hears why if one of ours cannot be; None
        where nothing is to be loaded before somebody wants it. `waits`: also for others' engines. Raises
        EngineFailed."""
        self._first = asyncio.get_running_loop().create_future()
        for place in self._places:
            if not place.ours:
                self._tasks[place.name] = watched(self._background, self._supervise(place))
        if not self._places:
            log.warning("no engine is named yet")
        self._own = self._own_models()
        if not self._own:
            return await self._first if waits else None
        try:
            return await self._load()
        except OSError as error:
            raise EngineFailed(f"the machine lacks what it takes: {error.strerror or error}") from None

    async def _load(self) -> api.Hello | None:
        """Those that are pinned, the first of them at once: our engines follow one by one, since each looks
        how much memory there is. What others are is read from their files, so that streams may wait for
        them."""
        assert self.hub is not None
        first = next((name for name, engines in self._own.items() if engines.pinned), None)
        for served in await self._models.outlined([name for name in self._own if name != first]):
            self.hub.models.serve(served)
        for known in self.hub.models:
            known.keeper = self._own.get(known.name)
        hello = None if first is None else await self._own[first].open()
        for name, engines in self._own.items():
            if engines.pinned:
                engines.want()
            whose = f' of "{name}"' if name else ""
            self._tasks[f"keeper {name}"] = [
                self._background.start(f"the keeper of the engines{whose}", engines.keep)
            ]
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
        own = {place.name for place in self._places if place.ours}
        had = {
            supervisor.name: number
            for number, supervisor in self._supervisors.items()
            if supervisor.name not in own
        }
        for name in wanted.keys() - had.keys():
            log.info("%s is used from now on", name)
            self._tasks[name] = watched(self._background, self._supervise(wanted[name]))
        for name in had.keys() - wanted.keys():
            log.info("%s is used no more", name)
            self._end(self._tasks.pop(name))
            supervisor = self._supervisors[had[name]]
            try:
                supervisor.leave()
            finally:  # or it would stand in its own way, were it named again
                del self._supervisors[had[name]]
                await supervisor.close()

    def give_up(self) -> None:
        """The server ends, and an engine does not do what it is told: all streams hear that theirs is gone,
        and no other is started."""
        self._end_all()
        for engines in self._own.values():
            engines.give_up()
        for supervisor in self._supervisors.values():
            supervisor.give_up()

    async def stop(self) -> None:
        self._end_all()
        tasks = itertools.chain.from_iterable(self._tasks.values())
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(engines.close() for engines in self._own.values()))
        await asyncio.gather(*(supervisor.close() for supervisor in self._supervisors.values()))

    def _own_models(self) -> dict[str, ModelEngines]:
        assert self.hub is not None
        turn, own = asyncio.Lock(), dict[str, ModelEngines]()
        for model in dict.fromkeys(place.model for place in self._places if place.ours):
            places = [place for place in self._places if place.ours and place.model == model]
            own[model] = ModelEngines(
                model,
                partial(self._supervise_all, places, [next(self._numbers) for _ in places]),
                self.hub,
                self._background,
                turn,
                keep_alive_s=self._keep_alive_s.get(model),
                spare=places[0].connect if self._has_spare else None,
            )
        return own

    def _supervise_all(
        self, places: list[EnginePlace], numbers: list[int], spare: Spare | None
    ) -> list[Supervisor]:
        """The engines of a model have the same numbers whenever it is loaded."""
        return [self._supervise(place, number, spare) for place, number in zip(places, numbers, strict=True)]

    def _supervise(
        self, place: EnginePlace, number: int | None = None, spare: Spare | None = None
    ) -> Supervisor:
        assert self.hub is not None
        number = next(self._numbers) if number is None else number
        self._supervisors[number] = supervisor = Supervisor(
            number,
            place.name,
            place.connect,
            self.hub,
            self._observer,
            self._models,
            self._patience,
            spare,
            self._note_up,
            LONGEST_WAIT_S if place.ours else RECONNECT_S,
        )
        return supervisor

    def _note_up(self, hello: api.Hello) -> None:
        if self._first is not None and not self._first.done():
            self._first.set_result(hello)

    def _end_all(self) -> None:
        for tasks in self._tasks.values():
            self._end(tasks)

    def _end(self, tasks: list[asyncio.Task[None]]) -> None:
        for task in tasks:
            task.cancel()
