"""A watched engine: one engine from outside, from its start to its end; what it has said, and whether it
still answers.

It knows its link and the messages that come up. It does not know streams, nor what is done when an engine
fails.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from engine import api

log = logging.getLogger(__name__)


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


News = api.StepOutput | api.Answer
OfItself = api.Starting | api.Prepared | api.Hello | api.Failed | api.Leaving
Hear = Callable[[list[api.AnyMessage]], None]  # what has come together
Connect = Callable[[Hear, Callable[[], None]], Link]


class WatchedEngine:
    """Once it is no engine any more, whatever the reason, nothing that it says is heard."""

    def __init__(self, connect: Connect) -> None:
        self.leaves = False  # whether it was told to end
        self.prepared = False  # whether it has loaded what any model needs, and waits
        self.closed = asyncio.Event()
        self.spent = asyncio.Event()  # opened, or closed: a spare no more
        self.failure: str | None = None  # why it cannot go on, where that was said
        self._on_news: Callable[[list[News]], None] | None = None
        self._on_closed: Callable[[WatchedEngine], None] | None = None
        self._spoke = asyncio.Event()
        self._hello: api.Hello | None = None
        self._link = connect(self._receive, self.give_up)

    async def prepare(self) -> None:
        await self._link.prepare()

    async def open(
        self,
        on_news: Callable[[list[News]], None],
        on_closed: Callable[[WatchedEngine], None],
        *,
        answer_s: float,
        start_silence_s: float,
    ) -> api.Hello:
        """Have it load its model. While it does it says so now and then; one that was prepared does at once,
        within `answer_s`. Raises EngineFailed. `on_closed` is told once that it is no engine any more."""
        self._on_news, self._on_closed = on_news, on_closed
        self.spent.set()
        await self._link.open()
        patience_s = answer_s if self.prepared else start_silence_s
        while self._hello is None and self.failure is None and not self.closed.is_set():
            if not await self._speaks(patience_s):
                self._link.kill()
                raise EngineFailed(f"it has said nothing for {patience_s:g} s while it started")
            patience_s = start_silence_s
        if self._hello is None:
            raise EngineFailed(self.failure or "its process ended before it was ready")
        return self._hello

    def send(self, commands: list[api.AnyCommand]) -> None:
        self._link.send(commands)

    async def answers(self, within_s: float) -> bool:
        """Whether it speaks. One with nothing to do says nothing by itself, but answers what it is sent, if
        only an empty list."""
        if await self._speaks(within_s / 2):
            return True
        self.send([])
        return await self._speaks(within_s / 2)

    def kill(self) -> None:
        self._link.kill()

    def give_up(self) -> None:
        """Nothing is expected of it any more."""
        if not self.closed.is_set():
            for event in (self.closed, self.spent, self._spoke):
                event.set()
            if self._on_closed is not None:
                self._on_closed(self)

    async def close(self) -> None:
        """Returns when it is gone, and its memory with it."""
        self.give_up()
        await self._link.close()

    async def _speaks(self, within_s: float) -> bool:
        self._spoke.clear()
        try:
            async with asyncio.timeout(within_s):
                await self._spoke.wait()
        except TimeoutError:
            return self.closed.is_set()
        return True

    def _receive(self, messages: list[api.AnyMessage]) -> None:
        if self.closed.is_set():
            return
        self._spoke.set()
        news: list[News] = []
        for message in messages:
            if isinstance(message, News):
                news.append(message)
            else:
                self._receive_of_itself(message)
        if news:
            assert self._on_news is not None, "nothing is computed before it is opened"
            self._on_news(news)

    def _receive_of_itself(self, message: OfItself) -> None:
        match message:
            case api.Starting():
                pass  # to be heard is all that it is for
            case api.Prepared():
                self.prepared = True
                if not self.spent.is_set():
                    log.info("a spare engine stands ready")
            case api.Hello():
                self._hello = message
            case api.Failed(message=why):
                self.failure = why
            case api.Leaving():
                self.leaves = True
