"""The submission of the streams of one model to its engines: to which one each goes, all at once where many
have lost theirs, a slice in each turn of the event loop, or group by group where one of them may be what
killed the last.

It knows streams by their numbers, and asks the registry for them. What an engine says of them is not heard
here, nor is a clock looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import tee
from random import Random
from typing import NamedTuple

from engine.block_digests import digests, salt
from realtime.hub import router
from realtime.hub.engine_recovery import EngineRecovery
from realtime.hub.observers import Observer
from realtime.hub.registry import LiveStream, StreamRegistry
from realtime.hub.serving_engine import ServingEngine
from realtime.hub.slices import Slices
from realtime.hub.untaken import Untaken
from realtime.stream.context import Context
from realtime.stream.stream import Stream

# To a new engine in one go, a few milliseconds' work: tokens, as which a stream counts that has few.
SUBMIT_TOKENS, STREAM_TOKENS = 50_000, 500
HISTORY_BYTES = 4  # that a stream takes along for whoever adopts it, as a token

PLACED_A_TURN = 256  # streams
LOOKED_FOR = 128  # tokens of a context, which engines may hold, and that weigh as a stream more
MOST_LOOKED_FOR = 4096  # of them

NAMED = 256  # blocks of a context that are looked for, from its beginning on
REPLACEMENT_S = 10.0  # for which suspects wait for an engine of their own, where others run


class Given(NamedTuple):
    engine: ServingEngine
    number: int  # of a stream


class Submission:
    def __init__(
        self,
        model: str,
        registry: StreamRegistry,
        observer: Observer,
        call_later: Callable[[float, Callable[[], None]], object],
        submit: Callable[[LiveStream, ServingEngine, bool], None],
        tell_lost: Callable[[list[LiveStream]], None],
        flush: Callable[[], None],
    ) -> None:
        """`submit` has a stream say what its engine must know of it, and whether it yields to those who are
        there; `tell_lost` tells those that have lost theirs; `flush` sends what was said."""
        self._model = model
        self._registry = registry
        self._engines: dict[int, ServingEngine] = {}  # that are there now
        self._observer = observer
        self._call_later = call_later
        self._submit_one = submit
        self._tell_lost = tell_lost
        self._flush = flush
        self._recovery = EngineRecovery()
        self._suspicious = False  # when it was last looked
        self.drains = False  # whether nobody is to come to its engines any more
        self._chance = Random()
        next_turn = partial(call_later, 0)
        self._placing = Slices(self._place, most=PLACED_A_TURN, next_turn=next_turn, weight=_weight_of_place)
        self._slices = Slices(self._submit, most=SUBMIT_TOKENS, next_turn=next_turn, weight=self._weight)

    def proven(self, engine: int) -> bool:
        """Whether everybody whom the engine was given moved on in it."""
        return self._recovery.proven(engine)

    @property
    def takes_starts(self) -> bool:
        """Whether there is an engine, and no doubt about which stream killed the last."""
        return any(map(self._recovery.takes_starts, self._engines))

    def _admits(self, engine: ServingEngine) -> bool:
        """Whether others may come to it."""
        return not self.drains and self._recovery.takes_starts(engine.number)

    def choose(self, context: Context, tenant: int, fingerprint: str | None = None) -> ServingEngine | None:
        """The engine for a stream. One that has lost another goes on with the very same tokens where the
        `fingerprint` is the same."""
        free = [each for each in self._engines.values() if self._admits(each)]
        free = [each for each in free if not self._recovery.is_apart(each.number)] or free
        free = [each for each in free if not each.hangs] or free
        equal = [each for each in free if each.fingerprint == fingerprint] or free
        if len(equal) < 2:
            return equal[0] if equal else None
        # As many are made as the one that holds most of them is asked for, once for all.
        chains = {
            block: iter(tee(_names(context, tenant, block), len(equal)))
            for block in {each.block for each in equal}
        }
        choices = [each.choice(next(chains[each.block])) for each in equal]
        return router.choose(choices, len(context), self._chance)

    def started(self, entry: LiveStream) -> None:
        """A stream begins. Where there are other engines, it is watched from the start."""
        engine = entry.engine
        if engine is None:
            return  # it waits for its model
        _give_work(engine, entry.stream)
        if len(self._engines) > 1 and entry.stream.needs_compute:
            self._recovery.given(engine.number, [entry.stream.number])

    @property
    def serves(self) -> bool:
        """Whether there is an engine."""
        return bool(self._engines)

    @property
    def wanted(self) -> bool:
        """Whether some stream needs an engine."""
        return any(entry.stream.needs_engine for entry in self._entries)

    @property
    def computes(self) -> bool:
        """Whether some stream needs the engine that it has."""
        return any(entry.engine is not None and entry.stream.needs_engine for entry in self._entries)

    @property
    def waiting(self) -> list[LiveStream]:
        """Those that need an engine, and have none."""
        return [entry for entry in self._entries if entry.engine is None and entry.stream.needs_engine]

    @property
    def _entries(self) -> list[LiveStream]:
        """The streams of this model."""
        return [entry for entry in self._registry.entries if entry.stream.model.name == self._model]

    def engine_lost(
        self, engine: ServingEngine, untaken: Callable[[], Untaken], *, blameless: bool
    ) -> int | None:
        """Returns the stream that is known to be what kills engines, if one is. `untaken`: of what it has
        said; `blameless`: it was told to end."""
        del self._engines[engine.number]
        culprit = None
        if blameless:
            self._recovery.engine_left(engine.number)
        else:
            of_it = (entry.stream for entry in self._registry.entries if entry.engine is engine)
            said = untaken()
            at_rest = {stream.number for stream in of_it if said.rests(stream)}
            culprit = self._recovery.engine_died(engine.number, at_rest, said.moved)
        self._suspicious = self._recovery.suspicious
        if self._recovery.needs_engine and self._engines:
            self._call_later(REPLACEMENT_S, self._try_among_others)
        return culprit

    def engine_ready(self, engine: ServingEngine) -> None:
        """It knows no stream yet: those that have none are given to it, or to others."""
        self._engines[engine.number] = engine
        if others := len(self._engines) > 1:
            for each in self._engines.values():
                each.ask_for_blocks()
        self._give(engine, self._recovery.engine_ready(engine.number, self._homeless(), others=others))
        self.place(self._entries)

    def place(self, entries: Iterable[LiveStream]) -> None:
        """Streams that have no engine go on where one runs: who is being read first, and then the shortest.
        Who is suspected waits. Of many each turn some are looked for in what engines hold."""
        free = list(self._free(entries))
        free.sort(key=lambda entry: (not entry.stream.wants_tokens, len(entry.stream.context)))
        self._placing.add(free)

    def _place(self, entries: Iterable[LiveStream]) -> None:
        given = list[Given]()
        to_prove = list[Given]()
        try:
            for entry in self._free(entries):
                stream = entry.stream
                engine = self.choose(stream.context, stream.owner.tenant, stream.fingerprint)
                if engine is None:
                    continue
                entry.engine = engine
                _give_work(engine, stream)
                given.append(one := Given(engine, stream.number))
                if stream.needs_compute:
                    to_prove.append(one)
        finally:
            for engine, number in to_prove:
                self._recovery.given(engine.number, [number])
            # Where suspects are watched yet, the next wait until these have moved on.
            self._suspicious |= self._recovery.suspicious
            self._slices.add(given)

    def _free(self, entries: Iterable[LiveStream]) -> Iterator[LiveStream]:
        """Each as it is looked at: some were to be placed before, and again since."""
        suspects = self._recovery.suspects
        for entry in entries:
            if entry.engine is None and not entry.stream.concluded and entry.stream.number not in suspects:
                yield entry

    def _try_among_others(self) -> None:
        """No engine has come on which suspects could be tried apart."""
        if self._recovery.needs_engine and self._engines:
            engine = min(self._engines.values(), key=lambda each: each.streams)
            self._give(engine, self._recovery.engine_ready(engine.number, self._homeless(), others=True))

    def _homeless(self) -> list[int]:
        """Those that have no engine: of very many that lost theirs some are yet to be told, and come then by
        themselves, but for suspects, who have their turn."""
        live = ((entry.stream.number, entry) for entry in self._entries if not entry.stream.concluded)
        suspects = self._recovery.suspects
        return [
            number
            for number, entry in live
            if entry.engine is None or (entry.engine.is_lost and number in suspects)
        ]

    def ended(self, entry: LiveStream) -> None:
        """A stream is no more."""
        engine, number = entry.engine, entry.stream.number
        if engine is None or engine.is_lost:  # another may have its number by now
            self._recovery.ended(None, number)
        else:
            engine.take(number)
            self._clear(engine, self._recovery.ended(engine.number, number))

    def progressed(self, engine: ServingEngine, streams: Iterable[Stream]) -> None:
        """These have moved on. Who has ended since is known no more."""
        live = [stream for stream in streams if stream.final is None]
        numbers = [stream.number for stream in live]
        engine.progressed(numbers)
        if self._recovery.trusts(engine.number):
            self._recovery.count(engine.number, numbers)
            return
        for stream in live:
            rests = self._recovery.is_watched(engine.number) and not stream.wants_tokens
            self._clear(engine, self._recovery.progressed(engine.number, stream.number, rests=rests))

    def preparing(self, engine: ServingEngine, number: int) -> None:
        """The engine has begun with a stream that has no credit: it will hear no token of it."""
        self._recovery.preparing(engine.number, number)

    def prepared(self, engine: ServingEngine) -> None:
        """Nothing is being prepared there any more."""
        self._clear(engine, self._recovery.prepared(engine.number))

    def _clear(self, engine: ServingEngine, given: list[int]) -> None:
        """Somebody has proven harmless, and these are next; behind the last, whoever else had to wait."""
        if given:
            self._give(engine, given)
        if self._suspicious and not self._recovery.suspicious:
            self._suspicious = False
            self.place(self._entries)

    def _give(self, engine: ServingEngine, numbers: list[int]) -> None:
        # Of very many that lost an engine, some have yet to be told when their turn has come on another.
        if lost := [entry for entry in self._known(numbers) if entry.engine is not None]:
            self._tell_lost(lost)  # which may end them
        given = list[Given]()
        for entry in self._known(numbers):
            entry.engine = engine
            given.append(Given(engine, entry.stream.number))
        self._slices.add(given)
        for number in numbers:
            if self._registry.by_number(number) is None:  # else nobody there would be beyond doubt for ever
                self._clear(engine, self._recovery.ended(engine.number, number))

    def _known(self, numbers: list[int]) -> Iterable[LiveStream]:
        """Others have ended while they were held back."""
        return filter(None, map(self._registry.by_number, numbers))

    def _weight(self, one: Given) -> int:
        entry = self._registry.by_number(one.number)
        if entry is None:
            return STREAM_TOKENS
        stream = entry.stream
        history = 0 if stream.keeping is None else stream.keeping.history_bytes // HISTORY_BYTES
        return STREAM_TOKENS + len(stream.context) + history

    def _submit(self, given: Iterable[Given]) -> None:
        try:
            for engine, number in given:
                entry = self._registry.by_number(number)
                if entry is not None and entry.engine is engine:  # else it has ended, or the engine has
                    _give_work(engine, entry.stream)
                    if not entry.stream.needs_compute:
                        self._clear(engine, self._recovery.rests(engine.number, number))
                    first = entry.stream.paused == "loading"
                    if not first:
                        self._observer.retried(entry.stream, "engine")
                    self._submit_one(entry, engine, engine.decodes and not first)
        finally:
            self._flush()


def _give_work(engine: ServingEngine, stream: Stream) -> None:
    """Of one that rests it has nothing to compute: nobody is to go elsewhere for that."""
    engine.give(stream.number, len(stream.context) if stream.needs_compute else 0)


def _names(context: Context, tenant: int, block: int) -> Iterator[bytes]:
    """Digests of the blocks that the stream would find in an engine. The last token is always computed."""
    tokens = context.beginning(NAMED * block + 1)[:-1]
    return digests(tokens, block, salt(tenant))


def _weight_of_place(entry: LiveStream) -> int:
    return 1 + min(len(entry.stream.context), MOST_LOOKED_FOR) // LOOKED_FOR
