"""A ranking: sequences in the order of a number that each was put in with.

It knows nothing of what a number means. To put one in, take it out or find the first costs the same, however
many there are; to go through those up to some number costs as much as there are of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator

from engine.schedule.sequence import Sequence

MOST = 256  # in a chunk
STREAM_BITS = 64
STREAM = (1 << STREAM_BITS) - 1

Entry = int  # a sequence's number, and behind it its stream: what is compared most is compared as one


class Ranking:
    def __init__(self) -> None:
        self._chunks: list[list[Entry]] = []  # none is empty
        self._lasts: list[Entry] = []  # of each chunk
        self._filed: dict[int, tuple[Entry, Sequence]] = {}  # by stream

    def __len__(self) -> int:
        return len(self._filed)

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence.stream in self._filed

    def put(self, sequence: Sequence, key: int) -> None:
        """Also where it was in with another number."""
        stream = sequence.stream
        entry = key << STREAM_BITS | stream
        if stream in self._filed:
            if self._filed[stream][0] == entry:
                return
            self.discard([sequence])
        self._filed[stream] = entry, sequence
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

    def discard(self, sequences: list[Sequence]) -> None:
        """Those that are in: mostly they stand together."""
        filed = self._filed
        entries = sorted(filed.pop(one.stream)[0] for one in sequences if one.stream in filed)
        while entries:
            at = bisect_left(self._lasts, entries[0])
            chunk = self._chunks[at]
            here = entries[: bisect_right(entries, chunk[-1])]
            first = bisect_left(chunk, here[0])
            if chunk[first : first + len(here)] == here:
                del chunk[first : first + len(here)]
            else:
                for entry in here:
                    del chunk[bisect_left(chunk, entry)]
            if chunk:
                self._lasts[at] = chunk[-1]
            else:
                del self._chunks[at], self._lasts[at]
            del entries[: len(here)]

    def key(self, sequence: Sequence) -> int:
        return self._filed[sequence.stream][0] >> STREAM_BITS

    @property
    def first(self) -> tuple[int, Sequence]:
        entry = self._chunks[0][0]
        return entry >> STREAM_BITS, self._filed[entry & STREAM][1]

    @property
    def sequences(self) -> list[Sequence]:
        """In their order."""
        return [self._filed[entry & STREAM][1] for chunk in self._chunks for entry in chunk]

    def before(self, end: int, since: int | None = None) -> Iterator[Sequence]:
        """Those with a smaller number, but not smaller than `since`; smallest first."""
        behind, filed = end << STREAM_BITS, self._filed
        at, least = 0, None
        if since is not None:
            least = since << STREAM_BITS
            at = bisect_left(self._lasts, least)
        for chunk in self._chunks[at:]:
            for entry in chunk if least is None else chunk[bisect_left(chunk, least) :]:
                if entry >= behind:
                    return
                yield filed[entry & STREAM][1]
