"""Victim selection: whose blocks are taken when another sequence needs memory.

Idle holders lose them first, those with the least claim before others; then, of those who run, the last that
ranks behind. An idle stream's claim fades by a level of priority in `AGING_STEPS`; a paused one's is below
its equals' at once, while one that waits for credit is as good as running for that long.

Nothing is taken in vain: either enough can be had, or nobody loses anything; and whoever is not needed for it
keeps what it has.

It knows who holds which blocks. It evicts nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from engine.schedule.block_cache import BlockCache
from engine.schedule.ranking import Ranking
from engine.schedule.sequence import Sequence
from engine.schedule.serving_order import AGING_STEPS

NEWEST = 1 << 62  # a stream that came after all others
A_STEP = (
    1024  # blocks that may be looked at in vain in each: whoever looked at more looks again so much later
)


class Holders:
    """Who holds memory, in the order in which it is taken."""

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._idle = Ranking()  # least claim first
        self._idle_blocks = 0  # in the tables of the idle: no more can be had of them
        self._held: dict[int, int] = {}  # by stream, of each of those
        self._all = Ranking()  # by rank
        self._again: tuple[int, int] = (-1, 0)  # who looked in vain, and the step in which it may look again

    def file(self, sequence: Sequence) -> None:
        """After anything that may have changed whether it holds memory, or is idle."""
        if sequence.idle:
            self._idle.put(sequence, claim(sequence))
            held = len(sequence.held_blocks)
            self._idle_blocks += held - self._held.get(sequence.stream, 0)
            self._held[sequence.stream] = held
        else:
            self._discard_idle([sequence])
        if sequence.blocks:
            self._all.put(sequence, rank(sequence.priority, sequence.stream))
        else:
            self._all.discard([sequence])

    def discard(self, sequences: list[Sequence]) -> None:
        """They hold no memory."""
        self._discard_idle(sequences)
        self._all.discard(sequences)

    def _discard_idle(self, sequences: list[Sequence]) -> None:
        self._idle.discard(sequences)
        self._idle_blocks -= sum(self._held.pop(sequence.stream, 0) for sequence in sequences)

    def victims(
        self, claimant: Sequence, blocks: int, step: int, running: AbstractSet[int]
    ) -> list[Sequence]:
        """Those who are to lose their memory so that the claimant may have so many blocks; nobody where so
        many are not to be had. `running` are streams that have a row already."""
        stream, again = self._again
        if stream == claimant.stream and step < again:
            return []
        if blocks > self._idle_blocks and next(self._behind(claimant), None) is None:
            return []
        released = Released(self._cache.blocks.refs)
        taken: list[tuple[Sequence, list[int]]] = []
        for holder in self._in_order(claimant, step, running):
            held = holder.held_blocks
            taken.append((holder, held))
            if released.add(held, blocks):
                return [one for one, its in taken if not released.spare(its, blocks)]
        looked_at = sum(len(held) for _, held in taken)
        if looked_at > A_STEP:
            self._again = claimant.stream, step + looked_at // A_STEP
        return []

    def _in_order(self, claimant: Sequence, step: int, running: AbstractSet[int]) -> Iterator[Sequence]:
        within = step + AGING_STEPS * claimant.priority
        yield from self._idle.before(within + 1)
        for holder in self._behind(claimant):
            # Whoever waits for its own blocks to be loaded keeps them: what was taken meanwhile would be
            # there too late, and for nobody.
            seen = holder in self._idle and self._idle.key(holder) <= within
            if not seen and holder.stream not in running and not holder.pending_load:
                yield holder

    def _behind(self, claimant: Sequence) -> Iterator[Sequence]:
        """A newcomer is behind all of its equals; of those who run, each is behind those who came before."""
        stream = claimant.stream if claimant in self._all else NEWEST
        return self._all.before(rank(claimant.priority, stream))

    def audit(self, sequences: list[Sequence]) -> None:
        """Raise unless all are filed as they are."""
        for sequence in sequences:
            assert (sequence in self._all) == bool(sequence.blocks)
            assert (sequence in self._idle) == sequence.idle
            assert not sequence.idle or self._idle.key(sequence) == claim(sequence)
        held = [len(sequence.held_blocks) for sequence in sequences if sequence.idle]
        assert self._idle_blocks == sum(held)


def claim(sequence: Sequence) -> int:
    """The step from which an idle holder is behind those of priority 0."""
    return sequence.last_served + AGING_STEPS * (sequence.priority + (not sequence.paused))


def rank(priority: int, stream: int) -> int:
    """The lowest priority first, of one priority the last to come."""
    return 2 * NEWEST * priority - stream


class Released:
    """What would come free if some sequences released their blocks: a shared one, once all of them do."""

    def __init__(self, refs: list[int]) -> None:
        self._refs = refs
        self._shared = Counter[int]()  # references that are given up
        self._added: list[int] = []  # not looked at so far
        self._free = 0

    def add(self, blocks: list[int], enough: int) -> bool:
        """Those of one more; returns whether so many come free."""
        self._added += blocks
        return self._free + len(self._added) >= enough and self._count() >= enough

    def _count(self) -> int:
        refs = self._refs
        own = [refs[number] for number in self._added].count(1)
        self._free += own
        if own < len(self._added):
            for number in self._added:
                if refs[number] > 1:
                    self._shared[number] += 1
                    self._free += self._shared[number] == refs[number]
        self._added.clear()
        return self._free

    def spare(self, blocks: list[int], enough: int) -> bool:
        """Leave one out, who has these, if enough come free without it."""
        refs, shared = self._refs, self._shared
        own = len(blocks)
        if shared:
            own = sum(refs[number] == 1 or shared[number] == refs[number] for number in blocks)
        if self._free - own < enough:
            return False
        self._free -= own
        if shared:
            shared.subtract(number for number in blocks if refs[number] > 1)
        return True
