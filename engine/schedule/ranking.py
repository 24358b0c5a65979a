"""A ranking: sequences in the order of a key that each was put in with.

It knows nothing of what a key means. To put one in, take it out or find the first costs about the same,
however many there are; to go through those up to some key costs as much as there are of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from typing import Generic, TypeVar

from engine.schedule.sequence import Sequence

Key = TypeVar("Key", int, tuple[int, int])


class Ranking(Generic[Key]):
    def __init__(self) -> None:
        self._order: list[tuple[Key, int]] = []  # and the stream, where keys are equal
        self._members: dict[int, tuple[Key, Sequence]] = {}

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.stream in self._members

    def put(self, sequence: Sequence, key: Key) -> None:
        """Also where it was in with another key."""
        had = self._members.get(sequence.stream)
        if had is not None:
            if had[0] == key:
                return
            self.discard(sequence)
        self._members[sequence.stream] = (key, sequence)
        insort(self._order, (key, sequence.stream))

    def discard(self, sequence: Sequence) -> Key | None:
        """Returns the key that it had, if it was in."""
        had = self._members.pop(sequence.stream, None)
        if had is None:
            return None
        del self._order[bisect_left(self._order, (had[0], sequence.stream))]
        return had[0]

    def key(self, sequence: Sequence) -> Key:
        return self._members[sequence.stream][0]

    @property
    def first(self) -> tuple[Key, Sequence]:
        return self._members[self._order[0][1]]

    def before(self, end: Key) -> Iterator[Sequence]:
        """Those with a smaller key, smallest first."""
        for key, stream in self._order:
            if key >= end:
                return
            yield self._members[stream][1]
