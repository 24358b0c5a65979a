"""The supervisor of one engine: starts it, tells the hub what it serves, notices its end and starts another
in its place.

It knows that engines come and go, that a spare may stand ready, and what the hub must be told then. It does
not know where an engine runs: `connect` makes a link to one, a process's, a thread's or another machine's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import NamedTuple, cast

from engine import api
from realtime.backoff import Backoff
from realtime.fleet.long_start import LongStart
from realtime.fleet.served_models import ServedModels
from realtime.fleet.spare import FIRST_WAIT_S, Spare
from realtime.fleet.watched_engine import Connect, EngineFailed, News, WatchedEngine
from realtime.hub.hub import Hub
from realtime.hub.models import KnownModel
from realtime.hub.observers import Observer
from realtime.text.served_model import ServedModel

log = logging.getLogger(__name__)

YOUNG_S = 1.0
START_SILENCE_S = 60.0  # libraries that are being loaded may keep all threads of a process waiting
PREPARED_ANSWER_S = 5.0  # it has loaded them, and has nothing else to do than to answer


class Patience(NamedTuple):
    """An engine that says nothing for `silence_s`, although it is asked, has hung; while it starts it is
    given `start_s`, and where it was prepared, `answer_s` for its first word."""

    silence_s: float
    start_s: float = START_SILENCE_S
    answer_s: float = PREPARED_ANSWER_S


class Supervisor:
    def __init__(
        self,
        number: int,
        name: str,
        connect: Connect,
        hub: Hub,
        observer: Observer,
        models: ServedModels,
        patience: Patience,
        spare: Spare | None,
        on_up: Callable[[api.Hello], None],
        longest_wait_s: float,
    ) -> None:
        """`number`: by which the hub knows its engine. `name`: as the log is to say it, with its article."""
        self._number = number
        self.name = name
        self._connect = connect
        self._hub = hub
        self._observer = observer
        self._models = models
        self._patience = patience
        self._spare = spare
        self._on_up = on_up
        self._engine: WatchedEngine | None = None
        self.tried = asyncio.Event()  # whether it was opened, or could not be
        self._up = asyncio.Event()
        self._backoff = Backoff(first_s=FIRST_WAIT_S, longest_s=longest_wait_s)
        self._began_s = 0.0
        self._dismissed = False

    async def open(self) -> api.Hello:
        """Raises EngineFailed, or OSError, where it does not start."""
        spare = None if self._spare is None else self._spare.take()
        self._engine = engine = spare or WatchedEngine(self._connect)
        try:
            with LongStart(self.name):
                hello = await engine.open(
                    self._receive_news,
                    self._receive_close,
                    answer_s=self._patience.answer_s,
                    start_silence_s=self._patience.start_s,
                )
                model = await self._models.served(hello)
            _check_same(model, self._hub.models.named(model.name))
            if engine.closed.is_set():
                raise EngineFailed("its process ended as soon as it was ready")
            self._observer.engine_ready(self._number, hello)
            self._up.set()  # its end is told from here on, also where this fails
            self._hub.engine_ready(self._number, model, hello.block, keeper=hello.keeper)
        except BaseException:
            engine.give_up()
            raise
        finally:
            self.tried.set()
        log.info("%s is ready", self.name)
        self._began_s = asyncio.get_running_loop().time()
        self._on_up(hello)
        if self._spare is not None:
            self._spare.stand_behind()
        return hello

    async def keep_running(self) -> None:
        """For as long as the server runs; it may be open already."""
        while True:
            if self._engine is None:
                await self._open_in_the_end(0.0)
            assert self._engine is not None
            await (lost := self._engine).closed.wait()
            died = "has died" if lost.failure is None else f"has failed: {lost.failure}"
            how = "goes away" if lost.leaves else died
            log.error("%s %s; another is to take its place", self.name, how)
            await self._replace(lost)

    async def end_if_hung(self) -> None:
        while True:
            await self._up.wait()
            engine = self._engine
            assert engine is not None
            if not await engine.answers(self._patience.silence_s):
                log.error("%s has said nothing for %g s: it is ended", self.name, self._patience.silence_s)
                engine.kill()
                engine.give_up()  # what hangs in the system may not end, and its streams do not wait for that
            await asyncio.sleep(self._patience.silence_s / 2)

    def send(self, commands: list[api.AnyCommand]) -> None:
        if self._engine is not None:
            self._engine.send(commands)

    def leave(self) -> None:
        """Its engine is wanted no more: the streams go elsewhere, and none is to blame."""
        self._dismissed = True
        if self._engine is not None:
            self._engine.leaves = True
            self._engine.give_up()

    def give_up(self) -> None:
        """Its streams hear that it is gone."""
        if self._engine is not None:
            self._engine.kill()
            self._engine.give_up()

    async def close(self) -> None:
        if self._engine is not None:
            await self._engine.close()

    async def _replace(self, lost: WatchedEngine) -> None:
        # One that died young, or before anybody moved on in it, may do so again: give it time.
        old = asyncio.get_running_loop().time() - self._began_s > YOUNG_S
        if well := self._hub.serving.is_proven(self._number) and old:
            self._backoff.reset()
        wait_s = 0.0 if well else self._backoff.next_s()
        # The next will look how much memory there is: what this one had is free once it is gone.
        await lost.close()
        await self._open_in_the_end(wait_s)

    async def _open_in_the_end(self, wait_s: float) -> None:
        told = ""
        while True:
            await asyncio.sleep(wait_s)
            try:
                await self.open()
            except (EngineFailed, OSError) as error:
                if str(error) != told:
                    log.error("%s does not start: %s; trying again", self.name, error)
                told = str(error)
                wait_s = self._backoff.next_s()
                await self.close()
            else:
                return

    def _receive_news(self, news: list[News]) -> None:
        if not self._up.is_set():
            return  # it has been given nothing yet, and has no news
        for kind, some in groupby(news, type):
            if kind is api.StepOutput:
                self._hub.receive_steps(self._number, cast(list[api.StepOutput], list(some)))
            else:
                for answer in cast(Iterator[api.Answer], some):
                    self._hub.receive_answer(self._number, answer)

    def _receive_close(self, engine: WatchedEngine) -> None:
        if engine is self._engine and self._up.is_set():
            self._up.clear()
            try:  # before its streams are said to go elsewhere
                self._observer.engine_lost(self._number, dismissed=self._dismissed)
            finally:
                self._hub.engine_lost(self._number, blameless=engine.leaves)


def _check_same(model: ServedModel, known: KnownModel | None) -> None:
    """Streams may go from one engine to another."""
    other = None if known is None else known.served
    if other is not None and other.fingerprint is not None and model.context != other.context:
        raise EngineFailed(
            f'it serves "{model.name}" with a context of {model.context}, and others of this server with'
            f" {other.context}"
        )
