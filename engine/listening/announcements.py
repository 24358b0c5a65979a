"""Announcements: what one gateway has an engine tell the others. They are told of one another by numbers, and
only those that announce something themselves.

What is announced means nothing here, and a gateway is an owner alone. Pure.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar

from engine import api

G = TypeVar("G")


class Announcements(Generic[G]):
    def __init__(self) -> None:
        self._numbers: dict[G, int] = {}  # of those that do
        self._next_number = itertools.count()

    def make(self, gateway: G, what: bytes) -> Iterator[tuple[G, api.Announced]]:
        """Yields who is to be told what. One that does so first is told of the others, too."""
        if gateway not in self._numbers:
            yield from [(gateway, api.Announced(number, b"")) for number in self._numbers.values()]
            self._numbers[gateway] = next(self._next_number)
        yield from self._told(gateway, what)

    def leave(self, gateway: G) -> Iterator[tuple[G, api.Announced]]:
        if gateway in self._numbers:
            yield from self._told(gateway, None)
            del self._numbers[gateway]

    def _told(self, gateway: G, what: bytes | None) -> Iterator[tuple[G, api.Announced]]:
        told = api.Announced(self._numbers[gateway], what)
        yield from [(other, told) for other in self._numbers if other is not gateway]
