"""The engines that keep streams, asked for one by its name: all of them at once, each for as long as one that
is well may take. Whoever means to begin a stream that none has claims its name, at one that every gateway
would ask, so that of the same start at several gateways one begins the stream, and the others find it.

It knows names and numbers of streams, and neither their records nor whoever asks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import partial
from hashlib import blake2b
from weakref import WeakValueDictionary

from msgspec import Struct

from engine import api
from realtime.hub.serving import Serving
from realtime.hub.serving_engine import ServingEngine

log = logging.getLogger(__name__)

KeptAnswer = api.Adopted | api.Claimed | api.Kept | api.Moved

ANSWER_S = 1.0  # for an engine to answer: one that takes longer is asked nothing until it has
CLAIM_S = api.CLAIM_S + ANSWER_S  # for another gateway to settle its claim, or to be passed over
# When an engine has died or come again, for all gateways to give what it had to one that all have found: they
# look for engines every two seconds.
SETTLED_S = 3.0
SAID_EVERY_S = 1.0  # that an engine was waited for in vain: by a crowd, as one hangs


class Found(Struct, frozen=True):
    engine: ServingEngine
    journal: api.Journal
    late: list[api.News]  # that have come since


class Search:
    """What was found of a stream, and who has not answered."""

    def __init__(self, asked: list[ServingEngine], *, doubtful: bool) -> None:
        """`doubtful`: whether there is more to ask than these."""
        self.found: list[Found] = []
        self.answered = asyncio.Event()
        self.claimed_at: ServingEngine | None = None  # by another gateway
        self.settled = asyncio.Event()  # that claim
        self.lost = False  # to another gateway, since it was found
        self.is_another = False  # that was begun by another start
        self.silent = set(asked)
        self._doubtful = doubtful
        self._look()

    @property
    def latest(self) -> Found | None:
        """Of several the one that a client has come to last; and where a gateway that lost an engine had it
        begun anew elsewhere, that."""
        return max(self.found, key=lambda one: (one.journal.adoptions, one.journal.moves), default=None)

    @property
    def is_claimed(self) -> bool:
        """By another gateway, which is about to begin it."""
        return self.claimed_at is not None and not self.found

    @property
    def doubtful(self) -> bool:
        """Whether somebody who has not answered may have it."""
        return self._doubtful or bool(self.silent)

    def answer(self, engine: ServingEngine, journal: api.Journal | None) -> None:
        if journal is not None:
            self.found.append(Found(engine, journal, []))
        if engine is self.claimed_at:
            self.settled.set()
        self.silent.discard(engine)
        self._look()

    def claimed(self, engine: ServingEngine) -> None:
        self.claimed_at = engine
        self.silent.discard(engine)
        self._look()

    def engine_lost(self, engine: ServingEngine) -> None:
        if engine in self.silent or engine is self.claimed_at:
            self.answer(engine, None)

    def take_news(self, engine: ServingEngine, news: api.News) -> bool:
        found = next((found for found in self.found if found.engine is engine), None)
        if found is not None:
            found.late.append(news)
        return found is not None

    def moved(self, engine: ServingEngine) -> None:
        self.lost = self.lost or any(found.engine is engine for found in self.found)

    def _look(self) -> None:
        if not self.silent:
            self.answered.set()


def leave(engine: ServingEngine, number: int) -> None:
    """What it has waits there for whoever comes next."""
    engine.say(api.Disown(number))


def forget(engine: ServingEngine, number: int) -> None:
    """What it has ends, and is found by nobody any more: it would stand for what was begun in its place."""
    engine.say(api.Note(number, 0, b""))
    engine.say(api.Cancel(number))


class Late:
    """Engines that were waited for in vain, and have a stream of this name after all: what becomes of it once
    it is known whether it was begun anew meanwhile."""

    def __init__(self) -> None:
        self._then: Callable[[ServingEngine, int], None] | None = leave  # None while that is not known
        self._came: list[tuple[ServingEngine, int]] = []  # and were not told; what number it has there

    def came(self, engine: ServingEngine, number: int) -> None:
        self._came.append((engine, number))
        if self._then is not None:
            self.are_told(self._then)

    def are_told(self, then: Callable[[ServingEngine, int], None]) -> None:
        """From now on, and those that came before."""
        self._then = then
        for engine, number in self._came:
            then(engine, number)
        self._came.clear()

    def wait(self) -> None:
        """Who comes from now on; those that came before are asked again."""
        self.are_told(leave)
        self._then = None


class Claim(Struct):
    number: int
    at: dict[ServingEngine, None]  # nowhere, where all hang
    late: Late


class Keepers:
    def __init__(self, serving: Serving, clock: Callable[[], float]) -> None:
        self._serving = serving
        self._clock = clock
        self._settled_at: float | None = None  # since an engine was lost for the first time
        self._unsaid = 0  # searches that waited in vain
        self._silent_until_s = 0.0
        self._searches: dict[int, Search] = {}  # by the number that the stream is to have
        self._claims: dict[bytes, Claim] = {}  # by name
        self._late = WeakValueDictionary[bytes, Late]()  # by name, while somebody may be
        # By stream that its engine may not have:
        self._begun: dict[int, tuple[ServingEngine, bytes, Claim]] = {}

    @property
    def count(self) -> int:
        return sum(engine.keeps for engine in self._serving.engines.values())

    @property
    def unsettled(self) -> bool:
        """Whether a stream that no engine has may be with a gateway that lives, and waits for one."""
        at = self._settled_at
        return at is not None and (not self.count or self._clock() < at)

    async def search(self, number: int, name: bytes, start: bytes | None) -> Search:
        """It takes in news of what is found until `close`. `start`, as a digest: who searches begins what is
        not found, and `settle` follows; a stream that was begun by another stays where it is."""
        search = self._ask(number, name, start)
        if not await _within(ANSWER_S, search.answered):
            self._give_up(number, name, search)
        return search

    async def settled(self, search: Search) -> None:
        """Another gateway has what is claimed there, or is waited for no longer: it is searched for again."""
        await _within(CLAIM_S, search.settled)

    def close(self, number: int) -> None:
        self._searches.pop(number, None)

    def settle(self, name: bytes, begun: tuple[int, ServingEngine] | None, *, is_there: bool) -> None:
        """What was searched for `is_there` now, or will not be: an engine that has it after all keeps it
        then. `begun`: a stream that its engine is to keep, which others do not find before it does."""
        claim = self._claims.pop(name, None)
        if claim is None:
            return
        claim.late.are_told(forget if is_there else leave)
        if is_there:  # what is looked for from now on is no older
            self._late.pop(name, None)
        if begun is None or begun[0] == claim.number or claim.at.keys() <= {begun[1]}:
            self._settle(name, claim)
        else:
            self._begun[begun[0]] = (begun[1], name, claim)

    # -- from engines ----------------------------------------------------------------------------

    def receive(self, engine: ServingEngine, answer: KeptAnswer) -> None:
        number = answer.stream
        search = self._searches.get(number)
        match answer:
            case api.Kept():
                self._kept(number)
            case api.Moved():
                if search is not None:
                    search.moved(engine)
            case api.Claimed():
                engine.answered(number)
                if search is not None:
                    search.claimed(engine)
            case api.Adopted(journal=journal, another=another):
                late = engine.answered(number)
                if search is not None:
                    search.is_another = search.is_another or another
                if search is not None and (not search.answered.is_set() or engine is search.claimed_at):
                    search.answer(engine, journal)
                elif journal is not None and late is not None:  # nobody waits for it here any more
                    late()
                    self._serving.flush()

    def take_news(self, engine: ServingEngine, news: api.News) -> bool:
        """Of a stream that was found; whether it was."""
        search = self._searches.get(news.stream)
        return search is not None and search.take_news(engine, news)

    def engine_ready(self, engine: ServingEngine) -> None:
        if engine.keeps and self._settled_at is not None:
            self._settled_at = self._clock() + SETTLED_S

    def engine_lost(self, engine: ServingEngine) -> None:
        if engine.keeps:
            self._settled_at = self._clock() + SETTLED_S
        for search in self._searches.values():
            search.engine_lost(engine)
        for number in [number for number, (at, *_) in self._begun.items() if at is engine]:
            self._kept(number)

    # -- asking ----------------------------------------------------------------------------------

    def _ask(self, number: int, name: bytes, start: bytes | None) -> Search:
        asked = answering(self._serving)
        search = self._searches[number] = Search(asked, doubtful=self.unsettled or len(asked) < self.count)
        registrar = None if start is None else chosen(name, asked)
        if start is not None:
            claim = self._claims.setdefault(name, Claim(number, {}, self._late_of(name)))
            claim.late.wait()  # for `settle`
            if registrar is not None:
                claim.at[registrar] = None
        for engine in asked:
            engine.say(api.Adopt(number, name, engine is registrar, start or b""))
        self._serving.flush()
        return search

    def _late_of(self, name: bytes) -> Late:
        return self._late.setdefault(name, Late())

    def _give_up(self, number: int, name: bytes, search: Search) -> None:
        self._say_in_vain(len(search.silent))
        late = self._late_of(name)
        for engine in search.silent:
            engine.missed(number, partial(late.came, engine, number))
        search.answered.set()  # what was found is built now: whoever answers yet is told what was kept for it

    def _say_in_vain(self, engines: int) -> None:
        self._unsaid += 1
        if self._clock() < self._silent_until_s:
            return
        others = f", nor of {self._unsaid - 1} others since this was last said" if self._unsaid > 1 else ""
        log.warning(
            "%d engines have not said within %g s whether they keep a stream%s", engines, ANSWER_S, others
        )
        self._unsaid, self._silent_until_s = 0, self._clock() + SAID_EVERY_S

    def _kept(self, number: int) -> None:
        if number in self._begun:
            _, name, claim = self._begun.pop(number)
            self._settle(name, claim)

    def _settle(self, name: bytes, claim: Claim) -> None:
        for engine in claim.at:
            engine.say(api.Settle(claim.number, name))
        self._serving.flush()


def answering(serving: Serving) -> list[ServingEngine]:
    """Those that keep what outlives us, and do not hang."""
    return [engine for engine in serving.engines.values() if engine.keeps and not engine.hangs]


def chosen(name: bytes, engines: Iterable[ServingEngine]) -> ServingEngine | None:
    """The same by all gateways, whatever they call the engines (rendezvous hashing)."""
    return max(engines, key=lambda engine: _rank(name, engine), default=None)


def _rank(name: bytes, engine: ServingEngine) -> bytes:
    return blake2b(name + engine.keeper, digest_size=8).digest()


async def _within(most_s: float, event: asyncio.Event) -> bool:
    try:
        async with asyncio.timeout(most_s):
            await event.wait()
    except TimeoutError:
        return False
    return True
