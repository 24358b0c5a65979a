"""The fair cache: things of many owners within one limit. Where there are too many, the oldest goes of the
owner who holds the most, or was renewed the longest ago.

So nobody loses anything while they hold no more than an equal share, whatever others do, and who is alone has
all the room. What a thing weighs is said when it comes. Pure: it knows neither what it keeps nor how long.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Hashable
from heapq import heapify, heappop, heappush
from typing import Generic, NamedTuple, TypeVar

O = TypeVar("O", bound=Hashable)  # noqa: E741 - the owner
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Holdings(Generic[O]):
    """How much each owner holds, and who holds the most: found among all that was true once, where what no
    longer is gets skipped, so that a change costs no look at everybody."""

    def __init__(self) -> None:
        self.total = 0
        self._of: dict[O, int] = {}
        self._ranking: list[tuple[int, int, O]] = []  # a heap: minus what was held, a tie-breaker, by whom
        self._ties = itertools.count()

    def change(self, owner: O, by: int) -> None:
        self.total += by
        self._of[owner] = self._of.get(owner, 0) + by
        if not self._of[owner]:
            del self._of[owner]
        else:
            heappush(self._ranking, self._ranked(owner))
        if len(self._ranking) > 2 * len(self._of) + 8:
            self._ranking = [self._ranked(owner) for owner in self._of]
            heapify(self._ranking)

    def largest(self) -> O:
        while True:
            minus, _, owner = self._ranking[0]
            if self._of.get(owner) == -minus:
                return owner
            heappop(self._ranking)

    def _ranked(self, owner: O) -> tuple[int, int, O]:
        return (-self._of[owner], next(self._ties), owner)


class _Entry(NamedTuple, Generic[O, V]):
    owner: O
    value: V
    weight: int


class FairCache(Generic[O, K, V]):
    def __init__(self, limit: int) -> None:
        self._limit = limit
        # The oldest first, as in the next: a dict would look for it among all that have gone.
        self._entries = OrderedDict[K, _Entry[O, V]]()
        self._keys_of: dict[O, OrderedDict[K, None]] = {}
        self._holdings = Holdings[O]()

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        entry = self._entries.get(key)
        return None if entry is None else entry.value

    def renew(self, key: K) -> None:
        """Of what its owner has it is to go last, if it is there, however old it is."""
        entry = self._entries.get(key)
        if entry is not None:
            self._keys_of[entry.owner].move_to_end(key)

    @property
    def oldest(self) -> tuple[K, V] | None:
        key = next(iter(self._entries), None)
        return None if key is None else (key, self._entries[key].value)

    def put(self, owner: O, key: K, value: V, weight: int = 1) -> list[K]:
        """Returns what had to go for it, which may be itself. `weight` is above 0."""
        self.pop(key)
        self._entries[key] = _Entry(owner, value, weight)
        self._keys_of.setdefault(owner, OrderedDict())[key] = None
        self._holdings.change(owner, weight)
        gone = []
        while self._holdings.total > self._limit:
            gone.append(next(iter(self._keys_of[self._holdings.largest()])))
            self.pop(gone[-1])
        return gone

    def pop(self, key: K) -> None:
        """What is not there may be taken away, too."""
        entry = self._entries.pop(key, None)
        if entry is None:
            return
        keys = self._keys_of[entry.owner]
        del keys[key]
        if not keys:
            del self._keys_of[entry.owner]
        self._holdings.change(entry.owner, -entry.weight)
