"""The waking of streams' listeners: where many streams moved together, each listener is flushed once, and the
engines hear once what they are told.

It knows who listens to what. What becomes of a stream that has ended is for whoever makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from realtime.hub.listener import Listener
from realtime.hub.subscriptions import Subscriptions
from realtime.stream.stream import Stream

Wake = Callable[[Stream], None]  # it has moved


class Waking:
    def __init__(
        self,
        subscriptions: Subscriptions[Stream, Listener],
        *,
        retire: Callable[[Stream], None],
        flush: Callable[[], None],
    ) -> None:
        """`retire`: a stream has ended; `flush`: engines are to hear what was said to them."""
        self._subscriptions = subscriptions
        self._retire = retire
        self._flush = flush

    @contextmanager
    def __call__(self) -> Iterator[Wake]:
        woken: dict[Listener, None] = {}
        yield partial(self._wake, woken)
        for listener in woken:
            listener.flush()
        self._flush()

    def _wake(self, woken: dict[Listener, None], stream: Stream) -> None:
        listener = self._subscriptions.listener_of(stream)
        if listener is not None and stream.outbox.waiting:
            listener.wake(stream)
            woken[listener] = None
        if stream.final is not None:
            self._retire(stream)
