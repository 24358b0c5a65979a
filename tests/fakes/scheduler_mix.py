"""A mix: streams of several tenants and priorities that come, stop, go on and go, at random, on a scheduler
whose promises are checked at every step.

It is told by its seed and its sizes alone. What it checks is written without the scheduler's own data.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from itertools import pairwise

from engine.api import Sampling
from engine.schedule.batch import Batch
from engine.schedule.block_cache import BlockCache
from engine.schedule.scheduler import DUE_SHARE, Scheduler
from engine.schedule.sequence import OWN, Sequence
from engine.schedule.serving_order import AGING_STEPS
from engine.schedule.victims import A_TURN, MORE
from tests.fakes.instant_steps import InstantSteps

BLOCK, CONTEXT = 4, 64
PRIORITIES = (-1, 0, 0, 0, 1)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    blocks: int
    step_tokens: int
    batch_rows: int
    streams: int
    tenants: int
    overlap: bool


class Mix:
    """`anew`: whether what tenants have is counted anew by each who looks for memory, so that all of it is as
    it stands; else who looks behind others in a step goes by what was counted for them."""

    def __init__(self, seed: int, sizes: Sizes, *, anew: bool = True) -> None:
        self.random = random.Random(seed)
        self._anew = anew
        self.sizes = sizes
        self.cache = BlockCache(sizes.blocks, BLOCK)
        self.scheduler = Scheduler(
            self.cache,
            step_tokens=sizes.step_tokens,
            batch_rows=sizes.batch_rows,
            tenant_prefill=10**6,
            prompt_tokens=self._prompt_tokens,
        )
        self.steps = InstantSteps(self.scheduler, overlap=sizes.overlap)
        self.count = 0
        self.happened = Counter[str]()
        self._prompts_yield = False  # in the step that is planned
        self._waited = Counter[int]()  # steps of each stream that lacked nothing
        holders = self.scheduler._holders
        self._victims = holders.victims
        holders.victims = self._checked_victims  # type: ignore[method-assign]
        self._caught_up = set[int]()  # tenants, in this step
        self._catch_up = self.cache.catch_up
        self.cache.catch_up = self._noted_catch_up  # type: ignore[method-assign]

    def play(self, steps: int) -> Counter[str]:
        for _ in range(steps):
            self._steer()
            self._step()
        return self.happened

    # -- what happens ----------------------------------------------------------------------------

    def _steer(self) -> None:
        chance = self.random.random
        while len(self.scheduler.sequences) < self.sizes.streams and chance() < 0.5:
            self._add()
        for sequence in list(self.scheduler.sequences.values()):
            if sequence.stalled and chance() < 0.3:
                sequence.credit += self.random.choice((1, 1, 2, 30))
            elif not sequence.paused and chance() < 0.01:
                sequence.give_up_in_flight()
                sequence.paused = True
                sequence.preempted = False
            elif sequence.paused and chance() < 0.05:
                sequence.paused = False
            elif chance() < 0.02:
                sequence.memory_since -= A_TURN  # as if that had been so for long
            else:
                continue
            self.scheduler.update_ready(sequence)

    def _add(self) -> None:
        self.count += 1
        pick = self.random
        same = pick.random() < 0.3
        prompt = [0 if same else self.count] * pick.choice((1, 3, 10, 20, 50))
        sequence = Sequence(
            self.count,
            prompt,
            Sampling(max_tokens=pick.choice((3, 20, 60))),
            credit=pick.choice((0, 1, 3, 60, 60)),
            context=CONTEXT,
            priority=pick.choice(PRIORITIES),
            tenant=pick.randrange(self.sizes.tenants),
            cache_of=0 if pick.random() < 0.5 else OWN,
        )
        if pick.random() < 0.1:
            sequence.num_yielding = len(prompt) - 1  # of an engine that is gone
        self.scheduler.add(sequence)

    def _step(self) -> None:
        sequences = list(self.scheduler.sequences.values())
        lacking_nothing = {one.stream: one for one in sequences if self._lacks_nothing(one)}
        served = {one.stream: one.last_served for one in sequences}
        told = {one.stream for one in sequences if one.preempted}
        checked = self.scheduler.schedule

        def schedule() -> Batch:
            self._prompts_yield = False
            self._caught_up.clear()
            batch = checked()
            self._check(batch, lacking_nothing, served, told)
            return batch

        self.scheduler.schedule = schedule  # type: ignore[method-assign]
        try:
            self.steps.take()
        finally:
            del self.scheduler.schedule
        self.cache.audit(self.scheduler.sequences.values())
        self.scheduler.audit()

    # -- what is promised ------------------------------------------------------------------------

    def _lacks_nothing(self, sequence: Sequence) -> bool:
        """It has its credit, and the memory for its next token."""
        room = len(sequence.blocks) * BLOCK > sequence.next_position
        return sequence.decoding and room and not self.cache.shared(sequence)

    def _prompt_tokens(self, rows: int) -> int:
        self._prompts_yield = True
        return self.sizes.step_tokens // 2

    def _check(
        self, batch: Batch, able: dict[int, Sequence], served: dict[int, int], told: AbstractSet[int]
    ) -> None:
        rows = {row.sequence.stream: row for row in batch.rows}
        evicted = self.scheduler._evicted  # in this step, though some may have memory again by now
        left = {one: able[one] for one in able.keys() - rows.keys() - evicted if able[one].blocks}
        self._check_work_conserving(batch, left)
        self._check_bound(rows.keys(), left)
        for one in left.values():
            for stream in rows.keys() & able.keys():
                self._check_no_inversion(one, able[stream], served[stream])
        for sequence in self.scheduler.sequences.values():
            lost = sequence.admitted and not sequence.blocks and sequence.num_to_compute
            assert not lost or sequence.preempted, "whoever is kept from going on by memory is told"
        assert told.isdisjoint(one.stream for one in batch.preempted), "once"
        self.happened["told"] += len(batch.preempted)
        self.happened["rows"] += len(rows)

    def _check_work_conserving(self, batch: Batch, left: dict[int, Sequence]) -> None:
        tokens = sum(row.count for row in batch.rows)
        if tokens >= self.scheduler.step_tokens or len(batch.rows) >= self.scheduler.batch_rows:
            self.happened["full"] += 1
            return
        assert not left, "a step that has room leaves nobody out that lacks nothing"
        if self._prompts_yield:
            prompts = sum(row.count for row in batch.rows if row.count > 1)
            assert prompts <= self.sizes.step_tokens // 2, "they leave half of a step to those who decode"
            self.happened["yielded"] += 1
            return
        running = {row.sequence.stream for row in batch.rows}
        waiting = [
            one
            for one in self.scheduler.sequences.values()
            if one.num_to_compute
            and one.stream not in running
            and one.stream not in self.scheduler._evicted
            and not self.scheduler._prefixes.follows(one)
            and not self.scheduler._memory_line.holds_back(one)
        ]
        available = self.cache.free + self.cache.cached
        needed = [self.cache.blocks_for(one.num_tokens + 1) - len(one.blocks) for one in waiting]
        assert not needed or max(needed) > available, "nor anybody for whom there is room"

    def _check_bound(self, rows: AbstractSet[int], left: dict[int, Sequence]) -> None:
        """As `docs/architecture.md` has it."""
        self._waited = Counter({stream: self._waited[stream] + 1 for stream in left})
        due_rows = max(1, (min(self.sizes.batch_rows, self.sizes.step_tokens) - 1) // DUE_SHARE)
        for stream, waited in self._waited.items():
            levels = max(1, max(PRIORITIES) - left[stream].priority)
            assert waited <= AGING_STEPS * levels + -(-self.sizes.streams // due_rows) + 1
            self.happened["due"] += waited >= AGING_STEPS

    def _check_no_inversion(self, left: Sequence, served: Sequence, last_served: int) -> None:
        levels = left.priority - served.priority
        waited = self.scheduler.steps - last_served
        assert levels <= 0 or waited >= AGING_STEPS * levels, "a lower one goes first only when it is due"

    def _checked_victims(
        self, claimant: Sequence, blocks: int, step: int, running: AbstractSet[int]
    ) -> list[Sequence]:
        self._check_counted(step)
        holders = self.scheduler._holders
        if self._anew:  # what tenants have by now, and not as the step began
            holders._holdings = holders._ordered = None
        victims = self._victims(claimant, blocks, step, running)
        may = self._may_lose(claimant, blocks, running) if self._anew else victims
        assert set(victims) <= set(may), "only from those that rank behind, or whose tenant has more"
        if victims:
            assert self._freed(victims) >= blocks, "nothing is taken in vain"
            for one in victims:
                rest = [other for other in victims if other is not one]
                assert self._freed(rest) < blocks, "nor from anybody in vain"
        else:
            assert self._freed(may) < blocks, "what can be had is had"
        self.happened["taken" if victims else "left"] += 1
        return victims

    def _noted_catch_up(self, sequence: Sequence, most: int) -> int:
        if blocks := self._catch_up(sequence, most):
            self._caught_up.add(sequence.tenant)
        return blocks

    def _check_counted(self, step: int) -> None:
        """But for what came free and was given out since, or given up for what another computed."""
        holders = self.scheduler._holders
        if (known := holders._holdings) is None or known[0] != step:
            return
        for tenant in known[1]._blocks.keys() - self._caught_up:
            assert known[1].of(tenant) <= self._has(tenant), "nobody has what was taken in this step"
        ordered = holders._ordered
        for equals in ordered[1].values() if ordered and ordered[0] == step else ():
            assert equals._ranked == sorted(equals._entries.values())
            self.happened["in order"] += len(equals._ranked) > 1

    def _freed(self, holders: list[Sequence]) -> int:
        """Blocks that nobody else holds."""
        owners = Counter(number for one in holders for number in one.blocks)
        return sum(count == self.cache.blocks.refs[number] for number, count in owners.items())

    def _may_lose(self, claimant: Sequence, blocks: int, running: AbstractSet[int]) -> list[Sequence]:
        holders = [
            one
            for one in self.scheduler.sequences.values()
            if one is not claimant and one.blocks and one.stream not in running
        ]
        behind = [one for one in holders if self._behind(one, claimant)]
        others = [
            one
            for one in holders
            if one not in behind and one.priority == claimant.priority and one.tenant != claimant.tenant
        ]
        others.sort(key=lambda one: -one.stream)
        has = {one.tenant: self._has(one.tenant) for one in others}
        runs = claimant in self.scheduler._holders._all
        own = self._has(claimant.tenant)
        available = self.cache.free + self.cache.cached
        least = MORE * (own + available + blocks)
        left, more = dict(has), list[Sequence]()
        gives = {one: given for tenant in has for one, given in self._gives(tenant).items()}
        while tenants := [one for one, count in left.items() if count > least]:
            tenant = max(tenants, key=lambda one: left[one])
            rest = (one for one in others if one.tenant == tenant and one not in more)
            one = next((one for one in rest if left[tenant] - gives[one] >= least), None)
            if one is None:
                del left[tenant]
            else:
                more.append(one)
                left[tenant] -= gives[one]
        self.happened["of who has more"] += bool(more)
        last = [one for one in others if (has[one.tenant], one.stream) > (own, claimant.stream)]
        last = last if runs else self._in_turn(claimant, others, has, own)
        return [*dict.fromkeys((*behind, *more, *last))]

    def _in_turn(
        self, claimant: Sequence, others: list[Sequence], has: dict[int, int], own: int
    ) -> list[Sequence]:
        step = self.scheduler.steps
        turns = (step - claimant.memory_since) // A_TURN
        most = sorted((one for one in has if has[one] > own), key=has.__getitem__, reverse=True)[:turns]
        in_turn = [one for one in others if one.tenant in most and step - one.memory_since >= A_TURN]
        self.happened["in turn"] += bool(in_turn)
        return in_turn

    def _has(self, tenant: int) -> int:
        """Blocks, each once."""
        sequences = self.scheduler.sequences.values()
        return len({number for one in sequences if one.tenant == tenant for number in one.blocks})

    def _gives(self, tenant: int) -> dict[Sequence, int]:
        """Of what the tenant has, what each gives up behind those who came later, or rank lower."""
        sequences = self.scheduler.sequences.values()
        holders = [one for one in sequences if one.tenant == tenant and one in self.scheduler._holders._all]
        holders.sort(key=lambda one: (one.priority, -one.stream))
        has = [len({at for one in holders[count:] for at in one.blocks}) for count in range(len(holders) + 1)]
        return {one: more - less for one, (more, less) in zip(holders, pairwise(has), strict=True)}

    def _behind(self, holder: Sequence, claimant: Sequence) -> bool:
        if holder.num_to_compute == 0 and holder.num_in_flight == 0:
            levels = holder.priority - claimant.priority + (0 if holder.paused else 1)
            if self.scheduler.steps - holder.last_served >= AGING_STEPS * levels:
                return True
        if holder.priority != claimant.priority:
            return holder.priority < claimant.priority
        # Of its tenant's equals, only those that came later, and only for one that runs: a newcomer waits.
        runs = claimant in self.scheduler._holders._all
        return runs and holder.tenant == claimant.tenant and holder.stream > claimant.stream
