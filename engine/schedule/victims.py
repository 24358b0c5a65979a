"""Victim selection: whose blocks are taken when another sequence needs memory.

Idle holders lose them first, those with the least claim before others; then, of those who run, those of a
lower priority, and of one priority the last to come of a tenant that has more memory, or of the claimant's.
Where that is too little for a newcomer tenants share by time: who has waited for as long as a turn takes has
what another has had for as long. That begins with its first token: however long its prompt takes beside
others, what was computed of it is of use to it.
An idle stream's claim fades by a level of priority in `AGING_STEPS`; a paused one's is below its equals' at
once, while one that waits for credit is as good as running for that long.

Nothing is taken in vain: either enough can be had, or nobody loses anything; and whoever is not needed for it
keeps what it has.

It knows who holds which blocks. It evicts nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from collections.abc import Sequence as Several
from collections.abc import Set as AbstractSet
from functools import partial
from heapq import nlargest
from typing import NamedTuple

from engine.schedule.block_cache import BlockCache
from engine.schedule.equals import Equals, Left
from engine.schedule.holdings import Holdings
from engine.schedule.ranking import Ranking
from engine.schedule.released import Given, Released
from engine.schedule.sequence import Sequence
from engine.schedule.serving_order import AGING_STEPS

NEWEST = 1 << 62  # a stream that came after all others
A_STEP = 64  # holders that may be looked at in vain in each: who looked at more looks again so much later
MORE = 1.25  # times as much memory, which a tenant has that gives some to another
A_TURN = 64 * AGING_STEPS  # steps for which a tenant keeps what another waits for, in vain, for as long
MOST_IN_VAIN = 256  # searches that are remembered, but for those that would still be


class InVain(NamedTuple):
    """A search for so many blocks found too few. Until that step it would again, for whoever of this tenant
    may take from no more than the claimant of this rank, and has waited for no more turns; or as long as
    nobody holds something else."""

    rank: int
    turns: int
    blocks: int
    until: int
    changes: int


class Held(NamedTuple):
    """Whether so many blocks were held by a tenant alone. Until that step it is not looked at again."""

    blocks: int
    until: int
    by_it: bool


class Had(NamedTuple):
    """What tenants had in a step, so many of those that had most, and what came free where some gave up all
    that they had."""

    step: int
    tenants: int
    blocks: dict[int, int]
    alone: dict[tuple[int, ...], int]


class Holders:
    """Who holds memory, in the order in which it is taken."""

    def __init__(self, cache: BlockCache) -> None:
        self._cache = cache
        self._idle = Ranking()  # least claim first
        self._idle_blocks = 0  # in the tables of the idle: no more can be had of them
        self._held: dict[int, int] = {}  # by stream, of each of those
        self._all = Ranking()  # by rank
        self._tenants = Counter[int]()  # of all of them
        self._holdings: tuple[int, Holdings] | None = None  # in a step
        self._ordered: tuple[int, dict[int, Equals]] | None = None  # and those of each priority, in order
        self._had: dict[int, Had] = {}  # by priority
        self._in_vain: dict[int, InVain] = {}  # the last search of each tenant that was
        self._by_one: dict[int, Held] = {}  # by tenant, as it was when that was asked last
        self._changes = 0  # times that somebody may hold something else

    def __contains__(self, sequence: Sequence) -> bool:
        return sequence in self._all

    def file(self, sequence: Sequence) -> None:
        """After anything that may have changed whether it holds memory, or is idle."""
        self._changes += 1
        if sequence.idle:
            self._idle.put(sequence, claim(sequence))
            held = len(sequence.held_blocks)
            self._idle_blocks += held - self._held.get(sequence.stream, 0)
            self._held[sequence.stream] = held
        else:
            self._discard_idle([sequence])
        if sequence.blocks:
            self._tenants[sequence.tenant] += sequence not in self._all
            self._all.put(sequence, rank(sequence.priority, sequence.stream))
        else:
            self._discard([sequence])

    def discard(self, sequences: list[Sequence]) -> None:
        """They hold no memory."""
        self._changes += 1
        self._discard_idle(sequences)
        self._discard(sequences)

    def _discard(self, sequences: list[Sequence]) -> None:
        for sequence in sequences:
            if sequence in self._all:
                self._tenants[sequence.tenant] -= 1
                if not self._tenants[sequence.tenant]:
                    del self._tenants[sequence.tenant]
        self._all.discard(sequences)

    def _discard_idle(self, sequences: list[Sequence]) -> None:
        self._idle.discard(sequences)
        self._idle_blocks -= sum(self._held.pop(sequence.stream, 0) for sequence in sequences)

    def has_beside(self, tenant: int) -> bool:
        """Whether another holds memory."""
        return len(self._tenants) > (tenant in self._tenants)

    def hold(self, tenant: int, blocks: int, step: int) -> bool:
        """Whether streams of this tenant hold so many that nobody else does."""
        if not self.has_beside(tenant):
            return True  # whoever lacks them
        last = self._by_one.get(tenant)
        if last is not None and last.blocks == blocks and step < last.until:
            return last.by_it
        holdings = self._holdings_in(step)
        by_it = holdings.at_most(tenant) >= blocks and holdings.alone([tenant]) >= blocks
        if len(self._by_one) > MOST_IN_VAIN:
            self._by_one = {one: held for one, held in self._by_one.items() if step < held.until}
        self._by_one[tenant] = Held(blocks, step + self._looked_in(step) // A_STEP, by_it)
        return by_it

    def givers(self, claimant: Sequence, blocks: int, step: int) -> Several[int]:
        """Tenants that are to give a newcomer so many in its turn, if they have them. What they began
        meanwhile, as forks or when short ones end, would never have had theirs. In every other turn: not all
        that they have may be its to take. What others hold, too, would not come free."""
        if (turns := turns_of(claimant, step)) % 2 == 0:
            return ()
        holdings, had = self._holdings_in(step), self._had.get(claimant.priority)
        if had is None or step - had.step >= A_STEP or turns >= had.tenants:
            equals = Equals(self._equals(claimant.priority), lambda: holdings, lambda one: True)
            had = self._had[claimant.priority] = Had(step, turns + 1, equals.most(turns + 1), {})
        givers = tuple(self._give_in_turn(claimant, step, had.blocks))
        if sum(had.blocks[one] for one in givers) < blocks:
            return ()
        if givers not in had.alone:
            had.alone[givers] = holdings.alone(givers)
        return givers if had.alone[givers] >= blocks else ()

    def victims(
        self, claimant: Sequence, blocks: int, step: int, running: AbstractSet[int]
    ) -> list[Sequence]:
        """Those who are to lose their memory so that the claimant may have so many blocks; nobody where so
        many are not to be had. `running` are streams that have a row already."""
        if self._would_be_in_vain(claimant, blocks, step):
            return []
        some = self.has_beside(claimant.tenant) or next(self._behind(claimant), None) is not None
        if blocks > self._idle_blocks and not some:
            return []
        released = Released(self._cache.blocks.refs)
        taken: list[tuple[Sequence, list[Given]]] = []
        for holder in self._in_order(claimant, blocks, step, running):
            taken.append((holder, released.add(holder.held_tables)))
            if released.free >= blocks:
                needed = [one for one, its in taken if not released.spare(its, blocks)]
                self._note(claimant, blocks, step, needed)
                return needed
        self._remember_in_vain(claimant, blocks, step, len(taken) + self._looked_in(step))
        return []

    # -- in vain ---------------------------------------------------------------------------------

    def _would_be_in_vain(self, claimant: Sequence, blocks: int, step: int) -> bool:
        """As it was for whoever may take more, in this step or lately."""
        last = self._in_vain.get(claimant.tenant)
        if last is None or self._rank_of(claimant) > last.rank or blocks < last.blocks:
            return False
        if turns_of(claimant, step) > last.turns:
            return False
        return step < last.until or (step == last.until and self._changes == last.changes)

    def _remember_in_vain(self, claimant: Sequence, blocks: int, step: int, looked: int) -> None:
        if len(self._in_vain) > MOST_IN_VAIN:
            self._in_vain = {tenant: one for tenant, one in self._in_vain.items() if step <= one.until}
        until = step + looked // A_STEP
        rank, turns = self._rank_of(claimant), turns_of(claimant, step)
        self._in_vain[claimant.tenant] = InVain(rank, turns, blocks, until, self._changes)

    # -- the order -------------------------------------------------------------------------------

    def _in_order(
        self, claimant: Sequence, blocks: int, step: int, running: AbstractSet[int]
    ) -> Iterator[Sequence]:
        yield from self._idle.before(step + AGING_STEPS * claimant.priority + 1)
        left = self._left(claimant.priority, step, running)
        yield from filter(left, self._all.before(rank(claimant.priority, NEWEST)))
        equals, given = self._equals_in(step, claimant.priority, left), set[int]()
        if others := self.has_beside(claimant.tenant):
            least = MORE * self._will_have(claimant, blocks, step)
            for holder in equals.of_who_has_more(claimant.tenant, least):
                given.add(holder.stream)
                yield holder
        rest: Iterable[Sequence] = ()
        if claimant in self._all:
            yield from equals.later(claimant)
            rest = equals.of_who_has_as_much(claimant) if others else ()
        elif turns_of(claimant, step):
            rest = self._in_turn(claimant, step, equals)
        yield from (holder for holder in rest if holder.stream not in given)

    def _left(self, priority: int, step: int, running: AbstractSet[int]) -> Left:
        within = step + AGING_STEPS * priority

        def left(holder: Sequence) -> bool:
            # Whoever waits for its own blocks to be loaded keeps them: what was taken meanwhile would be
            # there too late, and for nobody.
            seen = holder in self._idle and self._idle.key(holder) <= within
            kept = holder.stream in running or holder.pending_load or not holder.blocks
            return not (seen or kept)

        return left

    def _in_turn(self, claimant: Sequence, step: int, equals: Equals) -> Iterator[Sequence]:
        """Those that have had their turn, of as many tenants as the claimant has waited for turns: of who has
        most, and more than its own. So whoever needs what ten have gets it for an eleventh of the time, and
        nobody by waiting for its own tenant."""
        most = equals.most(turns_of(claimant, step) + 1)
        for tenant in self._give_in_turn(claimant, step, most):
            yield from (one for one in equals.of(tenant) if turns_of(one, step))

    def _give_in_turn(self, claimant: Sequence, step: int, has: dict[int, int]) -> list[int]:
        own = self._holdings_in(step).of(claimant.tenant, claimant)
        more = [tenant for tenant, blocks in has.items() if blocks > own and tenant != claimant.tenant]
        return nlargest(turns_of(claimant, step), more, key=has.__getitem__)

    def _equals(self, priority: int) -> Iterator[Sequence]:
        """The last to come first."""
        return self._all.before(rank(priority, -1), since=rank(priority, NEWEST))

    def _behind(self, claimant: Sequence) -> Iterator[Sequence]:
        """A newcomer is behind all of its tenant's equals; of those who run, each is behind those who came
        before."""
        return self._all.before(self._rank_of(claimant))

    def _rank_of(self, claimant: Sequence) -> int:
        return rank(claimant.priority, claimant.stream if claimant in self._all else NEWEST)

    # -- what tenants have -----------------------------------------------------------------------

    def _holdings_in(self, step: int) -> Holdings:
        if self._holdings is None or self._holdings[0] != step:
            self._holdings = step, Holdings(self._all.sequences, self._cache.blocks.refs)
        return self._holdings[1]

    def _equals_in(self, step: int, priority: int, left: Left) -> Equals:
        if self._ordered is None or self._ordered[0] != step:
            self._ordered = step, {}
        equals = self._ordered[1]
        if priority not in equals:
            equals[priority] = Equals(self._equals(priority), partial(self._holdings_in, step), left)
        return equals[priority]

    def _looked_in(self, step: int) -> int:
        """How many holders, or as much work, for what tenants have."""
        if self._holdings is None or self._holdings[0] != step:
            return 0
        return len(self._all) + self._holdings[1].looked // A_STEP

    def _will_have(self, claimant: Sequence, blocks: int, step: int) -> int:
        """How many its tenant does, once it has so many that are to be taken."""
        return self._holdings_in(step).of(claimant.tenant, claimant) + self._cache.blocks.available + blocks

    def _note(self, claimant: Sequence, blocks: int, step: int, losers: list[Sequence]) -> None:
        """What is taken, for who looks in the same step."""
        if self._holdings is None or self._holdings[0] != step:
            return
        blocks += self._cache.blocks.available
        self._holdings[1].take(claimant, blocks, losers, comes=claimant not in self._all)
        for equals in self._ordered[1].values() if self._ordered else ():
            for tenant in {one.tenant for one in (claimant, *losers)}:
                equals.change(tenant)

    def audit(self, sequences: list[Sequence]) -> None:
        """Raise unless all are filed as they are."""
        for sequence in sequences:
            assert (sequence in self._all) == bool(sequence.blocks)
            assert (sequence in self._idle) == sequence.idle
            assert not sequence.idle or self._idle.key(sequence) == claim(sequence)
        held = [len(sequence.held_blocks) for sequence in sequences if sequence.idle]
        assert self._idle_blocks == sum(held)
        assert self._tenants == Counter(sequence.tenant for sequence in sequences if sequence.blocks)


def claim(sequence: Sequence) -> int:
    """The step from which an idle holder is behind those of priority 0."""
    return sequence.last_served + AGING_STEPS * (sequence.priority + (not sequence.paused))


def turns_of(sequence: Sequence, step: int) -> int:
    """For how many it has waited, or has had tokens of its memory."""
    return max(0, step - sequence.memory_since) // A_TURN


def rank(priority: int, stream: int) -> int:
    """The lowest priority first, of one priority the last to come."""
    return 2 * NEWEST * priority - stream
