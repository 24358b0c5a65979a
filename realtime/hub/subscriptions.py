"""The subscriptions of listeners to streams: one listener a stream at most, any number of streams a listener.

It keeps both directions, so that a connection that goes costs no look at everybody else's streams. It knows
neither what a stream is nor what a listener does.
"""

from __future__ import annotations

from typing import Generic, TypeVar

L = TypeVar("L")


class Subscriptions(Generic[L]):
    def __init__(self) -> None:
        self._listener: dict[int, L] = {}  # by the stream's number
        self._streams: dict[L, dict[int, None]] = {}  # in the order in which they were given

    def listener_of(self, number: int) -> L | None:
        return self._listener.get(number)

    def subscribe(self, number: int, listener: L) -> L | None:
        """The stream is this listener's from now on; returns whose it was, if it was another's."""
        before = self.unsubscribe(number)
        self._listener[number] = listener
        self._streams.setdefault(listener, {})[number] = None
        return None if before is listener else before

    def unsubscribe(self, number: int) -> L | None:
        """Nobody's any more; returns whose it was."""
        listener = self._listener.pop(number, None)
        if listener is not None:
            del self._streams[listener][number]
            if not self._streams[listener]:
                del self._streams[listener]
        return listener

    def remove(self, listener: L) -> list[int]:
        """The listener is gone; returns the streams that it leaves behind."""
        numbers = list(self._streams.pop(listener, ()))
        for number in numbers:
            del self._listener[number]
        return numbers
