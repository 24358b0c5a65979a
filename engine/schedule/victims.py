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
from typing import NamedTuple

from engine.schedule.block_cache import BlockCache
from engine.schedule.ranking import Ranking
from engine.schedule.sequence import Sequence
from engine.schedule.serving_order import AGING_STEPS

NEWEST = 1 << 62  # a stream that came after all others
A_STEP = 64  # holders that may be looked at in vain in each: who looked at more looks again so much later


class InVain(NamedTuple):
    """A search for so many blocks found too few. Until that step it would again, for whoever may take from no
    more than the claimant of this rank."""

    rank: int
    blocks: int
    step: int
    until: int


class Holders:
    """Who holds memory, in the order in which it is taken."""

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._idle = Ranking()  # least claim first
        self._idle_blocks = 0  # in the tables of the idle: no more can be had of them
        self._held: dict[int, int] = {}  # by stream, of each of those
        self._all = Ranking()  # by rank
        self._in_vain: InVain | None = None  # the last search that was
        self._changed = False  # whether anybody holds something else since

    def file(self, sequence: Sequence) -> None:
        """After anything that may have changed whether it holds memory, or is idle."""
        self._changed = True
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
        self._changed = True
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
        claims = self._rank_of(claimant)
        if self._would_be_in_vain(claims, blocks, step):
            return []
        if blocks > self._idle_blocks and next(self._behind(claimant), None) is None:
            return []
        released = Released(self._cache.blocks.refs)
        taken: list[tuple[Sequence, list[Given]]] = []
        for holder in self._in_order(claimant, step, running):
            taken.append((holder, released.add(holder.held_tables)))
            if released.free >= blocks:
                return [one for one, its in taken if not released.spare(its, blocks)]
        self._in_vain = InVain(claims, blocks, step, step + len(taken) // A_STEP)
        self._changed = False
        return []

    def _would_be_in_vain(self, claims: int, blocks: int, step: int) -> bool:
        """As it was for whoever may take more, in this step or lately."""
        last = self._in_vain
        if last is None or claims > last.rank or blocks < last.blocks:
            return False
        return step < last.until or (step == last.step and not self._changed)

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
        return self._all.before(self._rank_of(claimant))

    def _rank_of(self, claimant: Sequence) -> int:
        return rank(claimant.priority, claimant.stream if claimant in self._all else NEWEST)

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


class Rest:
    """What may not come free of tables that are given up, and are the same there: from its first block up to
    its end. All before and behind that comes free."""

    __slots__ = ("_joined", "blocks", "end", "first", "met", "tables")

    def __init__(self, blocks: list[int]) -> None:
        self.blocks = blocks
        self.first, self.end = 0, len(blocks)
        self.tables = 1
        self.met: tuple[int, ...] = ()  # blocks that were its first or last, and that others hold too
        self._joined: Rest | None = None

    def __len__(self) -> int:
        return self.end - self.first

    @property
    def now(self) -> Rest:
        """It, or what it is one with by now."""
        rest = self
        while rest._joined is not None:
            rest = rest._joined
        return rest

    def pass_by(self, number: int) -> None:
        """Its first, or its last, comes free."""
        if self.blocks[self.first] == number:
            self.first += 1
        else:
            self.end -= 1

    def join(self, other: Rest) -> bool:
        """Be one with it, if both are the same."""
        place = slice(self.first, self.end)
        same = (self.first, self.end) == (other.first, other.end) and self.blocks[place] == other.blocks[
            place
        ]
        if same:
            self._joined = other
            other.tables += self.tables
        return same


class Given:
    """A table that is given up."""

    __slots__ = ("_blocks", "rest")

    def __init__(self, blocks: list[int]) -> None:
        self._blocks = blocks
        self.rest = Rest(blocks)

    @property
    def count(self) -> int:
        """Of its blocks, those that come free."""
        return len(self._blocks) - len(self.rest.now)

    @property
    def free(self) -> list[int]:
        rest = self.rest.now
        return self._blocks[: rest.first] + self._blocks[rest.end :]


class Released:
    """What would come free if some sequences released their tables: a shared block, once all of them do.

    What tables share lies together: what they begin with, or where a window slides what both still hold. So
    each is looked at from both sides, as far as it comes free: what many share is not looked at once for each
    of them. What lies between two shared ones, as where two have computed the same at once, is not found.
    """

    def __init__(self, refs: list[int]) -> None:
        self._refs = refs
        self._met: dict[int, list[Rest]] = {}  # by shared block: those that it is the first or the last of
        self._given = Counter[int]()  # and of how many tables
        self._kept: set[int] = set()  # shared blocks of those that were left out
        self.free = 0

    def add(self, tables: list[list[int]]) -> list[Given]:
        """Those of one more."""
        given = [Given(table) for table in tables]
        for one in given:
            self._look([one.rest])
        return given

    def _look(self, going_on: list[Rest]) -> None:
        while going_on:
            rest = going_on.pop()
            self._pass_own(rest)
            for number in (rest.blocks[rest.end - 1], rest.blocks[rest.first]) if rest else ():
                if number in rest.met:
                    continue
                rest.met += (number,)
                self._met.setdefault(number, []).append(rest)
                self._given[number] += rest.tables
                if self._given[number] == self._refs[number]:
                    going_on += self._pass_shared(number)

    def _pass_own(self, rest: Rest) -> None:
        """What nobody holds but these tables."""
        refs, blocks, tables, met = self._refs, rest.blocks, rest.tables, rest.met
        first, end = rest.first, rest.end
        while first < end and refs[blocks[end - 1]] == tables and blocks[end - 1] not in met:
            end -= 1
        while first < end and refs[blocks[first]] == tables and blocks[first] not in met:
            first += 1
        self.free += len(rest) - (end - first)
        rest.first, rest.end = first, end

    def _pass_shared(self, number: int) -> list[Rest]:
        """All who hold it give it up; returns those to be looked at further, as few as they come to."""
        self.free += 1
        one, *others = dict.fromkeys(rest.now for rest in self._met.pop(number))
        for rest in (one, *others):
            rest.pass_by(number)
        return [one, *(rest for rest in others if not rest.join(one))]

    def spare(self, given: list[Given], enough: int) -> bool:
        """Leave one out, who has these, if enough come free without it."""
        kept, count = self._kept, sum(one.count for one in given)
        if kept:
            count = sum(number not in kept for one in given for number in one.free)
        if self.free - count < enough:
            return False
        self.free -= count
        if count:
            kept.update(number for one in given for number in one.free if self._refs[number] > 1)
        return True
