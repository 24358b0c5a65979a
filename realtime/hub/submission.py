"""The submission of streams to an engine: to a new one all at once, a slice in each turn of the event loop,
or group by group where one of them may be what killed the last.

It knows streams by their numbers, and asks the registry for them. What an engine says of them is not heard
here, nor is a clock looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from realtime.hub.engine_recovery import EngineRecovery
from realtime.hub.observers import Observer
from realtime.hub.registry import StreamRegistry
from realtime.hub.slices import Slices
from realtime.stream.stream import Stream

# To a new engine in one go, a few milliseconds' work: tokens, as which a stream counts that has few.
SUBMIT_TOKENS, STREAM_TOKENS = 50_000, 500


class Submission:
    def __init__(
        self,
        registry: StreamRegistry,
        observer: Observer,
        next_turn: Callable[[Callable[[], None]], object],
        submit: Callable[[Stream], None],
        flush: Callable[[], None],
    ) -> None:
        """`submit` has a stream say what the engine must know of it; `flush` sends what was said."""
        self._registry = registry
        self._observer = observer
        self._submit_one = submit
        self._flush = flush
        self._recovery = EngineRecovery()
        self._slices = Slices(self._submit, most=SUBMIT_TOKENS, next_turn=next_turn, weight=self._weight)

    @property
    def proven(self) -> bool:
        """Whether everybody whom the last engine was given moved on in it."""
        return self._recovery.proven

    @property
    def suspicious(self) -> bool:
        """Whether somebody may be what kills engines."""
        return self._recovery.suspicious

    def engine_lost(self) -> int | None:
        """Returns the stream that is known to be what kills engines, if one is."""
        self._slices.clear()
        return self._recovery.engine_died()

    def engine_ready(self, streams: Iterable[Stream]) -> None:
        """There is an engine for these, which knows none of them."""
        computing, waiting = list[int](), list[int]()
        for stream in streams:
            (computing if stream.needs_compute else waiting).append(stream.number)
        self._slices.add(waiting)
        self._slices.add(self._recovery.engine_ready(computing))

    def progressed(self, number: int) -> None:
        """A stream has moved on, or is no more."""
        if not self._recovery.proven:
            self._slices.add(self._recovery.progressed(number))

    def preparing(self, number: int) -> None:
        """The engine has begun with a stream that has no credit: it will hear no token of it."""
        self._recovery.preparing(number)

    def prepared(self) -> None:
        """Nothing is being prepared any more."""
        self._slices.add(self._recovery.prepared())

    def _weight(self, number: int) -> int:
        entry = self._registry.by_number(number)
        return STREAM_TOKENS + (0 if entry is None else len(entry.stream.context))

    def _submit(self, numbers: list[int]) -> None:
        for number in numbers:
            entry = self._registry.by_number(number)
            if entry is not None:  # else it ended while it was held back
                self._submit_one(entry.stream)
                self._observer.retried(entry.stream, "engine")
        self._flush()
