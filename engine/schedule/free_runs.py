"""Free runs: free blocks as runs of neighbours, for attention that reads slices.

They know numbers of blocks, and which are in use, and nothing of what lies in them. Whatever they do takes
the same time however many blocks there are, and whatever became of them before: what finds a wide run is a
byte of every 256 blocks, which is looked through at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

LEAST_PITCH = 8  # blocks from one table's beginning to the next's are a multiple of it
LEAST_ROOM = 4  # blocks behind a table for its growth
PITCHES = 32  # of as many tables in a free run
SHARE_AHEAD = 4  # one in so many blocks may be free though others are cached, where that makes a run wide
NEIGHBOURS = 256  # blocks, of whose runs the widest is known; a power of two


class FreeRuns:
    """Runs of neighbours, given from a *hand* that goes round all blocks.

    A table is laid down at the hand, which then leaves room behind it. So what lies together is of about the
    same age, is evicted together, and makes a wide run again when the hand comes round: without that, blocks
    would come back one here and one there. The hand jumps only where it meets blocks in use. Tables begin
    evenly spaced where they are as long, so that many can be read in one call; and one that has to lie in
    several runs is cut where a piece of so many blocks ends, which attention reads as one.

    Where a million blocks come and go at random, most are far from the processor when they are looked at. So
    a run is told of at its ends alone, and what finds wide ones is small.
    """

    def __init__(self, refs: list[int], piece: int = 1) -> None:
        self._refs = refs  # of every block; one that is used, above 0, stands in the hand's way
        self._piece = piece
        ahead = len(refs) // SHARE_AHEAD
        self.most_ahead = ahead if ahead >= LEAST_PITCH else 0
        # Of each run its length, at its first block and at its last. All else is 0, and so is what stands
        # behind the last block, which is also before the first.
        self._lengths = [0] * (len(refs) + 1)
        # Of each but the one at the hand, how many bits its length has, at its first block; the most of each
        # neighbourhood; and of all of them, or more.
        self._bits = bytearray(len(refs))
        self._most_nearby = bytearray(len(refs) // NEIGHBOURS + 1)
        self._most = 0
        self._count = len(refs)
        self._hand = len(refs)  # no run reaches across it
        self._pitch = 0
        self._list(0, len(refs))
        self._jump()

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        for first, end in self.runs():
            yield from range(first, end)

    def runs(self) -> Iterator[tuple[int, int]]:
        """Of each its first block, and the one behind its last."""
        first, lengths = 0, self._lengths
        while first < len(self._refs):
            if length := lengths[first]:
                yield first, first + length
            first += length or 1

    def fits(self, count: int) -> bool:
        if self._hand == len(self._refs) or self._refs[self._hand] > 0:
            self._jump()
        if self._lengths[self._hand] >= count + LEAST_ROOM:
            return True
        self._pitch = LEAST_PITCH  # where others have to go for it, nobody gets more
        return False

    def take_behind(self, number: int, count: int) -> Iterable[int]:
        first = number + 1
        length = self._lengths[first]
        if not length:
            return ()
        taken = range(first, first + min(length, count))
        self._shrink(first, first + length, taken.stop)
        return taken

    def take(self, count: int, at: int, held: int) -> list[int]:
        """At the hand, or in the widest runs where that is too narrow."""
        lengths = self._lengths
        if lengths[self._hand] < count + LEAST_ROOM:
            self._jump()
        taken: list[int] = []
        missing = count
        while lengths[self._hand] < missing:
            self._take_from(self._hand, count, at, taken)
            self._take_narrow(count, at, taken)
            missing = count - len(taken)
            if not missing:
                return taken
            self._jump()
        here = self._hand
        # Whoever has outgrown its run goes on to grow.
        self._pass(here + missing, LEAST_ROOM if held < 4 * LEAST_ROOM else held // 4)
        if count == 1:
            return [here]  # to make a range and read it is a tenth of what a table of one takes
        taken += range(here, here + missing)
        return taken

    def _take_narrow(self, count: int, at: int, taken: list[int]) -> None:
        """From one run after the other, the widest first, while none has room for all that is missing."""
        while (missing := count - len(taken)) and (first := self._find_widest(self._hand)) >= 0:
            length = self._lengths[first]
            if length >= missing:
                return
            if (at + len(taken)) % self._piece + length > self._piece:
                self._take_from(first, count, at, taken)
                continue
            # All of it, as often as there are small holes: what `_take_from` would come to.
            taken += range(first, first + length)
            self._count -= length
            self._lengths[first] = self._lengths[first + length - 1] = 0
            self._unlist(first)

    def _take_from(self, first: int, count: int, at: int, taken: list[int]) -> None:
        """From a run: up to the end of a piece, where it has no room for all that is missing."""
        end, stop = first + self._lengths[first], first + count - len(taken)
        if stop > end:
            here = at + len(taken)
            whole = (here + end - first) // self._piece * self._piece
            stop = first + whole - here if whole > here else end
        taken += range(first, stop)
        self._shrink(first, end, stop)

    def give(self, numbers: list[int]) -> None:
        self._count += len(numbers)
        if len(numbers) == 1:  # a table of one comes and goes all over the cache
            (first,) = numbers
            self._join(first, first + 1)
            return
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

    def _jump(self) -> None:
        """To the next of the widest runs; into its middle where a table lies before it, which may grow."""
        here, lengths = self._hand, self._lengths
        if length := lengths[here]:
            self._hand = len(self._refs)
            lengths[here] = lengths[here + length - 1] = 0
            self._join(here, here + length)
        first = self._find_widest(here)
        if first < 0:
            return
        end = first + lengths[first]
        hand = first
        self._unlist(first)
        if first and end - first > 2 * LEAST_PITCH and self._refs[first - 1] > 0:
            hand = _roundest(first + (end - first) // 4, end - (end - first) // 4)
            self._list(first, hand)
        self._lay_hand(hand, end)
        share = (end - hand) // PITCHES
        self._pitch = 1 << share.bit_length() - 1 if share > LEAST_PITCH else LEAST_PITCH

    def _pass(self, first: int, least: int) -> None:
        """What the hand lies on is taken up to this block: it goes on, and leaves room; all, where there is
        none for another table."""
        lengths, here = self._lengths, self._hand
        end = here + lengths[here]
        self._count -= first - here
        lengths[here] = 0
        at = first + least
        at += -at % self._pitch
        if at + LEAST_ROOM < end:
            lengths[at] = lengths[end - 1] = end - at
        else:
            lengths[end - 1] = 0
            at = end
        self._hand = at
        if first < at:
            self._list(first, at)

    def _lay_hand(self, first: int, end: int) -> None:
        """On a run, which is in no list."""
        self._hand = first
        self._lengths[first] = self._lengths[end - 1] = end - first

    # -- runs ------------------------------------------------------------------------------------

    def _list(self, first: int, end: int) -> None:
        """A run, which the hand is not at."""
        length = end - first
        self._lengths[first] = self._lengths[end - 1] = length
        bits = self._bits[first] = length.bit_length()
        at = first // NEIGHBOURS
        if bits > self._most_nearby[at]:
            self._most_nearby[at] = bits
            if bits > self._most:
                self._most = bits

    def _unlist(self, first: int) -> None:
        """No run begins here any more, or it is the hand's."""
        bits, self._bits[first] = self._bits[first], 0
        at = first // NEIGHBOURS
        if bits == self._most_nearby[at]:
            while bits and self._bits.find(bits, at * NEIGHBOURS, (at + 1) * NEIGHBOURS) < 0:
                bits -= 1
            self._most_nearby[at] = bits

    def _find_widest(self, behind: int) -> int:
        """The first block of the next that has the most bits, but for the hand's; below 0 where none is."""
        while self._most:
            at = self._most_nearby.find(self._most, behind // NEIGHBOURS)
            if at < 0:
                at = self._most_nearby.find(self._most)
            if at >= 0:
                return self._bits.find(self._most, at * NEIGHBOURS)
            self._most -= 1
        return -1

    def _shrink(self, first: int, end: int, begin: int) -> None:
        """The run begins later, or is no more; and the hand with it, where it was there."""
        self._count -= begin - first
        self._lengths[first] = self._lengths[end - 1] = 0
        if first == self._hand:
            self._hand = begin
            if begin < end:
                self._lay_hand(begin, end)
            return
        if begin < end:
            self._list(begin, end)
        self._unlist(first)

    def _join(self, first: int, end: int) -> None:
        """A run more, as one with those that it touches; but not across the hand."""
        lengths, hand = self._lengths, self._hand
        if first != hand and (before := lengths[first - 1]):
            lengths[first - 1] = 0
            first -= before
        if first < hand < end:  # blocks were given on both of its sides
            self._list(first, hand)
            first = hand
        if end != hand and (behind := lengths[end]):
            lengths[end] = 0
            # Where it was wide nearby, what it is in now is at least as wide.
            if first ^ end < NEIGHBOURS and first != hand:
                self._bits[end] = 0
            else:
                self._unlist(end)
            end += behind
        if first == hand:
            self._lay_hand(first, end)
        else:
            self._list(first, end)


def _roundest(low: int, high: int) -> int:
    """The number of a range, which begins above 0, that the largest power of two divides."""
    bits = ((low - 1) ^ (high - 1)).bit_length() - 1
    return (high - 1) >> bits << bits
