"""The supervisor of the engine: starts it, tells the hub what it serves, notices its end and starts another.

It knows that engines come and go, that a spare stands ready, and what the hub must be told then. It does not
know where an engine runs: `connect` makes a link to one, a process's or a thread's.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from engine import api
from engine.heap import trim_heap
from realtime.background_tasks import BackgroundTasks
from realtime.backoff import Backoff
from realtime.engines.watched_engine import Connect, EngineFailed, WatchedEngine
from realtime.hub.hub import Hub
from realtime.hub.observers import Observer
from realtime.text.chat_template import TextError
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer
from realtime.tools.spelling import AUTO

log = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 30.0
YOUNG_S = 1.0
START_SILENCE_S = 60.0  # libraries that are being loaded may keep all threads of a process waiting
SPARE_ANSWER_S = 5.0  # it has loaded them, and has nothing else to do than to answer


class Supervisor:
    """`silence_s`: an engine that says nothing for so long, although it is asked, has hung; while it starts
    it is given `start_silence_s`, and where a spare takes over, `spare_answer_s` for its first word. `spare`:
    whether another stands ready for when it dies."""

    def __init__(
        self,
        connect: Connect,
        observer: Observer,
        tasks: BackgroundTasks,
        *,
        silence_s: float,
        start_silence_s: float = START_SILENCE_S,
        spare_answer_s: float = SPARE_ANSWER_S,
        spare: bool = False,
        tool_format: str = AUTO,
    ) -> None:
        self.hub: Hub | None = None
        self._connect = connect
        self._observer = observer
        self._background = tasks
        self._silence_s = silence_s
        self._start_silence_s = start_silence_s
        self._spare_answer_s = spare_answer_s
        self._wants_spare = spare
        self._tool_format = tool_format
        self._engine: WatchedEngine | None = None
        self._spare: WatchedEngine | None = None
        self._up = asyncio.Event()
        self._backoff = Backoff(first_s=FIRST_WAIT_S, longest_s=LONGEST_WAIT_S)
        self._began_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> bool:
        return self.hub is not None and self.hub.engine_up

    async def start(self) -> api.Hello:
        """The first engine: whoever starts a server waits for it, and hears why if it cannot be."""
        hello = await self._open()
        start = self._background.start
        self._tasks = [
            start("the supervisor of the engine", self._keep_running),
            start("the watch over the engine", self._end_if_hung),
        ]
        if self._wants_spare:
            self._tasks.append(start("the supervisor of the spare engine", self._keep_spare))
        return hello

    def send(self, commands: list[api.AnyCommand]) -> None:
        if self._engine is not None:
            self._engine.send(commands)

    def give_up(self) -> None:
        """The server ends, and its engine does not do what it is told: its streams hear that it is gone, and
        no other is started."""
        for task in self._tasks:
            task.cancel()
        if self._engine is not None:
            self._engine.kill()
            self._engine.give_up()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(each.close() for each in (self._engine, self._spare) if each is not None))

    # -- the engine --------------------------------------------------------------------------------

    def _new_engine(self) -> WatchedEngine:
        return WatchedEngine(self._connect, self._receive_step, self._receive_close)

    async def _open(self) -> api.Hello:
        assert self.hub is not None
        self._engine = engine = self._take_spare() or self._new_engine()
        try:
            hello = await engine.open(answer_s=self._spare_answer_s, start_silence_s=self._start_silence_s)
            tokenizer = await asyncio.to_thread(_tokenizer, hello, self._tool_format)
            if engine.closed.is_set():
                raise EngineFailed("its process ended as soon as it was ready")
            self._observer.engine_ready(hello)
            model = ServedModel(
                hello.model,
                tokenizer,
                hello.vocab,
                hello.context,
                hello.fingerprint,
                hello.grammars,
                hello.exact,
                f"{hello.weights} by {hello.products}" if hello.weights else None,
            )
            self.hub.engine_ready(model)
        except BaseException:
            engine.give_up()
            raise
        self._began_s = asyncio.get_running_loop().time()
        self._up.set()
        return hello

    async def _keep_running(self) -> None:
        while True:
            assert self._engine is not None
            await self._engine.closed.wait()
            log.error("the engine has died; starting another")
            self._observer.engine_lost()
            await self._replace()

    async def _replace(self) -> None:
        assert self._engine is not None and self.hub is not None
        # One that died young, or before anybody moved on in it, may do so again: give it time.
        old = asyncio.get_running_loop().time() - self._began_s > YOUNG_S
        if well := self.hub.engine_proven and old:
            self._backoff.reset()
        wait_s = 0.0 if well else self._backoff.next_s()
        while True:
            # The next will look how much memory there is: what this one had is free once it is gone.
            await self._engine.close()
            await asyncio.sleep(wait_s)
            try:
                await self._open()
            except (EngineFailed, OSError) as error:
                log.error("the engine does not start: %s; trying again", error)
                wait_s = self._backoff.next_s()
            else:
                return

    async def _end_if_hung(self) -> None:
        while True:
            await self._up.wait()
            engine = self._engine
            assert engine is not None
            if not await engine.answers(self._silence_s):
                log.error("the engine has said nothing for %g s: it is ended", self._silence_s)
                engine.kill()
            await asyncio.sleep(self._silence_s / 2)

    # -- the spare ---------------------------------------------------------------------------------

    def _take_spare(self) -> WatchedEngine | None:
        spare, self._spare = self._spare, None
        return None if spare is None or spare.closed.is_set() else spare

    async def _keep_spare(self) -> None:
        """Behind an engine that is up another stands ready; one that cannot be prepared, or dies, is
        replaced, but not at once again and again."""
        backoff = Backoff(first_s=FIRST_WAIT_S, longest_s=LONGEST_WAIT_S)
        while True:
            await self._up.wait()
            try:
                died = await self._prepare_spare()
            except OSError as error:
                log.error("no spare engine can be prepared: %s; trying again", error)
            else:
                if died is None or died.prepared:
                    backoff.reset()
                if died is None:
                    continue
                log.warning("the spare engine has died; another is prepared")
            await asyncio.sleep(backoff.next_s())

    async def _prepare_spare(self) -> WatchedEngine | None:
        """Returns when it is a spare no more: the one that died as such, or nothing where it took over."""
        spare = self._spare
        if spare is None:
            spare = self._new_engine()
            await spare.prepare()
            self._spare = spare
        await spare.spent.wait()
        if not spare.closed.is_set() or self._engine is spare:
            return None
        self._spare = None
        await spare.close()
        return spare

    # -- what they say -----------------------------------------------------------------------------

    def _receive_step(self, output: api.StepOutput) -> None:
        assert self.hub is not None
        self.hub.receive_step(output)

    def _receive_close(self, engine: WatchedEngine) -> None:
        if engine is self._engine and self.ready:
            assert self.hub is not None
            self._up.clear()
            self.hub.engine_lost()


def _tokenizer(hello: api.Hello, tool_format: str) -> Tokenizer:
    try:
        return Tokenizer.load(Path(hello.folder), tool_format)
    except TextError as error:
        raise EngineFailed(str(error)) from None
    finally:
        trim_heap()  # to read it takes as much again as to have it
