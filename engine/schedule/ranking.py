"""A ranking: sequences in the order of a number that each was put in with.

It knows nothing of what a number means. To put one in, take it out or find the first costs the same, however
many there are; to go through those up to some number costs as much as there are of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from engine.schedule.sequence import Sequence

MOST = 256  # in a chunk

Entry = tuple[int, int, Sequence]  # with its stream, where numbers are equal


class Ranking:
    def __init__(self) -> None:
        self._chunks: list[list[Entry]] = []  # none is empty
        self._lasts: list[Entry] = []  # of each chunk
        self._entries: dict[int, Entry] = {}  # by stream

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.stream in self._entries

    def put(self, sequence: Sequence, key: int) -> None:
        """Also where it was in with another number."""
        stream = sequence.stream
        had = self._entries.get(stream)
        if had is not None:
            if had[0] == key:
                return
            self.discard(sequence)
        entry = self._entries[stream] = (key, stream, sequence)
        if not self._chunks:
            self._chunks.append([entry])
            self._lasts.append(entry)
            return
        at = min(bisect_left(self._lasts, entry), len(self._lasts) - 1)
        chunk = self._chunks[at]
        insort(chunk, entry)
        self._lasts[at] = chunk[-1]
        if len(chunk) > MOST:
            self._chunks.insert(at, chunk[: MOST // 2])
            self._lasts.insert(at, chunk[MOST // 2 - 1])
            del chunk[: MOST // 2]

    def discard(self, sequence: Sequence) -> int | None:
        """Returns the number that it had, if it was in."""
        entry = self._entries.pop(sequence.stream, None)
        if entry is None:
            return None
        at = bisect_left(self._lasts, entry)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, entry)]
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at], self._lasts[at]
        return entry[0]

    def key(self, sequence: Sequence) -> int:
        return self._entries[sequence.stream][0]

    @property
    def first(self) -> tuple[int, Sequence]:
        key, _, sequence = self._chunks[0][0]
        return key, sequence

    def before(self, end: int) -> Iterator[Sequence]:
        """Those with a smaller number, smallest first."""
        for chunk in self._chunks:
            for key, _, sequence in chunk:
                if key >= end:
                    return
                yield sequence
