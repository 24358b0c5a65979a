"""Free runs: free blocks as runs of neighbours, for attention that reads slices.

They know numbers of blocks, and which are in use, and nothing of what lies in them. Whatever they do takes
the same time however many blocks there are, and whatever became of them before.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

LEAST_PITCH = 8  # blocks from one table's beginning to the next's are a multiple of it
LEAST_ROOM = 4  # blocks behind a table for its growth
PITCHES = 32  # of as many tables in a free run
SHARE_AHEAD = 4  # one in so many blocks may be free though others are cached, where that makes a run wide


class FreeRuns:
    """Runs of neighbours, given from a *hand* that goes round all blocks.

    A table is laid down at the hand, which then leaves room behind it. So what lies together is of about the
    same age, is evicted together, and makes a wide run again when the hand comes round: without that, blocks
    would come back one here and one there. The hand jumps only where it meets blocks in use. Tables begin
    evenly spaced where they are as long, so that many can be read in one call; and one that has to lie in
    several runs is cut where a piece of so many blocks ends, which attention reads as one.
    """

    def __init__(self, refs: list[int], piece: int = 1) -> None:
        self._refs = refs  # of every block; one that is used stands in the hand's way
        self._piece = piece
        ahead = len(refs) // SHARE_AHEAD
        self.most_ahead = ahead if ahead >= LEAST_PITCH else 0
        # Of each run, by its first block, the block behind its last; and the other way round. In arrays: a
        # dictionary of a million runs is slow to find anything in.
        self._ends = array("i", [0]) * (len(refs) + 1)
        self._firsts = array("i", [-1]) * (len(refs) + 1)
        # All but the run at the hand stand in rings, by the bits of their lengths: of each end the next and
        # the one before. The ring of so many bits begins so far behind the number of blocks.
        self._next = array("i", range(len(refs) + len(refs).bit_length() + 1))
        self._previous = self._next[:]
        self._most_bits = 0  # of a run in a ring, or more
        self._count = len(refs)
        self._hand = 0  # no run reaches across it
        self._pitch = 0
        self._add(0, len(refs))
        self._jump()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for first, end in self.runs():
            yield from range(first, end)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Of each its first block, and the one behind its last."""
        return ((first, end) for first, end in enumerate(self._ends) if end)

    def fits(self, count: int) -> bool:
        if self._hand == len(self._refs) or self._refs[self._hand]:
            self._jump()
        if self._width >= count + LEAST_ROOM:
            return True
        self._pitch = LEAST_PITCH  # where others have to go for it, nobody gets more
        return False

    def take_behind(self, number: int, count: int) -> Iterable[int]:
        first = number + 1
        end = self._ends[first]
        if not end:
            return ()
        taken = range(first, min(end, first + count))
        self._shrink(first, end, taken.stop)
        return taken

    def take(self, count: int, at: int, held: int) -> list[int]:
        """At the hand, or in the widest runs where that is too narrow."""
        if self._width < count + LEAST_ROOM:
            self._jump()
        taken: list[int] = []
        while self._width < count - len(taken):
            self._take_from(self._hand, count, at, taken)
            self._take_narrow(count, at, taken)
            if len(taken) == count:
                return taken
            self._jump()
        first, missing = self._hand, count - len(taken)
        taken += range(first, first + missing)
        # Whoever has outgrown its run goes on to grow.
        self._pass(first + missing, LEAST_ROOM if held < 4 * LEAST_ROOM else held // 4)
        return taken

    def _take_narrow(self, count: int, at: int, taken: list[int]) -> None:
        """From one run after the other, the widest first, while none has room for all that is missing."""
        while len(taken) < count and (end := self._widest):
            first = self._firsts[end]
            if end - first >= count - len(taken):
                return
            if (at + len(taken)) % self._piece + end - first > self._piece:
                self._take_from(first, count, at, taken)
                continue
            # All of it, as often as there are small holes: what `_take_from` would come to.
            self._remove(first, end)
            self._count -= end - first
            taken += range(first, end)

    def _take_from(self, first: int, count: int, at: int, taken: list[int]) -> None:
        """From a run: up to the end of a piece, where it has no room for all that is missing."""
        end, missing = self._ends[first], count - len(taken)
        stop = first + missing
        if stop > end:
            here = at + len(taken)
            whole = (here + end - first) // self._piece * self._piece
            stop = first + whole - here if whole > here else end
        taken += range(first, stop)
        self._shrink(first, end, stop)

    def give(self, numbers: list[int]) -> None:
        self._count += len(numbers)
        first = end = 0
        for number in sorted(numbers):
            if number != end:
                if first < end:
                    self._join(first, end)
                first = number
            end = number + 1
        if first < end:
            self._join(first, end)

    # -- the hand --------------------------------------------------------------------------------

    @property
    def _width(self) -> int:
        """Of the run that begins at the hand; none does where that is below 0."""
        return self._ends[self._hand] - self._hand

    def _jump(self) -> None:
        """To the widest run; into its middle where a table lies before it, which may grow."""
        here, self._hand = self._hand, len(self._refs)
        if end := self._ends[here]:
            self._ends[here] = 0
            self._join(here, end)
        end = self._widest
        if not end:
            return
        first = self._hand = self._firsts[end]
        self._leave_ring(end)
        if first and end - first > 2 * LEAST_PITCH and self._refs[first - 1]:
            begin = self._hand = _roundest(first + (end - first) // 4, end - (end - first) // 4)
            self._add(first, begin)
            self._add(begin, end)
        share = (end - self._hand) // PITCHES
        self._pitch = 1 << share.bit_length() - 1 if share > LEAST_PITCH else LEAST_PITCH

    def _pass(self, first: int, least: int) -> None:
        """What the hand lies on is taken up to this block: it goes on, and leaves room."""
        here = self._hand
        end = self._ends[here]
        self._count -= first - here
        self._ends[here] = 0
        at = -(-(first + least) // self._pitch) * self._pitch
        if at < end:
            self._hand = at
            self._ends[at] = end
            self._firsts[end] = at
        else:
            at = self._hand = end
            self._firsts[end] = -1
        if first < at:
            self._ends[first] = at
            self._firsts[at] = first
            self._enter_ring(at, (at - first).bit_length())

    # -- runs ------------------------------------------------------------------------------------

    @property
    def _widest(self) -> int:
        """The end of one that has the most bits, which stands in its ring for longest; 0 where none does."""
        ring = len(self._refs) + self._most_bits
        while self._most_bits and self._next[ring] == ring:
            self._most_bits -= 1
            ring -= 1
        return self._next[ring] if self._most_bits else 0

    def _add(self, first: int, end: int) -> None:
        self._ends[first] = end
        self._firsts[end] = first
        if first != self._hand:
            self._enter_ring(end, (end - first).bit_length())

    def _remove(self, first: int, end: int) -> None:
        self._ends[first] = 0
        self._firsts[end] = -1
        if first != self._hand:
            self._leave_ring(end)

    def _shrink(self, first: int, end: int, begin: int) -> None:
        """The run begins later, or is no more; and the hand with it, where it was there."""
        self._count -= begin - first
        if begin == end:
            self._remove(first, end)
        else:
            self._move(first, end, begin)
        if first == self._hand:
            self._hand = begin

    def _move(self, first: int, end: int, begin: int) -> None:
        """The run begins elsewhere."""
        self._ends[first] = 0
        self._ends[begin] = end
        self._firsts[end] = begin
        before, now = (end - first).bit_length(), (end - begin).bit_length()
        if before != now and first != self._hand:
            self._leave_ring(end)
            self._enter_ring(end, now)

    def _enter_ring(self, end: int, bits: int) -> None:
        ring = len(self._refs) + bits
        last = self._previous[ring]
        self._next[last] = self._previous[ring] = end
        self._previous[end] = last
        self._next[end] = ring
        if bits > self._most_bits:
            self._most_bits = bits

    def _leave_ring(self, end: int) -> None:
        before, behind = self._previous[end], self._next[end]
        self._next[before] = behind
        self._previous[behind] = before

    def _join(self, first: int, end: int) -> None:
        """A run more, as one with those that it touches; but not across the hand."""
        if (before := self._firsts[first]) >= 0 and first != self._hand:
            self._remove(before, first)
            first = before
        if first < self._hand < end:  # blocks were given on both of its sides
            self._add(first, self._hand)
            first = self._hand
        behind = self._ends[end]
        if not behind or end == self._hand:
            self._add(first, end)
        elif first == self._hand:
            self._remove(end, behind)
            self._add(first, behind)
        else:
            self._move(end, behind, first)


def _roundest(low: int, high: int) -> int:
    """The number of a range, which begins above 0, that the largest power of two divides."""
    bits = ((low - 1) ^ (high - 1)).bit_length() - 1
    return (high - 1) >> bits << bits
