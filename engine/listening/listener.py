"""An engine that listens: its model is loaded once, and it computes for one gateway after the other.

What goes up and down is what goes through a pipe, once a gateway has shown the shared token. When it goes its
streams go with it, and the next one hears `Hello` when nothing is left of them. This knows gateways, and of
commands only which streams they begin; by what they come is their door's business.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import msgspec

from engine import api
from engine.listening.gateway import Gateway

log = logging.getLogger("engine")

LEAVE_S = 2.0  # for a gateway to take in that the engine ends


class DoorError(Exception):
    """It cannot be opened; the message says why."""


class Door(Protocol):
    """By which gateways come in."""

    @property
    def address(self) -> str:
        """As a gateway's options spell it."""

    async def open(self, listener: Listener) -> None:
        """Raises DoorError."""

    async def close(self) -> None:
        """Whoever is still connected is hung up on."""


class Listener:
    """For one engine, in a thread of its own. `send` gives that commands, from any thread. Without a token
    whoever can connect may join."""

    def __init__(
        self, door: Door, token: str, hello: api.Hello, send: Callable[[list[api.AnyCommand]], None]
    ) -> None:
        """When it returns, gateways may join. Raises DoorError."""
        self.token = token
        self.hello = msgspec.msgpack.encode(hello)
        self.streams = set[int]()  # that the engine knows, of whichever gateway
        self._send = send
        self._door = door
        self._gateway: Gateway | None = None
        self._ending = False  # soon: no gateway is waited for
        self._leaving = False
        self._left = asyncio.Event()
        self._opened = Future[None]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()
        self._opened.result()

    def emit(self, output: api.StepOutput) -> None:
        """A step's news, from the engine's thread, which waits while the gateway takes nothing."""
        gateway = self._gateway
        hears = gateway is not None and gateway.joined  # before the last of its streams is gone, or another's
        self.streams.difference_update(
            news.stream for news in output.news if news.finish is not None and not news.finish.held
        )
        if gateway is not None and hears:
            if not self._ending:
                gateway.writable.wait()
            gateway.queue.acquire()
            self._loop.call_soon_threadsafe(gateway.tell, msgspec.msgpack.encode(output))
        if not self.streams:
            self._loop.call_soon_threadsafe(self._welcome)

    def end_soon(self) -> None:
        """From any thread, or a signal's handler: the engine is told to end, and waits for nobody who takes
        nothing."""
        self._ending = True
        if (gateway := self._gateway) is not None:
            gateway.writable.set()

    def leave(self) -> None:
        """The engine ends, and nobody is to blame for it: so the gateway hears, if it listens."""
        self._loop.call_soon_threadsafe(self._leave)
        self._thread.join(LEAVE_S)

    # -- in the listener's thread ------------------------------------------------------------------

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        try:
            await self._door.open(self)
        except DoorError as error:
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        await self._left.wait()
        await self._door.close()

    def admit(self, gateway: Gateway) -> bool:
        """Whether it is the one that is computed for."""
        if self._gateway is not None:
            return False
        self._gateway = gateway
        log.info("a gateway has joined")
        if not self.streams:
            self._welcome()
        return True

    def take(self, commands: list[api.AnyCommand]) -> None:
        self.streams.update(command.stream for command in commands if isinstance(command, api.Submit))
        self._send(commands)

    def dismiss(self, gateway: Gateway) -> None:
        if self._gateway is gateway:
            self._gateway = None
            log.info("the gateway is gone, and its %d streams with it", len(self.streams))
            self._send([api.Cancel(stream) for stream in list(self.streams)])
            if self._leaving:
                self._left.set()

    def _welcome(self) -> None:
        """Nothing is left of the gateway before."""
        if self._gateway is not None and not self._gateway.joined:
            self._gateway.welcome()

    def _leave(self) -> None:
        self._leaving = True
        if self._gateway is None:
            self._left.set()
        else:
            self._gateway.leave()
