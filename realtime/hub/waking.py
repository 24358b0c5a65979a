"""The waking of streams' listeners: where many streams moved together, each listener is flushed once, and the
engines hear once what they are told.

It knows who listens to what. What becomes of a stream that has ended is for whoever makes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

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
        woken = _Woken(self._subscriptions.listener_of, self._retire)
        try:
            yield woken.wake
        finally:  # where one fails, those before it have moved all the same
            for listener in woken.listeners:
                listener.flush()
            self._flush()


class _Woken:
    def __init__(
        self, listener_of: Callable[[Stream], Listener | None], retire: Callable[[Stream], None]
    ) -> None:
        self.listeners: dict[Listener, None] = {}
        self._listener_of = listener_of
        self._retire = retire

    def wake(self, stream: Stream) -> None:
        try:
            if stream.final is not None:
                self._retire(stream)
        finally:  # where that fails its listener would wait for an end that has come
            listener = self._listener_of(stream)
            if listener is not None and stream.outbox.items:
                listener.wake(stream)
                self.listeners[listener] = None
