"""The supervisor of the engine: starts it, tells the hub what it serves, notices its end and starts another.

It knows that engines come and go, and what the hub must be told then. It does not know where an engine
runs: `connect` makes a link to one, a process's or a thread's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from engine import api
from realtime.hub.hub import Hub
from realtime.hub.observers import Observer
from realtime.text.chat_template import TextError
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer

log = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.25, 30.0
YOUNG_S = 1.0
START_SILENCE_S = 60.0  # libraries that are being loaded may keep all threads of a process waiting


class EngineFailed(Exception):
    """It cannot be started; the message is a sentence for whoever runs the server."""


class Link(Protocol):
    async def prepare(self) -> None:
        """Do whatever of opening can be done before there is need of it."""

    async def open(self) -> None: ...
    def send(self, commands: list[api.AnyCommand]) -> None: ...
    def kill(self) -> None:
        """End an engine that does not listen any more."""

    async def close(self) -> None: ...


Connect = Callable[[Callable[[api.AnyMessage], None], Callable[[], None]], Link]


class Supervisor:
    """`silence_s`: an engine that says nothing for so long, although it is asked, has hung; while it starts
    it is given `start_silence_s`. `spare`: whether another stands ready for when it dies."""

    def __init__(
        self,
        connect: Connect,
        observer: Observer,
        *,
        silence_s: float,
        start_silence_s: float = START_SILENCE_S,
        spare: bool = False,
    ) -> None:
        self.hub: Hub | None = None
        self.hello: api.Hello | None = None
        self._connect = connect
        self._observer = observer
        self._silence_s = silence_s
        self._start_silence_s = start_silence_s
        self._wants_spare = spare
        self._link: Link | None = None
        self._spare: Link | None = None
        self._closed = asyncio.Event()
        self._message_received = asyncio.Event()
        self._hello_received: asyncio.Future[api.Hello] | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def ready(self) -> bool:
        return self.hub is not None and self.hub.engine_up

    async def start(self) -> api.Hello:
        """The first engine: whoever starts a server waits for it, and hears why if it cannot be."""
        self._tasks.append(asyncio.get_running_loop().create_task(self._end_if_hung()))
        hello = await self._open()
        self._tasks.append(asyncio.get_running_loop().create_task(self._keep_running()))
        return hello

    def send(self, commands: list[api.AnyCommand]) -> None:
        if self._link is not None:
            self._link.send(commands)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*(link.close() for link in (self._link, self._spare) if link is not None))

    async def _open(self) -> api.Hello:
        self._closed.clear()
        self._hello_received = asyncio.get_running_loop().create_future()
        self._link, self._spare = (
            self._spare or self._connect(self._receive_message, self._receive_close),
            None,
        )
        await self._link.open()
        hello = self.hello = await self._hello_received
        tokenizer = await asyncio.to_thread(_tokenizer, hello)
        assert self.hub is not None
        self._observer.engine_ready(hello)
        self.hub.engine_ready(ServedModel(hello.model, tokenizer, hello.vocab, hello.context))
        return hello

    async def _keep_running(self) -> None:
        loop, wait_s = asyncio.get_running_loop(), 0.0
        while True:
            began_s = loop.time()
            await self._prepare_spare()
            await self._closed.wait()
            log.error("the engine has died; starting another")
            self._observer.engine_lost()
            assert self.hub is not None and self._link is not None
            # The next will look how much memory there is: what this one had is free once it is gone.
            await self._link.close()
            # One that died young, or before anybody moved on in it, may do so again: give it time.
            well = self.hub.engine_proven and loop.time() - began_s > YOUNG_S
            wait_s = 0.0 if well else min(max(FIRST_WAIT_S, 2 * wait_s), LONGEST_WAIT_S)
            await asyncio.sleep(wait_s)
            try:
                await self._open()
            except (EngineFailed, OSError) as error:
                log.error("the engine does not start: %s; trying again", error)
                self._closed.set()

    async def _prepare_spare(self) -> None:
        if self._wants_spare and self._spare is None:
            self._spare = self._connect(self._receive_message, self._receive_close)
            await self._spare.prepare()

    async def _end_if_hung(self) -> None:
        """End an engine that has hung. While it starts it says so now and then; later one with nothing to do
        says nothing, but answers what it is sent, if only an empty list."""
        while True:
            watched = self._awaited_link
            patience_s = (self._silence_s if self.ready else self._start_silence_s) / 2
            self._message_received.clear()
            if await _happens(self._message_received, patience_s):
                await asyncio.sleep(self._silence_s / 2)
            elif watched is not None and watched == self._awaited_link:
                if self.ready:
                    self.send([])
                if not await _happens(self._message_received, patience_s) and watched == self._awaited_link:
                    log.error("the engine has said nothing for %g s: it is ended", 2 * patience_s)
                    watched[0].kill()

    @property
    def _awaited_link(self) -> tuple[Link, bool] | None:
        """From whom a word is awaited, and whether it is ready. Between its first word and that it is we
        ourselves who are busy."""
        starting = self._hello_received is not None and not self._hello_received.done()
        if self._link is None or self._closed.is_set() or not (self.ready or starting):
            return None
        return self._link, self.ready

    def _receive_message(self, message: api.AnyMessage) -> None:
        assert self.hub is not None and self._hello_received is not None
        self._message_received.set()
        match message:
            case api.Starting():
                pass  # to be heard is all that it is for
            case api.StepOutput():
                self.hub.receive_step(message)
            case api.Hello():
                self._hello_received.set_result(message)
            case api.Failed(message=why):
                self._hello_received.set_exception(EngineFailed(why))

    def _receive_close(self) -> None:
        if self._hello_received is not None and not self._hello_received.done():
            self._hello_received.set_exception(EngineFailed("its process ended before it was ready"))
        if self.hub is not None:
            self.hub.engine_lost()
        self._closed.set()


def _tokenizer(hello: api.Hello) -> Tokenizer:
    try:
        return Tokenizer.load(Path(hello.folder))
    except TextError as error:
        raise EngineFailed(str(error)) from None


async def _happens(event: asyncio.Event, within_s: float) -> bool:
    with suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await event.wait()
    return event.is_set()
