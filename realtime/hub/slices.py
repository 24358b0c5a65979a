"""Slices: work on many things, so many in one turn of the event loop that others have theirs in between.

What is added later is done later, of one owner's things: of several, each has one in turn, so that nobody's
few wait behind a crowd of another's. Work takes them one by one: what it has not come to where it fails waits
for the next turn. Pure: whoever makes one says how a later turn is come by. It does not know what the work
is.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")


def _one(thing: object) -> int:
    return 1


def _nobody(thing: object) -> Hashable:
    return None


class Slices(Generic[T]):
    def __init__(
        self,
        work: Callable[[Iterator[T]], None],
        *,
        most: int,
        next_turn: Callable[[Callable[[], None]], object],
        weight: Callable[[T], int] = _one,
        owner: Callable[[T], Hashable] = _nobody,
    ) -> None:
        """A slice ends where its things weigh `most`, or more by part of the last, with all that was done
        since the last such turn."""
        self._work = work
        self._most = most
        self._next_turn = next_turn
        self._weight = weight
        self._owner = owner
        self._waiting: dict[Hashable, deque[T]] = {}  # by owner, whose turn it is first
        self._done = 0  # the weight of what was done since the last turn
        self._works = False
        self._comes = False  # whether there will be a turn for what waits

    def add(self, things: Iterable[T]) -> None:
        """The first slice is done at once, where nothing waits. Of a crowd each may bring a few in one turn:
        together they are no more than a slice."""
        waits = bool(self._waiting)
        for thing in things:
            self._line_of(thing).append(thing)
        if not (waits or self._works):
            self._go_on()

    def first(self, thing: T) -> None:
        """Before all of its owner's that waits: more of what is being worked at."""
        self._line_of(thing).appendleft(thing)
        self._expect_turn()

    def clear(self) -> None:
        """What waits need not be done any more."""
        self._waiting.clear()

    def __iter__(self) -> Iterator[T]:
        """What waits, of each owner in its order."""
        return itertools.chain.from_iterable(self._waiting.values())

    def _line_of(self, thing: T) -> deque[T]:
        return self._waiting.setdefault(self._owner(thing), deque())

    def _expect_turn(self) -> None:
        if not self._comes:
            self._comes = True
            self._next_turn(self._begin_turn)

    def _begin_turn(self) -> None:
        self._comes, self._done = False, 0
        if self._waiting:
            self._go_on()

    def _go_on(self) -> None:
        self._works = True
        try:
            if self._waiting and self._done < self._most:
                self._work(self._slice())
        finally:
            self._works = False
            if self._waiting or self._done >= self._most:
                self._expect_turn()

    def _slice(self) -> Iterator[T]:
        while self._waiting and self._done < self._most:
            owner, line = next(iter(self._waiting.items()))
            thing = line.popleft()
            del self._waiting[owner]
            if line:
                self._waiting[owner] = line
            self._done += self._weight(thing)
            yield thing
