"""The handing over of streams to other gateways: one that has come to another by its client, as its engine
says, and all that others may adopt where this server goes.

Whoever reads one here hears that it is gone; what was asked of it and has no answer yet is answered there. Of
all of them each turn of the event loop some are handed over. It knows neither frames nor where streams go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from engine import api
from realtime.hub.departures import Departures
from realtime.hub.keepers import KeptAnswer
from realtime.hub.listener import Listener
from realtime.hub.mistakes import MistakesEnd
from realtime.hub.observers import Observer
from realtime.hub.registry import LiveStream, StreamRegistry, Timer, weight_of_end
from realtime.hub.serving import Serving
from realtime.hub.serving_engine import ServingEngine
from realtime.hub.slices import Slices
from realtime.hub.subscriptions import Subscriptions
from realtime.hub.waking import Waking
from realtime.stream.stream import Stream

HANDED_OVER_A_TURN = 64  # streams


class HandingOver:
    def __init__(
        self,
        registry: StreamRegistry,
        subscriptions: Subscriptions[Stream, Listener],
        serving: Serving,
        departures: Departures,
        observer: Observer,
        note_if_empty: Callable[[], None],
        waking: Waking,
        clock: Callable[[], float],
        call_later: Callable[[float, Callable[[], None]], Timer],
    ) -> None:
        self._registry = registry
        self._subscriptions = subscriptions
        self._serving = serving
        self._departures = departures
        self._observer = observer
        self._note_if_empty = note_if_empty
        self._waking = waking
        self._clock = clock
        self._next_turn = partial(call_later, 0)

    def receive(self, engine: ServingEngine, answer: KeptAnswer) -> None:
        """What an engine says of a stream that it keeps, or kept, for us."""
        entry = self._registry.by_number(answer.stream)
        if entry is None or entry.engine is not engine:
            return
        match answer:
            case api.Moved():
                self._moved(entry)
            case api.Kept(whole=False):  # it ends here, and is handed over to nobody
                entry.stream.keeping = None
            case api.Kept() if entry.stream.keeping is not None:
                entry.stream.keeping.is_found = True

    def _moved(self, entry: LiveStream) -> None:
        """It is another gateway's now, to which its client has come."""
        listener = self._let_go(entry)
        if listener is not None:
            listener.lose(entry.stream)
            self._observer.refused("request_taken", listener.caller)

    def leave_all(self, *, also_read: bool) -> Slices[LiveStream]:
        """What engines keep, and nobody reads here, is for whoever comes for it elsewhere. `also_read`: so is
        what somebody does, who hears of it. Returns those that wait for their turn."""
        leave = partial(self._leave, also_read=also_read)
        leaving = Slices(leave, most=HANDED_OVER_A_TURN, next_turn=self._next_turn, weight=_weight)
        leaving.add(dict.fromkeys([*self._just_left(), *self._registry.entries]))
        return leaving

    def _just_left(self) -> Iterable[LiveStream]:
        """In the order in which they are brought in order meanwhile: there may be no room for all of them
        that nobody reads, and what is handed over takes none."""
        numbers = (stream.number for stream in self._departures.left)
        return filter(None, map(self._registry.by_number, numbers))

    def _leave(self, some: Iterable[LiveStream], *, also_read: bool) -> None:
        with self._waking() as wake:
            for entry in some:
                if self._registry.by_number(entry.stream.number) is not entry:  # it is no more, or another's
                    continue
                with MistakesEnd(entry, "hand it over", self._clock()):
                    self._leave_one(entry, also_read=also_read)
                    continue
                wake(entry.stream)

    def _leave_one(self, entry: LiveStream, *, also_read: bool) -> None:
        reader = self._subscriptions.listener_of(entry.stream)
        if entry.engine is None or not entry.may_be_adopted:
            return
        if not also_read and (reader or not entry.stream.may_be_left):  # later is soon enough
            return
        if reader is not None:
            reader.forget(entry.stream)
        self._departures.bring_in_order(entry.stream)
        if entry.stream.ended:  # there was no room for one more that nobody reads
            return
        self._let_go(entry)
        entry.engine.say(api.Disown(entry.stream.number))

    def _let_go(self, entry: LiveStream) -> Listener | None:
        """It is another gateway's, or will be; returns who read it here."""
        stream = entry.stream
        self._registry.let_go(entry)
        listener = self._subscriptions.unsubscribe(stream)
        stream.go()
        self._serving.of_model(stream.model.name).ended(entry)
        self._observer.moved(stream)
        self._note_if_empty()
        return listener


def _weight(entry: LiveStream) -> int:
    return weight_of_end(entry.stream)
