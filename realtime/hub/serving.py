"""The serving of models: which engines are there for which model, who is computed where, and what becomes of
the streams of an engine that is gone.

Each model has a submission of its own, and may come and go. It knows streams by the registry, and neither
frames nor what engines say of streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

from engine import api
from midstream.protocol import CatalogModel, ModelState
from realtime.hub.mistakes import MistakesEnd
from realtime.hub.models import Keeper, KnownModel, Models
from realtime.hub.observers import Observer
from realtime.hub.registry import LiveStream, StreamRegistry, Timer, weight_of_end
from realtime.hub.serving_engine import ServingEngine
from realtime.hub.slices import Slices
from realtime.hub.submission import Submission
from realtime.hub.untaken import Untaken
from realtime.hub.waking import Waking
from realtime.stream.context import Context
from realtime.tenants.quota import Quotas
from realtime.text.served_model import ServedModel

LOST_A_TURN = 256  # streams
REFUSED = 4  # commands that the end of one refuses, and that weigh as a stream more


class Serving:
    def __init__(
        self,
        models: Models,
        registry: StreamRegistry,
        observer: Observer,
        send: Callable[[int, list[api.AnyCommand]], None],
        waking: Waking,
        quotas: Quotas,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        """`send`: commands to the engine of that number."""
        self.engines: dict[int, ServingEngine] = {}  # that are there now, by number
        next_turn = partial(call_later, 0)
        self.losing = Slices(self._lose, most=LOST_A_TURN, next_turn=next_turn, weight=_weight)
        self._failing = Slices(self._fail_unloaded, most=LOST_A_TURN, next_turn=next_turn, weight=_weight)
        self._models = models
        self._registry = registry
        self._observer = observer
        self._send = send
        self._clock = clock
        self._call_later = call_later
        self._waking = waking
        self._quotas = quotas
        self._submissions: dict[str, Submission] = {}  # by model
        self._submission_to: dict[int, Submission] = {}  # by engine, also those that are gone

    # -- what may be seen ------------------------------------------------------------------------

    @property
    def takes_starts(self) -> bool:
        """Whether there is a model that does."""
        return any(self.starts_taken.values())

    @property
    def starts_taken(self) -> dict[str, bool]:
        """Of each model, whether they are."""
        return {known.name: self.of_model_takes_starts(known) for known in self._models}

    def of_model_takes_starts(self, known: KnownModel) -> bool:
        """Whether it has an engine, and there is no doubt about which stream killed the last; or whether it
        will be loaded."""
        return known.served is not None and (known.awaited or self.of_model(known.name).takes_starts)

    @property
    def entries(self) -> list[LiveStream]:
        """All streams, and who computes each."""
        return self._registry.entries

    @property
    def catalog(self) -> list[CatalogModel]:
        """The models, as they are told of."""
        return [self._told(known) for known in self._models]

    def _told(self, known: KnownModel) -> CatalogModel:
        served, keeper = known.served, known.keeper
        state: ModelState = "ready" if self.of_model(known.name).serves else "loading"
        return CatalogModel(
            name=known.name,
            state=keeper.state if keeper is not None and known.awaited else state,
            aliases=list(known.aliases),
            parent=known.parent,
            pinned=keeper is None or keeper.pinned,
            context=None if served is None else served.context,
            fingerprint=None if served is None else served.fingerprint,
        )

    def is_proven(self, engine: int) -> bool:
        """Whether everybody whom the last engine of this number was given moved on in it."""
        submission = self._submission_to.get(engine)  # of one that was there
        return submission is not None and submission.proven(engine)

    def wants(self, model: str) -> bool:
        """Whether some stream needs an engine of it."""
        return self.of_model(model).wanted

    def computes(self, model: str) -> bool:
        """Whether some stream needs the engine that it has."""
        return self.of_model(model).computes

    # -- engines that come and go ----------------------------------------------------------------

    def engine_ready(self, number: int, model: ServedModel, block: int, *, keeper: bytes) -> None:
        """There is an engine, and it knows no stream yet."""
        self._models.serve(model)
        self.engines[number] = engine = ServingEngine(number, model, block, self._send, keeper=keeper)
        self._submission_to[number] = submission = self.of_model(model.name)
        submission.engine_ready(engine)

    def engine_lost(self, number: int, untaken: Callable[[], Untaken], *, blameless: bool) -> None:
        """Its streams go on where another runs, or wait for one; but one that has killed too many. Of
        thousands each turn some are told. `untaken`: of what it has said; `blameless`: it was told to end."""
        lost = self.engines.pop(number)
        lost.lose()
        try:
            culprit = self._submission_to[number].engine_lost(lost, untaken, blameless=blameless)
            entry = None if culprit is None else self._registry.by_number(culprit)
            if entry is not None:
                self._fail([entry], "the engine failed again and again while it computed this stream")
        finally:  # whoever is to blame, or if that cannot be told: they would wait for it for ever
            self.losing.add(entry for entry in self._registry.entries if entry.engine is lost)

    def lose(self, entry: LiveStream) -> None:
        """Its engine is gone."""
        self._lose([entry])

    def _lose(self, some: Iterable[LiveStream]) -> None:
        told = list[LiveStream]()
        try:
            self._tell_lost(self._lost_now(some, told))
        finally:
            for name in {entry.stream.model.name: None for entry in told}:
                self._submissions[name].place(entry for entry in told if entry.stream.model.name == name)
            for entry in told:
                self.await_model(entry)

    def _lost_now(self, some: Iterable[LiveStream], told: list[LiveStream]) -> Iterator[LiveStream]:
        for entry in some:
            if entry.engine is None or not entry.engine.is_lost:
                continue
            if entry.stream.reads_injected:  # it hears of that behind it: or it would read all of it now
                entry.once_read.append(partial(self.lose, entry))
            else:
                told.append(entry)
                yield entry

    def _tell_lost(self, lost: Iterable[LiveStream]) -> None:
        with self._waking() as wake:
            for entry in lost:
                entry.engine = None
                now = self._clock()
                with MistakesEnd(entry, "go on without its engine", now):
                    entry.stream.lose_engine(now)
                wake(entry.stream)

    def flush(self) -> None:
        """Engines hear what was said to them."""
        for engine in self.engines.values():
            engine.flush()

    # -- models that come and go -----------------------------------------------------------------

    def drain(self, model: str, *, drains: bool) -> None:
        """Whether nobody is to come to its engines any more."""
        self.of_model(model).drains = drains

    def fail_waiting(self, model: str) -> None:
        """It could not be loaded. Of many each turn some are told."""
        self._failing.add(self.of_model(model).waiting)

    def _fail_unloaded(self, some: Iterable[LiveStream]) -> None:
        waiting = (entry for entry in some if entry.engine is None)  # else it is loaded by now
        self._fail(waiting, "the model could not be loaded")

    def _fail(self, entries: Iterable[LiveStream], why: str) -> None:
        with self._waking() as wake:
            for entry in entries:
                entry.stream.fail(why, self._clock())
                wake(entry.stream)

    def await_model(self, entry: LiveStream) -> None:
        """A stream that needs an engine has none: if its model is not loaded, it is wanted now."""
        known = self._models.named(entry.stream.model.name)
        waits = entry.engine is None and entry.stream.needs_engine
        if waits and known is not None and known.keeper is not None and known.awaited:
            self.want(known.keeper, entry.key.tenant)
            entry.stream.tell_loading(known.keeper.eta_ms)

    def want(self, keeper: Keeper, tenant: str) -> None:
        """For a tenant, who pays for it if nobody else wanted it before."""
        if not keeper.is_wanted:
            self._quotas.count_load(tenant)
        keeper.want()

    # -- who is computed where -------------------------------------------------------------------

    def of_model(self, name: str) -> Submission:
        found = self._submissions.get(name)
        if found is None:
            found = self._submissions[name] = Submission(
                name,
                self._registry,
                self._observer,
                self._call_later,
                self._submit,
                self._tell_lost,
                self.flush,
            )
        return found

    def of_engine(self, number: int) -> Submission:
        """Also of one that is gone."""
        return self._submission_to[number]

    def choose(self, model: str, context: Context, tenant: int) -> ServingEngine | None:
        return self.of_model(model).choose(context, tenant)

    def _submit(self, entry: LiveStream, engine: ServingEngine, yields: bool) -> None:
        stream = entry.stream
        if not engine.keeps:
            stream.keeping = None
        now = self._clock()
        with MistakesEnd(entry, "give it to an engine", now):
            stream.submit(engine, now, yields=yields)
            return
        with self._waking() as wake:
            wake(stream)


def _weight(entry: LiveStream) -> int:
    return weight_of_end(entry.stream, REFUSED)
