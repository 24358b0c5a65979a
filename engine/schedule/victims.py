"""Victim selection: whose blocks are taken when another sequence needs memory.

Idle holders lose them first, those with the least claim before others; then, of those who run, those of a
lower priority, and of one priority the last to come of a tenant that has more memory, or of the claimant's.
Where that is too little for a newcomer tenants share by time: who has waited for as long as a turn takes has
what another has had for as long.
An idle stream's claim fades by a level of priority in `AGING_STEPS`; a paused one's is below its equals' at
once, while one that waits for credit is as good as running for that long.

Nothing is taken in vain: either enough can be had, or nobody loses anything; and whoever is not needed for it
keeps what it has.

It knows who holds which blocks. It evicts nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from collections.abc import Sequence as Several
from collections.abc import Set as AbstractSet
from heapq import heapify, heappop, heapreplace, nlargest
from typing import NamedTuple

from engine.schedule.block_cache import BlockCache
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
    """What each tenant had in a step, and what came free where some gave up all that they had."""

    step: int
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
        by_it = holdings.may_have(tenant, blocks - 1) and holdings.alone([tenant]) >= blocks
        if len(self._by_one) > MOST_IN_VAIN:
            self._by_one = {one: held for one, held in self._by_one.items() if step < held.until}
        self._by_one[tenant] = Held(blocks, step + self._looked_in(step) // A_STEP, by_it)
        return by_it

    def givers(self, claimant: Sequence, blocks: int, step: int) -> Several[int]:
        """Tenants that are to give a newcomer so many in its turn, if they have them. What they began
        meanwhile, as forks or when short ones end, would never have had theirs. In every other turn: not all
        that they have may be its to take. What others hold, too, would not come free."""
        if turns_of(claimant, step) % 2 == 0:
            return ()
        holdings, had = self._holdings_in(step), self._had.get(claimant.priority)
        if had is None or step - had.step >= A_STEP:
            has = {one.tenant: holdings.of(one.tenant) for one in self._equals(claimant)}
            had = self._had[claimant.priority] = Had(step, has, {})
        others = {tenant: count for tenant, count in had.blocks.items() if tenant != claimant.tenant}
        givers = tuple(self._give_in_turn(claimant, step, others))
        if sum(others[one] for one in givers) < blocks:
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
        within = step + AGING_STEPS * claimant.priority
        yield from self._idle.before(within + 1)

        def left(holder: Sequence) -> bool:
            # Whoever waits for its own blocks to be loaded keeps them: what was taken meanwhile would be
            # there too late, and for nobody.
            seen = holder in self._idle and self._idle.key(holder) <= within
            return not seen and holder.stream not in running and not holder.pending_load

        yield from filter(left, self._all.before(rank(claimant.priority, NEWEST)))
        others = dict[int, dict[int, Sequence]]()  # by tenant, and stream
        if self.has_beside(claimant.tenant):
            for holder in filter(left, self._equals(claimant)):
                others.setdefault(holder.tenant, {})[holder.stream] = holder
            others.pop(claimant.tenant, None)
            yield from self._of_who_has_more(claimant, blocks, step, others)
        if claimant in self._all:
            later = self._all.before(self._rank_of(claimant), since=rank(claimant.priority, NEWEST))
            yield from (one for one in later if one.tenant == claimant.tenant and left(one))
            if others:
                yield from self._as_a_last_resort(claimant, step, others)
        else:
            yield from self._in_turn(claimant, step, others)

    def _of_who_has_more(
        self, claimant: Sequence, blocks: int, step: int, others: dict[int, dict[int, Sequence]]
    ) -> Iterator[Sequence]:
        """Of those equals, from the tenant that has most, who came last: as long as it still has clearly more
        than the claimant's will have. Tenants that have about as much take nothing from one another."""
        holdings, least = self._holdings_in(step), MORE * self._will_have(claimant, blocks, step)
        most = [(-holdings.of(tenant), tenant) for tenant in others if holdings.may_have(tenant, least)]
        heapify(most)
        last_first = {tenant: iter(list(others[tenant].values())) for _, tenant in most}
        while most:
            lacks, tenant = most[0]
            for holder in last_first[tenant]:
                given = holdings.gives(holder)
                if -lacks - given >= least:
                    heapreplace(most, (lacks + given, tenant))
                    yield others[tenant].pop(holder.stream)
                    break
            else:
                heappop(most)

    def _as_a_last_resort(
        self, claimant: Sequence, step: int, others: dict[int, dict[int, Sequence]]
    ) -> Iterator[Sequence]:
        """It runs, and is the last of its tenant: somebody has to go on. Whose tenant has less does, of
        tenants that have as much whoever came first."""
        holdings = self._holdings_in(step)
        own = holdings.of(claimant.tenant), claimant.stream
        for tenant in sorted(others, key=holdings.of, reverse=True):
            for one in others[tenant].values():
                if (holdings.of(tenant), one.stream) > own:
                    yield one

    def _in_turn(
        self, claimant: Sequence, step: int, others: dict[int, dict[int, Sequence]]
    ) -> Iterator[Sequence]:
        """Those that have had their turn, of as many tenants as the claimant has waited for turns: of who has
        most, and more than its own. So whoever needs what ten have gets it for an eleventh of the time, and
        nobody by waiting for its own tenant."""
        if turns_of(claimant, step):
            holdings = self._holdings_in(step)
            for tenant in self._give_in_turn(claimant, step, {one: holdings.of(one) for one in others}):
                yield from (one for one in others[tenant].values() if turns_of(one, step))

    def _give_in_turn(self, claimant: Sequence, step: int, has: dict[int, int]) -> list[int]:
        own = self._holdings_in(step).of(claimant.tenant, claimant)
        more = [tenant for tenant, blocks in has.items() if blocks > own]
        return nlargest(turns_of(claimant, step), more, key=has.__getitem__)

    def _equals(self, claimant: Sequence) -> Iterator[Sequence]:
        """The last to come first."""
        return self._all.before(rank(claimant.priority, -1), since=rank(claimant.priority, NEWEST))

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
        if self._holdings is not None and self._holdings[0] == step:
            blocks += self._cache.blocks.available
            self._holdings[1].take(claimant, blocks, losers, comes=claimant not in self._all)

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
    """For how many it has waited, or has had its memory."""
    return (step - sequence.memory_since) // A_TURN


def rank(priority: int, stream: int) -> int:
    """The lowest priority first, of one priority the last to come."""
    return 2 * NEWEST * priority - stream
