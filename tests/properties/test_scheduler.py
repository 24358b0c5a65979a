"""The scheduler's properties over thousands of steps, with no model and no time.

A model here is one line: a row that samples makes the next token known. Sequences come and go, stop and go
on, and after every step blocks are conserved, the budget is kept and nobody runs who must not; in the end
everybody who lacks nothing has been served.
"""

from __future__ import annotations

import os

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine.api import Sampling
from engine.schedule.batch import Batch
from engine.schedule.block_cache import BlockCache
from engine.schedule.host_cache import HostCache
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import OWN, Sequence
from engine.schedule.serving_order import AGING_STEPS
from engine.schedule.windows import Windows
from tests.fakes.instant_steps import InstantSteps
from tests.fakes.written_blocks import WrittenBlocks

EXAMPLES = os.environ.get("MIDSTREAM_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 60),
    stateful_step_count=60,
    derandomize=EXAMPLES is None,
    database=None,
)
BLOCK, CONTEXT = 4, 64
# Of the groups of layers; a window may be less than a block, end at one, or be longer than any prompt.
WINDOWS: list[tuple[int | None, ...]] = [(None,), (None,), (None, 9), (6,), (None, 1, 13), (8, 3), (None, 60)]
PICK = st.integers(0, 11)


def advance(scheduler: Scheduler) -> Batch:
    return InstantSteps(scheduler).take()


