"""The subscriptions of listeners to streams: one listener a stream at most, any number of streams a listener.

It keeps both directions, so that a connection that goes costs no look at everybody else's streams. It knows
neither what a stream is nor what a listener does.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

S = TypeVar("S", bound=Hashable)
L = TypeVar("L")


class Subscriptions(Generic[S, L]):
    def __init__(self) -> None:
        self._listener: dict[S, L] = {}
        self.listener_of = self._listener.get  # asked with every token
        self._streams: dict[L, dict[S, None]] = {}  # in the order in which they were given

    def subscribe(self, stream: S, listener: L) -> L | None:
        """The stream is this listener's from now on; returns whose it was, if it was another's."""
        before = self.unsubscribe(stream)
        self._listener[stream] = listener
        self._streams.setdefault(listener, {})[stream] = None
        return None if before is listener else before

    def unsubscribe(self, stream: S) -> L | None:
        """Nobody's any more; returns whose it was."""
        listener = self._listener.pop(stream, None)
        if listener is not None:
            del self._streams[listener][stream]
            if not self._streams[listener]:
                del self._streams[listener]
        return listener

    def remove(self, listener: L) -> list[S]:
        """The listener is gone; returns the streams that it leaves behind."""
        left = list(self._streams.pop(listener, ()))
        for stream in left:
            del self._listener[stream]
        return left
