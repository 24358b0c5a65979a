"""Links that lead nowhere, with engines that do what a test says; and an observer of those that are ready."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable

from engine import api, toy_model
from realtime.fleet.watched_engine import Hear
from realtime.hub.observers import Observer

HELLO = api.Hello(
    model="toy",
    folder=str(toy_model.FOLDER),
    vocab=toy_model.VOCAB,
    context=4096,
    eos=[toy_model.EOS],
    kv_tokens=4096,
    block=16,
    device="cpu",
    dtype="float32",
    attention="none",
)


class Link:
    """To an engine that says hello as soon as it is opened, and answers what it is sent; or, as `fault` says,
    `hangs`, `fails`, `breaks`, `cannot be prepared` or, hanging, `does not die`."""

    def __init__(
        self,
        hear: Hear,
        closed: Callable[[], None],
        tried: Callable[[Link], None],
        fault: str = "",
        hello: api.Hello = HELLO,
    ) -> None:
        self._hear = hear
        self.closed = closed
        self.fault = fault
        self.hello = hello
        self.tried = tried
        self.killed = False
        self.ended = asyncio.Event()
        self.gone = asyncio.Event()
        self.gone.set()

    def hear(self, message: api.AnyMessage) -> None:
        self._hear([message])

    async def prepare(self) -> None:
        self.tried(self)
        if self.fault == "cannot be prepared":
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.hear(api.Prepared())

    async def open(self) -> None:
        if self.fault == "breaks":
            raise ValueError("what nobody expects of a link")
        if self.fault == "fails":
            self.hear(api.Failed("it has no memory"))
        elif not self.fault:
            asyncio.get_running_loop().call_soon(self.hear, self.hello)

    def send(self, commands: list[api.AnyCommand]) -> None:
        if not self.fault:
            asyncio.get_running_loop().call_soon(self.hear, api.StepOutput(1, [], api.Stats()))

    def kill(self) -> None:
        self.killed = True
        if self.fault != "does not die":
            self.closed()

    async def close(self) -> None:
        await self.gone.wait()
        self.ended.set()


class Begun(Observer):
    def __init__(self) -> None:
        self.engines: asyncio.Queue[api.Hello] = asyncio.Queue()

    def engine_ready(self, engine: int, hello: api.Hello) -> None:
        self.engines.put_nowait(hello)
