"""Keeps an engine running: starts it, tells the hub what it serves, notices its end and starts another.

It knows that engines come and go, and what the hub must be told then. It does not know where an engine
runs: `connect` makes a link to one, a process's or a thread's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from engine import api
from realtime.hub import Hub
from realtime.metrics import Metrics
from realtime.prompts import Model
from realtime.template import TextError
from realtime.tokenizer import Tokenizer

log = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 30.0


class EngineFailed(Exception):
    """It cannot be started; the message is a sentence for whoever runs the server."""


class Link(Protocol):
    async def open(self) -> None: ...
    def send(self, commands: list[api.AnyCommand]) -> None: ...
    async def close(self) -> None: ...


Connect = Callable[[Callable[[api.AnyMessage], None], Callable[[], None]], Link]


class Supervisor:
    def __init__(self, connect: Connect, metrics: Metrics) -> None:
        self.hub: Hub | None = None
        self.hello: api.Hello | None = None
        self._connect = connect
        self._metrics = metrics
        self._link: Link | None = None
        self._closed = asyncio.Event()
        self._greeted: asyncio.Future[api.Hello] | None = None
        self._keeping: asyncio.Task[None] | None = None

    @property
    def ready(self) -> bool:
        return self.hub is not None and self.hub.up

    async def start(self) -> api.Hello:
        """The first engine: whoever starts a server waits for it, and hears why if it cannot be."""
        hello = await self._open()
        self._keeping = asyncio.get_running_loop().create_task(self._keep())
        return hello

    def send(self, commands: list[api.AnyCommand]) -> None:
        if self._link is not None:
            self._link.send(commands)

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        if self._link is not None:
            await self._link.close()

    async def _open(self) -> api.Hello:
        self._closed.clear()
        self._greeted = asyncio.get_running_loop().create_future()
        self._link = self._connect(self._hear, self._close)
        await self._link.open()
        hello = self.hello = await self._greeted
        tokenizer = await asyncio.to_thread(_tokenizer, hello)
        assert self.hub is not None
        self.hub.have_engine(Model(hello.model, tokenizer, hello.vocab, hello.context))
        return hello

    async def _keep(self) -> None:
        wait_s = FIRST_WAIT_S
        while True:
            await self._closed.wait()
            log.error("the engine has died; starting another")
            self._metrics.restarted()
            try:
                await self._open()
                wait_s = FIRST_WAIT_S
            except (EngineFailed, OSError) as error:
                log.error("the engine does not start: %s; trying again in %.2g s", error, wait_s)
                await asyncio.sleep(wait_s)
                wait_s = min(2 * wait_s, LONGEST_WAIT_S)
                self._closed.set()

    def _hear(self, message: api.AnyMessage) -> None:
        assert self.hub is not None and self._greeted is not None
        match message:
            case api.StepOutput():
                self.hub.hear(message)
            case api.Hello():
                self._greeted.set_result(message)
            case api.Failed(message=why):
                self._greeted.set_exception(EngineFailed(why))

    def _close(self) -> None:
        if self._greeted is not None and not self._greeted.done():
            self._greeted.set_exception(EngineFailed("its process ended before it was ready"))
        if self.hub is not None:
            self.hub.lose_engine()
        self._closed.set()


def _tokenizer(hello: api.Hello) -> Tokenizer:
    try:
        return Tokenizer.load(Path(hello.folder))
    except TextError as error:
        raise EngineFailed(str(error)) from None
