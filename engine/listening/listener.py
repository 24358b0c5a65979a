"""An engine that listens: its model is loaded once, and it computes for all gateways that join.

What goes up and down is what goes through a pipe, once a gateway has shown the shared token. Each numbers its
streams as it likes, and knows nothing of the others': the engine's own numbers are given here. A gateway's
streams go when it goes. This knows gateways, and of commands only whose streams they are for; by what they
come is their door's business.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from engine import api
from engine.listening.gateway import Gateway

log = logging.getLogger("engine")

LEAVE_S = 2.0  # for gateways to take in that the engine ends
SAID_EVERY_S = 1.0  # that connections are refused: they may be very many


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


class Owner(NamedTuple):
    """Whose a stream is, and its number there."""

    gateway: Gateway
    number: int


class Listener:
    """For one engine, in a thread of its own. `send` gives that commands, from any thread. Without a token
    whoever can connect may join."""

    def __init__(
        self, door: Door, token: str, hello: api.Hello, send: Callable[[list[api.AnyCommand]], None]
    ) -> None:
        """When it returns, gateways may join. Raises DoorError."""
        self.token = token
        self.hello = msgspec.msgpack.encode(hello)
        self._send = send
        self._door = door
        self._gateways = dict[Gateway, None]()  # that have joined
        self._owners = dict[int, Owner]()  # of the streams that the engine knows, also of who is gone
        self._numbers = itertools.count()
        self._unsaid = 0  # connections that were refused
        self._silent_until_s = 0.0
        self._leaving = False
        self._left = asyncio.Event()
        self._opened = Future[None]()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="listener", daemon=True)
        self._thread.start()
        self._opened.result()

    def emit(self, output: api.StepOutput) -> None:
        """A step's news, from the engine's thread: to each gateway those of its streams. Nobody waits for one
        that takes nothing."""
        shares = {gateway: list[api.News]() for gateway in list(self._gateways)}
        for news in output.news:
            owner = self._owner(news)
            if owner is not None and owner.gateway in shares:
                news.stream = owner.number
                shares[owner.gateway].append(news)
        for gateway, share in shares.items():
            gateway.queue.acquire()
            told = msgspec.msgpack.encode(replace(output, news=share))
            self._loop.call_soon_threadsafe(gateway.tell, told)

    def _owner(self, news: api.News) -> Owner | None:
        """With its last news a stream is nobody's."""
        if news.finish is None or news.finish.held:
            return self._owners.get(news.stream)
        owner = self._owners.pop(news.stream, None)
        if owner is not None and owner.gateway.streams.get(owner.number) == news.stream:
            del owner.gateway.streams[owner.number]
        return owner

    def leave(self) -> None:
        """The engine ends, and nobody is to blame for it: so gateways hear, if they listen."""
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

    def admit(self, gateway: Gateway) -> None:
        self._gateways[gateway] = None
        log.info("a gateway has joined: there are %d", len(self._gateways))
        gateway.welcome()

    def note_refusal(self, why: str) -> None:
        self._unsaid += 1
        now = time.monotonic()
        if now >= self._silent_until_s:
            others = (
                f", and {self._unsaid - 1} others were since this was last said" if self._unsaid > 1 else ""
            )
            log.warning("a connection is refused: %s%s", why, others)
            self._unsaid, self._silent_until_s = 0, now + SAID_EVERY_S

    def take(self, gateway: Gateway, commands: list[api.AnyCommand]) -> None:
        said = list[api.AnyCommand]()
        for command in commands:
            if isinstance(command, api.TellBlocks):
                said.append(command)
                continue
            if isinstance(command, api.Submit):
                number = gateway.streams[command.stream] = next(self._numbers)
                self._owners[number] = Owner(gateway, command.stream)
            elif (known := gateway.streams.get(command.stream)) is not None:
                number = known
            else:
                continue  # it has ended, and that news is on its way
            said.append(replace(command, stream=number))
        self._send(said)

    def dismiss(self, gateway: Gateway) -> None:
        if gateway not in self._gateways:
            return
        del self._gateways[gateway]
        left = list(gateway.streams.values())
        log.info("a gateway is gone, and its %d streams with it", len(left))
        if left:
            self._send([api.Cancel(stream) for stream in left])
        if self._leaving and not self._gateways:
            self._left.set()

    def _leave(self) -> None:
        self._leaving = True
        if not self._gateways:
            self._left.set()
        for gateway in list(self._gateways):
            gateway.leave()