class Turns(RuleBasedStateMachine):
    @initialize(
        windows=st.sampled_from(WINDOWS),
        more_blocks=st.integers(0, 23),
        step_tokens=st.integers(2, 20),
        batch_rows=st.integers(2, 6),
        overlap=st.booleans(),
        host_blocks=st.sampled_from([0, 5, 40]),
    )
    def open(
        self,
        windows: tuple[int | None, ...],
        more_blocks: int,
        step_tokens: int,
        batch_rows: int,
        overlap: bool,
        host_blocks: int,
    ) -> None:
        least = Windows(windows, BLOCK, step_tokens).blocks(CONTEXT) + len(windows)
        self.cache = BlockCache(least + more_blocks, BLOCK, windows=windows, chunk=step_tokens)
        self.scheduler = Scheduler(
            self.cache,
            step_tokens=step_tokens,
            batch_rows=batch_rows,
            tenant_prefill=CONTEXT,
            host_cache=HostCache(host_blocks),
        )
        self.steps = InstantSteps(self.scheduler, overlap=overlap, written=WrittenBlocks(BLOCK, windows))
        self.count = 0

    @rule(
        prompt=st.integers(1, 50),
        max_tokens=st.integers(1, 30),
        credit=st.integers(0, 30),
        tenant=st.integers(0, 2),
        cache_of=st.sampled_from([OWN, 0]),
        priority=st.integers(-1, 1),
    )
    def add(
        self, prompt: int, max_tokens: int, credit: int, tenant: int, cache_of: int, priority: int
    ) -> None:
        self.count += 1
        self.scheduler.add(
            Sequence(
                self.count,
                list(range(prompt)),
                Sampling(max_tokens=max_tokens),
                credit=credit,
                context=CONTEXT,
                priority=priority,
                tenant=tenant,
                cache_of=cache_of,
            )
        )

    @rule(at=PICK, more=st.integers(1, 9))
    def grant(self, at: int, more: int) -> None:
        for sequence in self.pick(at):
            sequence.credit += more
            self.scheduler.update_ready(sequence)

    @rule(at=PICK, release=st.booleans())
    def pause(self, at: int, release: bool) -> None:
        for sequence in self.pick(at):
            sequence.paused = True
            sequence.preempted = False
            if release:
                sequence.give_up_in_flight()
                self.scheduler.release_blocks(sequence)
            self.scheduler.update_ready(sequence)

    @rule(at=PICK)
    def resume(self, at: int) -> None:
        for sequence in self.pick(at):
            sequence.paused = False
            if sequence.evicted:
                self.scheduler.restore_blocks(sequence)
            self.scheduler.update_ready(sequence)

    @rule(at=PICK, back=st.integers(0, 9))
    def truncate(self, at: int, back: int) -> None:
        for sequence in self.pick(at):
            sequence.truncate(max(0, sequence.num_outputs - back))
            self.scheduler.release_blocks(sequence, keep=sequence.next_position)
            self.scheduler.update_ready(sequence)

    @rule(at=PICK, count=st.integers(1, 9))
    def inject(self, at: int, count: int) -> None:
        for sequence in self.pick(at):
            if sequence.num_tokens + count < CONTEXT:
                sequence.inject([2000] * count)
                self.scheduler.update_ready(sequence)

    @rule()
    def arrive(self) -> None:
        self.steps.finish_load()

    @rule(at=PICK)
    def remove(self, at: int) -> None:
        for sequence in self.pick(at):
            self.scheduler.remove(sequence)

    @rule(times=st.integers(1, 5))
    def step(self, times: int) -> None:
        for _ in range(times):
            may = {stream for stream, sequence in self.scheduler.sequences.items() if not sequence.paused}
            self.check(self.steps.take(), may)

    def check(self, batch: Batch, may: set[int]) -> None:
        streams = [row.sequence.stream for row in batch.rows]
        assert len(streams) == len(set(streams)) <= self.scheduler.batch_rows
        assert sum(row.count for row in batch.rows) <= self.scheduler.step_tokens
        assert all(row.count > 0 for row in batch.rows)
        assert may.issuperset(streams), "who is paused is in no batch"
        assert all(not row.samples or row.index < row.sequence.credit for row in batch.rows)
        preempted = {sequence.stream for sequence in batch.preempted}
        assert preempted.isdisjoint(streams), "who lost its memory does not run"

    @invariant()
    def conserved(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.cache.audit(self.scheduler.sequences.values())
        self.scheduler.host_cache.audit()
        self.scheduler.audit()
        sequences = self.scheduler.sequences.values()
        for sequence in sequences:
            rows = [row for row in self.steps.rows if row.sequence is sequence]
            assert sequence.num_in_flight == sum(row.kept for row in rows)
            assert sequence.num_placeholders == sum(row.num_awaited for row in rows)
        wanting = sum(sequence.num_to_compute > 0 for sequence in sequences)
        waiting = sum(not sequence.num_to_compute and sequence.num_in_flight > 0 for sequence in sequences)
        assert wanting <= self.scheduler.num_ready <= wanting + waiting, (
            "whoever has something to compute is ready"
        )

    def pick(self, at: int) -> list[Sequence]:
        sequences = list(self.scheduler.sequences.values())
        return [sequences[at % len(sequences)]] if sequences else []

    def teardown(self) -> None:
        """Nobody starves: each step does something, so the work that is left bounds the steps."""
        if not hasattr(self, "scheduler"):
            return
        for sequence in self.scheduler.sequences.values():
            sequence.paused = False
            sequence.credit = CONTEXT
            self.scheduler.update_ready(sequence)
        for _ in range(100 + 2 * CONTEXT * self.count):
            if not self.scheduler.sequences:
                break
            self.steps.finish_load()
            self.steps.take()
        assert not self.scheduler.sequences
        assert self.cache.used == 0


TestTurns = Turns.TestCase
TestTurns.settings = SETTINGS


def add_streams(
    scheduler: Scheduler, streams: range, *, tenant: int, prompt: int = 1, priority: int = 0
) -> None:
    for stream in streams:
        tokens = [stream] * prompt
        endless = Sequence(
            stream, tokens, Sampling(), credit=10**9, context=10**9, tenant=tenant, priority=priority
        )
        scheduler.add(endless)


def outputs(scheduler: Scheduler, streams: range) -> list[int]:
    return [scheduler.sequences[stream].num_outputs for stream in streams]


def test_tenants_share_by_tokens_and_not_by_streams() -> None:
    scheduler = Scheduler(BlockCache(4000, 4), step_tokens=4, batch_rows=4, tenant_prefill=CONTEXT)
    add_streams(scheduler, range(20), tenant=1)
    add_streams(scheduler, range(20, 22), tenant=2)
    for _ in range(400):
        advance(scheduler)
    many, few = sum(outputs(scheduler, range(20))), sum(outputs(scheduler, range(20, 22)))
    assert abs(many - few) <= 0.1 * many
    one, other = outputs(scheduler, range(20, 22))
    assert abs(one - other) <= 2


def test_a_long_prompt_delays_nobodys_next_token() -> None:
    scheduler = Scheduler(BlockCache(4000, 4), step_tokens=8, batch_rows=8, tenant_prefill=10_000)
    add_streams(scheduler, range(4), tenant=1)
    while min(outputs(scheduler, range(4))) < 1:
        advance(scheduler)
    add_streams(scheduler, range(4, 5), tenant=1, prompt=500)
    before = outputs(scheduler, range(4))
    while not scheduler.sequences[4].num_outputs:
        batch = advance(scheduler)
        before = [count + 1 for count in before]
        assert outputs(scheduler, range(4)) == before, "everybody has a token every step"
        assert sum(row.count for row in batch.rows) == scheduler.step_tokens, (
            "and the rest of it goes to the prompt"
        )


def test_waiting_raises_a_rank() -> None:
    scheduler = Scheduler(BlockCache(4000, 4), step_tokens=3, batch_rows=3, tenant_prefill=CONTEXT)
    add_streams(scheduler, range(6), tenant=1, priority=2)
    add_streams(scheduler, range(6, 7), tenant=1, priority=0)
    served = 0
    for _ in range(10 * AGING_STEPS):
        advance(scheduler)
        served = scheduler.sequences[6].num_outputs
    assert served >= 2
    assert served < min(outputs(scheduler, range(6))), "but a higher priority still goes first"


def test_somebody_who_prepares_joins_a_full_batch() -> None:
    scheduler = Scheduler(BlockCache(4000, 4), step_tokens=4, batch_rows=4, tenant_prefill=CONTEXT)
    add_streams(scheduler, range(8), tenant=1)
    for _ in range(10):
        advance(scheduler)
    add_streams(scheduler, range(8, 9), tenant=1, prompt=12)
    for _ in range(14):
        advance(scheduler)
    assert scheduler.sequences[8].num_outputs


def test_an_idle_holder_is_evicted_before_anyone_who_runs() -> None:
    scheduler = Scheduler(BlockCache(6, 4), step_tokens=16, batch_rows=4, tenant_prefill=CONTEXT)
    add_streams(scheduler, range(2), tenant=1, prompt=8)
    for _ in range(2):
        advance(scheduler)
    paused, running = scheduler.sequences[0], scheduler.sequences[1]
    paused.paused = True
    scheduler.update_ready(paused)
    for _ in range(6):
        batch = advance(scheduler)
        assert not batch.preempted
    assert not paused.blocks
    assert running.num_outputs >= 8
    assert scheduler.evictions == 1


def test_what_is_out_of_credit_costs_nothing_until_a_grant() -> None:
    scheduler = Scheduler(BlockCache(8, 4), step_tokens=16, batch_rows=4, tenant_prefill=CONTEXT)
    sequence = Sequence(0, [1, 2, 3], Sampling(), credit=2, context=CONTEXT)
    scheduler.add(sequence)
    while not scheduler.idle:
        advance(scheduler)
    assert (sequence.num_outputs, sequence.stalled) == (2, True)
    assert advance(scheduler).rows == []
    sequence.credit = 3
    scheduler.update_ready(sequence)
    (row,) = advance(scheduler).rows
    assert (row.count, row.samples) == (1, True)
