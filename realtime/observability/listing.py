"""The listing of live streams: whose they are, how far they have come, what holds them up.

An observer that keeps hold of them and of how many tokens each had a moment ago. It tells numbers and names,
and never anybody's text. It knows no HTTP; the structs below are what is answered.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from engine import api
from midstream.protocol import PauseReason
from realtime.hub.observers import Observer, Route, StreamOrigin
from realtime.hub.placement import Placement
from realtime.observability.engine_totals import EngineTotals
from realtime.pieces import Pieces, batches
from realtime.stream.states import State
from realtime.stream.stream import Stream

STATES: tuple[State, ...] = ("queued", "running", "paused", "stalled")  # of those that live
NOTED_EVERY_S = 1.0
LOOKED_AT, TOLD = 512, 64  # streams in a piece of work, some two milliseconds


class Listed(Struct):
    """A stream. Tokens are those of its output that stand; `context_tokens` are all that it would have in
    the KV cache: prompt, injections and output."""

    request_id: str
    tenant: str
    model: str
    route: Route
    state: State
    paused: PauseReason | None
    age_s: float
    prompt_tokens: int
    tokens: int
    tokens_per_s: float
    credit: int
    context_tokens: int


class Totals(Struct):
    """The server, all tenants together. `models` are those that engines have served. The cache's tokens are
    those of whole blocks."""

    models: list[str]
    engine: bool
    connections: int
    batch_rows: int
    tokens_per_s: float
    kv_used_tokens: int
    kv_cached_tokens: int
    kv_free_tokens: int
    fleet: Placement | None  # where it is on many machines


class Listing(Struct):
    """`streams` are the youngest of `total`; `server` is there for whoever may see all."""

    streams: list[Listed]
    total: int
    states: dict[State, int]
    server: Totals | None


class Note(NamedTuple):
    at: float
    tokens: int


class TokenRate:
    """Tokens a second lately: since the note before the last."""

    def __init__(self, now: float) -> None:
        self._notes = Note(now, 0), Note(now, 0)

    def note(self, now: float, tokens: int) -> None:
        self._notes = self._notes[1], Note(now, tokens)

    def rate(self, now: float, tokens: int) -> float:
        before = self._notes[0]
        return round((tokens - before.tokens) / (now - before.at), 1) if now > before.at else 0.0


class TrackedStream(Struct):
    stream: Stream
    origin: StreamOrigin
    since: float
    rate: TokenRate

    def listed(self, now: float) -> Listed:
        stream, origin = self.stream, self.origin
        running = stream.state == "running"
        return Listed(
            request_id=stream.request_id,
            tenant=origin.tenant,
            model=origin.model,
            route=origin.route,
            state=stream.state,
            paused=stream.paused,
            age_s=round(now - self.since, 3),
            prompt_tokens=stream.prompt_tokens,
            tokens=len(stream.output),
            tokens_per_s=self.rate.rate(now, stream.counts.decoded) if running else 0.0,
            credit=max(0, stream.credit.limit - stream.outbox.sent),
            context_tokens=len(stream.context),
        )


class ListingObserver(Observer):
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tracked: dict[int, TrackedStream] = {}
        self._models: dict[str, None] = {}  # that were served
        self._kv_tokens: dict[int, int] = {}  # of engines that serve: that each holds
        self._counted = EngineTotals()
        self._rate = TokenRate(clock())
        self._noted = clock()
        self._placement: Placement | None = None

    # -- told by the hub and the supervisor ------------------------------------------------------

    def engine_ready(self, engine: int, hello: api.Hello) -> None:
        self._models[hello.model] = None
        self._counted.engine_ready(engine, hello)
        self._kv_tokens[engine] = hello.kv_tokens

    def engine_lost(self, engine: int, *, dismissed: bool = False) -> None:
        self._counted.engine_lost(engine)
        del self._kv_tokens[engine]

    def placed(self, placement: Placement) -> None:
        self._placement = placement

    def started(self, stream: Stream, origin: StreamOrigin, now: float) -> None:
        self._tracked[stream.number] = TrackedStream(stream, origin, now, TokenRate(now))

    def delivered(self, engine: int, output: api.StepOutput) -> None:
        if engine not in self._kv_tokens:
            return  # it has gone meanwhile
        self._counted.stepped(engine, output)
        now = self._clock()
        if now - self._noted >= NOTED_EVERY_S:
            self._noted = now
            self._rate.note(now, self._counted.of("tokens_total"))
            for one in self._tracked.values():
                one.rate.note(now, one.stream.counts.decoded)

    def moved(self, stream: Stream) -> None:
        del self._tracked[stream.number]

    def finished(self, stream: Stream, now: float) -> None:
        del self._tracked[stream.number]

    # -- asked -----------------------------------------------------------------------------------

    def of_tenant(self, tenant: str, *, most: int, state: State | None = None) -> Pieces[Listing]:
        tracked = [one for one in self._tracked.values() if one.origin.tenant == tenant]
        return self._listing(tracked, most, state)

    def of_all(self, *, most: int, state: State | None = None, connections: int) -> Pieces[Listing]:
        listing = yield from self._listing([*self._tracked.values()], most, state)
        busy = listing.states["queued"] + listing.states["running"] > 0
        return replace(listing, server=self._totals(connections, busy=busy))

    def _listing(self, tracked: list[TrackedStream], most: int, state: State | None) -> Pieces[Listing]:
        """There may be thousands: each is asked once for its state, and some end meanwhile."""
        states, chosen, streams = Counter[State](), list[TrackedStream](), list[Listed]()
        for some in batches(tracked, LOOKED_AT):
            for one in some:
                its = one.stream.state
                states[its] += 1
                if its == state or (state is None and its != "finished"):
                    chosen.append(one)
            yield
        for some in batches(reversed(chosen[-most:]), TOLD):
            streams += [one.listed(self._clock()) for one in some if not one.stream.ended]
            yield
        return Listing(
            streams=streams,
            total=len(chosen),
            states={name: states[name] for name in STATES},
            server=None,
        )

    def _totals(self, connections: int, *, busy: bool) -> Totals:
        used, cached, free = map(self._tokens, ("kv_used", "kv_cached", "kv_free"))
        return Totals(
            models=list(self._models),
            engine=bool(self._kv_tokens),
            connections=connections,
            batch_rows=self._counted.now("decode_rows") + self._counted.now("prefill_rows") if busy else 0,
            tokens_per_s=self._rate.rate(self._clock(), self._counted.of("tokens_total")) if busy else 0.0,
            kv_used_tokens=used,
            kv_cached_tokens=cached,
            kv_free_tokens=free,
            fleet=self._placement,
        )

    def _tokens(self, blocks: str) -> int:
        """In the blocks of all engines that are counted so."""
        tokens = 0
        for engine, stats in self._counted.latest.items():
            # One may hold its tokens' share of some layers alone.
            all_blocks = max(1, stats.kv_used + stats.kv_cached + stats.kv_free)
            tokens += getattr(stats, blocks) * self._kv_tokens[engine] // all_blocks
        return tokens
