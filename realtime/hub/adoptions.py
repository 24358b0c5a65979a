"""The adoption of streams whose gateway is gone, or whose client has come here from there: engines are asked
for what nobody knows here, and what one has kept is built again.

An engine that keeps a stream has all that its gateway was told: the start, as a record that means nothing to
it, and a journal of the rest. Whoever asks for the stream has it from then on, and whoever had it hears so.
It knows neither sockets nor what frames say but for the start's.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from functools import partial
from operator import attrgetter
from typing import NamedTuple
from weakref import WeakValueDictionary

from engine import api
from midstream import protocol
from midstream.protocol import StreamFrame
from realtime.hub.frame_tokenizing import guards_length, start_digest
from realtime.hub.incoming_news import tokens_computed
from realtime.hub.keepers import Found, Keepers, Search, forget
from realtime.hub.keeping import Keeping
from realtime.hub.listener import Listener, Payer
from realtime.hub.long_texts import told
from realtime.hub.observers import Observer, StreamOrigin
from realtime.hub.rebuilt_stream import RebuiltStream, Telling
from realtime.hub.registry import LiveStream, StreamRegistry
from realtime.hub.ruled_turns import ruled
from realtime.hub.serving import Serving
from realtime.hub.slices import Slices
from realtime.hub.starting import tenant_number
from realtime.hub.stream_key import StreamKey, forked_by
from realtime.hub.stream_record import engine_key
from realtime.hub.tokenizing_pool import TokenizingPool
from realtime.refusal import Refusal
from realtime.stream.owner import Owner
from realtime.tenants.quota import Quotas

log = logging.getLogger(__name__)

SEARCH_S, ASK_S = 100e-6, 20e-6  # what a search costs us, and each engine that is asked
# Of the building of streams, half a millisecond each, or of what is begun since nobody has it: very many may
# be looked for at once.
PIECES_A_TURN = 8
AT_ONCE = 16  # of one payer's streams: as many MiB, where each is as long as may be kept
ASKED_AT_ONCE = 24  # of all payers': so much comes within the second in which engines are to answer


def another_content(key: StreamKey) -> Refusal:
    return Refusal(
        "request_conflict",
        f'Request "{key.request_id}" was started with other content: take another id.',
    )


class Turn(NamedTuple):
    """To do a piece of work for whoever pays."""

    payer: int
    begun: asyncio.Future[None]


class Adoptions:
    def __init__(
        self,
        registry: StreamRegistry,
        serving: Serving,
        quotas: Quotas,
        observer: Observer,
        clock: Callable[[], float],
        wall: Callable[[], float],
        numbers: Callable[[], int],
        live: Callable[[LiveStream, protocol.Start, float], None],
        keepers: Keepers,
        pool: TokenizingPool,
        *,
        window: int,
    ) -> None:
        """`wall`: the time that all gateways have. `numbers`: for streams. `live`: there is one more, that
        began so, may go on for so many seconds, and that nobody listens to."""
        self._registry = registry
        self._serving = serving
        self._quotas = quotas
        self._observer = observer
        self._clock = clock
        self._wall = wall
        self._next_number = numbers
        self._live = live
        self._keepers = keepers
        self._pool = pool
        self._window = window
        self._places = WeakValueDictionary[Payer, asyncio.Semaphore]()
        self._asking = asyncio.Semaphore(ASKED_AT_ONCE)
        self.closed = False  # whether nothing is taken over any more
        self._turns = Slices[Turn](
            _begin, most=PIECES_A_TURN, next_turn=_next_turn, owner=attrgetter("payer")
        )

    def may_be_found(self, key: StreamKey, frame: StreamFrame, listener: Listener) -> bool:
        """Whether a frame may be for a stream that is elsewhere, and may have it from whoever listens to it
        there."""
        if listener.gone or not listener.takes_over:
            return False
        match frame:
            case protocol.Start(on_disconnect="cancel"):
                return False
            case protocol.Start() if not self._may_have_begun(key, forked_by(key, frame)):
                return False
            case protocol.Start() | protocol.Attach():
                known = self._registry.by_key(key) is not None or self._registry.has_ended(key)
                return not known and (self._keepers.count > 0 or self._keepers.unsettled)
        return False

    def _may_have_begun(self, key: StreamKey, forked: StreamKey | None) -> bool:
        """And be elsewhere: a fork begins where the stream is that it forks. That may have come since, or the
        fork may have gone."""
        if forked is None or self._registry.is_elsewhere(key):
            return True
        stream = self._registry.known(forked, self._clock())
        return stream is not None and stream.outbox.epoch > 0

    async def find(self, key: StreamKey, frame: StreamFrame, listener: Listener) -> None:
        """If an engine has it, it is here when this returns. `settle` follows. Raises Refusal, where it
        cannot be built."""
        number = self._next_number()
        start = start_digest(frame) if isinstance(frame, protocol.Start) else None
        if start == b"":
            return  # which would be taken for any stream of its name; it is refused
        self._check_open()
        listener.owe(SEARCH_S + ASK_S * self._keepers.count)
        try:
            while True:
                async with self._place(listener):
                    async with self._asking:  # for as long as engines may take to answer, and no longer
                        if listener.gone:  # or it would be taken from whoever reads it by now
                            return
                        search = await self._keepers.search(number, engine_key(key), start)
                    if not search.is_claimed:
                        await self._take(key, number, search, listener, starts=start is not None)
                        return
                await self._keepers.settled(search)
        finally:
            self._keepers.close(number)
            self._serving.flush()

    def _place(self, listener: Listener) -> asyncio.Semaphore:
        """Of one payer's so many are looked for, and built, at a time, so that others' are asked for beside
        them. What engines answer is as long as what they keep: all at once would be more than an engine waits
        for us to take."""
        return self._places.setdefault(listener.payer, asyncio.Semaphore(AT_ONCE))

    async def _take(
        self, key: StreamKey, number: int, search: Search, listener: Listener, *, starts: bool
    ) -> None:
        """What was found, if anything was: it counts for its tenant here, though whoever asked is gone."""
        await self._turn(listener)  # whatever becomes of it: engines answer many in one
        found = search.latest
        for other in search.found:
            if other is not found:
                forget(other.engine, number)
        if found is not None:
            await self._build(key, number, search, found, listener, starts=starts)
        elif search.is_another:
            raise another_content(key)
        elif search.doubtful and not starts:
            raise Refusal(
                "overloaded",
                f'An engine that may have request "{key.request_id}" does not answer, or is being started.',
                retry_after_ms=1000,
            )

    def settle(self, key: StreamKey) -> None:
        """Who asks elsewhere for the same may know what came of it."""
        entry, begun = self._registry.by_key(key), None
        if entry is not None and entry.engine is not None and entry.stream.is_kept:
            begun = entry.stream.number, entry.engine
        self._keepers.settle(engine_key(key), begun, is_there=entry is not None)

    async def _build(
        self, key: StreamKey, number: int, search: Search, found: Found, listener: Listener, *, starts: bool
    ) -> None:
        """A mistake of ours, or of whoever kept it, ends the stream that it shows in, and no other. Where it
        is lost, whoever `starts` it begins it anew, as where nobody knows it."""
        try:
            await self._adopt(key, number, search, found, listener)
        except Refusal:
            found.engine.say(api.Disown(number))  # or nobody would, though it holds that engine's memory
            raise
        except Exception as error:  # noqa: BLE001 - what it says may quote the text: only its kind is logged
            log.error("a stream cannot be built from its journal: %s in %s", *told(error))
            forget(found.engine, number)
            if starts:
                return
            raise Refusal(
                "unknown_request",
                f'Request "{key.request_id}" is lost: the server that had it is gone, and it cannot be built'
                " again.",
            ) from None

    async def _adopt(
        self, key: StreamKey, number: int, search: Search, found: Found, listener: Listener
    ) -> None:
        engine, journal = found.engine, found.journal
        rebuilt = RebuiltStream(
            number,
            engine_key(key),
            journal,
            engine.model,
            owner=Owner(tenant_number(key.tenant), listener.payer.number),
            window=self._window,
            ahead_s=self._clock() - self._wall(),
        )
        await self._try_rules(key.tenant, rebuilt, listener)
        await self._tell(key.tenant, rebuilt, rebuilt.replay(), listener)
        stream, record = rebuilt.stream, rebuilt.record
        stream.take_in_vain()  # which was counted where it was asked for
        keep = api.Keep(
            engine_key(key),
            journal.record,
            record.grace_s,
            journal.moves,
            adoptions=journal.adoptions,
            start=record.digest,
        )
        keeping = Keeping(keep, self._wall, prompt_tokens=len(stream.context.prompt), adopted=journal)
        for news in found.late:  # more may come meanwhile
            keeping.hear(news)
            self._quotas.count(key.tenant, tokens_computed(news))
            await self._tell(key.tenant, rebuilt, rebuilt.receive(news, self._clock()), listener)
        if search.lost:
            raise Refusal("request_taken", f'Request "{key.request_id}" was attached to elsewhere meanwhile.')
        self._check_open()
        stream.adopt(engine, rebuilt.unsaid(), journal.credit, journal.adoptions, keeping)
        caller = listener.caller
        traceparent = record.start.traceparent
        origin = StreamOrigin(key.tenant, stream.model.name, caller.route, traceparent, caller.key)
        quota = self._quotas.take_over(key.tenant, 0 if rebuilt.has_begun else len(stream.context))
        entry = LiveStream(key, stream, record.digest, quota, engine)
        entry.count_waiting()
        self._registry.add(entry)
        self._observer.started(stream, origin, self._clock())
        engine.give(number, len(stream.context))
        engine.progressed((number,))
        self._live(entry, record.start, record.deadline - self._wall())
        if engine.is_lost:
            self._serving.lose(entry)  # which may end it

    def _check_open(self) -> None:
        """Whoever has handed over all that others can adopt, and cancelled the rest, would end what comes."""
        if self.closed:
            raise Refusal("draining", "The server is going away and takes nothing over.", retry_after_ms=1000)

    async def _try_rules(self, tenant: str, rebuilt: RebuiltStream, listener: Listener) -> None:
        """In its client's turn, as for a start."""
        if length := rebuilt.rules_length:
            tried = partial(self._pool.run, rebuilt.try_known_rules)
            await ruled(self._pool, tenant, listener, length, tried, lambda: True)

    async def _tell(self, tenant: str, rebuilt: RebuiltStream, telling: Telling, listener: Listener) -> None:
        """Whoever asked for a stream pays for building it, and others have their turn in between."""
        began_s = time.thread_time()
        for guards in telling:
            await listener.pay(time.thread_time() - began_s)
            if guards:  # as few in one turn as a frame has: others' texts wait for that
                async with self._pool.turn(tenant, listener, guards_length(guards)):
                    await self._pool.run(rebuilt.make_patterns, guards)
            await self._turn(listener)
            began_s = time.thread_time()
        await listener.pay(time.thread_time() - began_s)

    async def _turn(self, listener: Listener) -> None:
        await asyncio.sleep(0)  # also where nobody else has anything built
        begun = asyncio.get_running_loop().create_future()
        self._turns.add([Turn(listener.payer.number, begun)])
        await begun


def _begin(turns: Iterable[Turn]) -> None:
    for turn in turns:
        if not turn.begun.done():  # nobody waits for it any more
            turn.begun.set_result(None)


def _next_turn(work: Callable[[], None]) -> None:
    asyncio.get_running_loop().call_soon(work)
