"""A ranking: sequences in the order of a number that each was put in with.

It knows nothing of what a number means. To put one in, take it out or find the first costs the same, however
many there are; to go through those up to some number costs as much as there are of them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

from engine.schedule.sequence import Sequence

MOST = 256  # in a chunk
STREAM_BITS = 64

Entry = int  # a sequence's number, and behind it its stream: what is compared most is compared as one


class Ranking:
    def __init__(self) -> None:
        self._chunks: list[list[Entry]] = []  # none is empty
        self._lasts: list[Entry] = []  # of each chunk
        self._entries: dict[int, Entry] = {}  # by stream
        self._sequences: dict[int, Sequence] = {}  # likewise

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.stream in self._entries

    def put(self, sequence: Sequence, key: int) -> None:
        """Also where it was in with another number."""
        stream = sequence.stream
        entry = key << STREAM_BITS | stream
        had = self._entries.get(stream)
        if had == entry:
            return
        if had is not None:
            self.discard(sequence)
        self._entries[stream] = entry
        self._sequences[stream] = sequence
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
        del self._sequences[sequence.stream]
        at = bisect_left(self._lasts, entry)
        chunk = self._chunks[at]
        del chunk[bisect_left(chunk, entry)]
        if chunk:
            self._lasts[at] = chunk[-1]
        else:
            del self._chunks[at], self._lasts[at]
        return entry >> STREAM_BITS

    def key(self, sequence: Sequence) -> int:
        return self._entries[sequence.stream] >> STREAM_BITS

    @property
    def first(self) -> tuple[int, Sequence]:
        entry = self._chunks[0][0]
        return entry >> STREAM_BITS, self._sequence(entry)

    def before(self, end: int) -> Iterator[Sequence]:
        """Those with a smaller number, smallest first."""
        behind = end << STREAM_BITS
        for chunk in self._chunks:
            for entry in chunk:
                if entry >= behind:
                    return
                yield self._sequence(entry)

    def _sequence(self, entry: Entry) -> Sequence:
        return self._sequences[entry & (1 << STREAM_BITS) - 1]
