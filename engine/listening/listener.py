"""An engine that listens: its model is loaded once, and it computes for all gateways that join.

What goes up and down is what goes through a pipe, once a gateway has shown the shared token. Each numbers its
streams as it likes, and knows nothing of the others': the engine's own numbers are given here. A gateway's
streams go when it goes, but those that are kept wait for another to adopt them. This knows gateways, and of
commands only whose streams they are for; by what they come is their door's business.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import NamedTuple, Protocol

import msgspec
from msgspec.structs import replace

from engine import api
from engine.deposits import Deposits
from engine.listening import limits
from engine.listening.announcements import Announcements
from engine.listening.claims import Claim, Claims
from engine.listening.gateway import Gateway
from engine.listening.kept_streams import KeptStream, KeptStreams

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
    """Whose a stream is, if it is anybody's, and its number there."""

    gateway: Gateway | None
    number: int
    kept: KeptStream[Gateway] | None = None


class Listener:
    """For one engine, in a thread of its own. `send` gives that commands, from any thread. Without a token
    whoever can connect may join."""

    def __init__(
        self, door: Door, token: str, hello: api.Hello, send: Callable[[list[api.AnyCommand]], None]
    ) -> None:
        """When it returns, gateways may join. Raises DoorError."""
        self.token = token
        self.hello = msgspec.msgpack.encode(replace(hello, keeper=secrets.token_bytes(8)))
        self._send = send
        self._door = door
        self._gateways = dict[Gateway, None]()  # that have joined
        # A stream's news are told and kept in one moment, or adopted in one: both threads change these.
        self._lock = threading.Lock()
        self._owners = dict[int, Owner]()  # of the streams that the engine knows, also of who is gone
        self._kept = KeptStreams[Gateway](time.monotonic)
        self._claims = Claims[Gateway]()
        self._deposits = Deposits()
        self._numbers = itertools.count()
        self._announcements = Announcements[Gateway]()
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
        with self._lock:
            shares: dict[Gateway, list[api.News]] = {gateway: [] for gateway in list(self._gateways)}
            for news in output.news:
                owner = self._owner(news)
                if owner is None:
                    continue
                if owner.kept is not None:
                    self._kept.tell(owner.kept, news, time.time())
                if owner.gateway is not None and owner.gateway in shares:
                    news.stream = owner.number
                    shares[owner.gateway].append(news)
            self._tell_given_up()
        for gateway, share in shares.items():
            gateway.queue.acquire()
            told = msgspec.msgpack.encode(replace(output, news=share))
            self._loop.call_soon_threadsafe(gateway.tell, told)

    def _owner(self, news: api.News) -> Owner | None:
        """With its last news a stream is nobody's."""
        if news.finish is None or news.finish.held:
            return self._owners.get(news.stream)
        owner = self._owners.pop(news.stream, None)
        if owner is not None and owner.gateway and owner.gateway.streams.get(owner.number) == news.stream:
            del owner.gateway.streams[owner.number]
            if owner.kept is not None:
                owner.gateway.ended[owner.number] = owner.kept
        return owner

    def _tell_given_up(self) -> None:
        """From either thread: whose streams can be adopted no more is not to leave them to others."""
        for kept in self._kept.take_given_up():
            owner = None if kept.number is None else self._owners.get(kept.number)
            if owner is not None and owner.gateway is not None:
                self._loop.call_soon_threadsafe(owner.gateway.answer, api.Kept(owner.number, whole=False))

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
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where it is waited for
            self._opened.set_exception(error)
            return
        self._opened.set_result(None)
        await self._left.wait()
        await self._door.close()

    def admit(self, gateway: Gateway) -> None:
        self._gateways[gateway] = None
        log.info("a gateway has joined: there are %d", len(self._gateways))
        gateway.welcome()

    def note_refusal(self, whence: str, why: str) -> None:
        self._unsaid += 1
        now = time.monotonic()
        if now >= self._silent_until_s:
            others = (
                f", and {self._unsaid - 1} others were since this was last said" if self._unsaid > 1 else ""
            )
            log.warning("a connection%s is refused: %s%s", whence, why, others)
            self._unsaid, self._silent_until_s = 0, now + SAID_EVERY_S

    def take(self, gateway: Gateway, commands: list[api.AnyCommand]) -> None:
        said: list[api.AnyCommand] = []
        try:
            with self._lock:
                for command in commands:
                    said += self._for_engine(gateway, command)
                self._tell_given_up()
        finally:  # what came before one that cannot be taken is known here, and is to be there
            if said or not commands:  # nothing at all asks whether the engine lives
                self._send(said)

    def _for_engine(self, gateway: Gateway, command: api.AnyCommand) -> list[api.AnyCommand]:
        """What the engine is told of it, by its own numbers."""
        match command:
            case api.TellBlocks():
                return [command]
            case api.Submit(stream=stream) if stream in gateway.streams:
                gateway.refuse_number(stream)
                return []
            case api.Submit():
                return self._submit(gateway, command)
            case api.Adopt() | api.Settle() | api.Deposit() | api.Collect() | api.Announce():
                self._do_here(gateway, command)
                return []
            case api.Disown(stream=stream):
                number = gateway.streams.pop(stream, None)
                return [] if number is None or self._let_wait(number) else [api.Cancel(number)]
        number = gateway.streams.get(command.stream)
        kept = gateway.ended.get(command.stream) if number is None else self._owners[number].kept
        if kept is not None and isinstance(command, api.Note):
            self._kept.note(kept, command, time.time())
        elif kept is not None:
            self._kept.take(kept, command)
        if number is None or isinstance(command, api.Note):
            return []  # where it has ended, that news is on its way
        return [replace(command, stream=number)]

    def _submit(self, gateway: Gateway, submit: api.Submit) -> list[api.AnyCommand]:
        number = next(self._numbers)
        kept, before = None, list[api.AnyCommand]()
        if (keep := submit.keep) is not None:
            former = self._kept.find(keep.key)
            if former is not None and former.owner is not gateway and former.journal.is_ahead_of(keep):
                gateway.answer(api.Moved(submit.stream))  # it was away, and its stream is another's by now
                return []
            if former is not None and former.is_orphan and former.number is not None:
                before.append(api.Cancel(former.number))  # its gateway has come again, and begins it anew
            kept = self._kept.begin(submit, keep, gateway, number, time.time())
            if keep.record:
                gateway.answer(api.Kept(submit.stream))
        gateway.streams[submit.stream] = number
        self._owners[number] = Owner(gateway, submit.stream, kept)
        return [*before, replace(submit, stream=number, keep=None)]

    def _do_here(
        self,
        gateway: Gateway,
        command: api.Adopt | api.Settle | api.Deposit | api.Collect | api.Announce,
    ) -> None:
        match command:
            case api.Adopt():
                self._ask(gateway, command)
            case api.Settle(stream=stream, key=key):
                self._next(self._claims.settle(key, Claim(gateway, stream)))
            case api.Deposit(stream=stream, name=name, what=what, for_s=for_s, tenant=tenant):
                kept = self._deposits.leave(name, what, for_s, time.monotonic(), tenant)
                gateway.answer(api.Deposited(stream, kept))
            case api.Collect(stream=stream, name=name):
                gateway.answer(api.Collected(stream, self._deposits.collect(name, time.monotonic())))
            case api.Announce(what=what):
                for other, told in self._announcements.make(gateway, what):
                    other.answer(told)

    def _ask(self, gateway: Gateway, adopt: api.Adopt) -> None:
        if adopt.claims:
            claim = Claim(gateway, adopt.stream)
            holder = self._claims.make(adopt.key, claim)
            if holder != claim:
                gateway.answer(api.Claimed(adopt.stream))
                self._loop.call_later(api.CLAIM_S, self._pass_over, adopt.key, holder)
                return
        self._adopt(gateway, adopt.stream, adopt.key, adopt.start)

    def _pass_over(self, key: bytes, claim: Claim[Gateway]) -> None:
        """Who has not settled it in all this time, others have waited for."""
        with self._lock:
            self._next(self._claims.settle(key, claim))

    def _next(self, claim: Claim[Gateway] | None) -> None:
        """It is told so, and given nothing: whoever it asked for may have gone, and be read elsewhere."""
        if claim is not None:
            claim.gateway.answer(api.Adopted(claim.stream))

    def _adopt(self, gateway: Gateway, number: int, key: bytes, start: bytes) -> None:
        """Whoever asks for it has it from now on, if it can be built again."""
        kept = self._kept.find(key)
        if kept is None:
            gateway.answer(api.Adopted(number))
            return
        if start and kept.journal.keep.start not in (b"", start):
            gateway.answer(api.Adopted(number, another=True))
            return
        if gateway.streams.get(number, kept.number) != kept.number:
            gateway.refuse_number(number)
            return
        if kept.journal.whole:
            former = kept.owner
            kept.belong_to(gateway)
            if former is not gateway:
                kept.journal.adoptions += 1
            if kept.number is not None:
                left = self._owners[kept.number].number
                self._owners[kept.number] = Owner(gateway, number, kept)
                gateway.streams[number] = kept.number
                moves = (former, left) != (gateway, number)  # it may ask twice
                if former is not None and moves and former.streams.pop(left, None) is not None:
                    former.answer(api.Moved(left))
            else:
                gateway.ended[number] = kept
        gateway.answer(api.Adopted(number, kept.journal.told()))

    def dismiss(self, gateway: Gateway) -> None:
        if gateway not in self._gateways:
            return
        with self._lock:
            del self._gateways[gateway]
            left = list(gateway.streams.values())
            orphans = [number for number in left if self._let_wait(number)]
            for claim in self._claims.leave(gateway):
                self._next(claim)
        for other, told in self._announcements.leave(gateway):
            other.answer(told)
        log.info(
            "a gateway is gone, and %d of its streams with it: %d wait for another",
            len(left) - len(orphans),
            len(orphans),
        )
        waiting = set(orphans)
        gone: list[api.AnyCommand] = [api.Cancel(number) for number in left if number not in waiting]
        if gone:
            self._send(gone)
        if self._leaving and not self._gateways:
            self._left.set()

    def _let_wait(self, number: int) -> bool:
        """For another gateway, if one can adopt it."""
        owner = self._owners[number]
        kept = owner.kept
        if kept is None or not kept.journal.whole:
            return False
        self._owners[number] = owner._replace(gateway=None)
        grace_s = min(kept.journal.keep.grace_s, limits.MOST_GRACE_S)
        kept.wait(self._loop.call_later(grace_s, self._abandon, kept))
        return True

    def _abandon(self, kept: KeptStream[Gateway]) -> None:
        """Nobody has come for it."""
        with self._lock:
            self._kept.drop(kept)
            number = kept.number
        if number is not None:
            self._send([api.Cancel(number)])

    def _leave(self) -> None:
        self._leaving = True
        if not self._gateways:
            self._left.set()
        for gateway in list(self._gateways):
            gateway.leave()
