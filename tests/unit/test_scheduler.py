"""Who is computed, in whose memory, and in what order; without a model."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from engine.api import Sampling
from engine.schedule.batch import Batch
from engine.schedule.block_cache import BlockCache
from engine.schedule.fairness import PATIENCE_STEPS
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence

BLOCK = 4


class House:
    """A scheduler whose batches are computed by nobody: their tokens simply stand computed afterwards."""

    def __init__(self, *, blocks: int = 1000, **limits: int) -> None:
        self.cache = BlockCache(blocks, BLOCK)
        given: dict[str, Any] = {"step_tokens": 16, "batch_rows": 8, "tenant_prefill": 1000, **limits}
        self.scheduler = Scheduler(self.cache, **given)

    def add(self, stream: int, tokens: int = 1, *, tenant: int = 0, **numbers: Any) -> Sequence:
        """A sequence whose prompt is like nobody else's."""
        known = [stream * 1000 + at for at in range(tokens)]
        seq = Sequence(
            stream, known, Sampling(), **{"credit": 10_000, "context": 100_000, **numbers}, tenant=tenant
        )
        self.scheduler.add(seq)
        return seq

    def step(self) -> Batch:
        batch = self.scheduler.schedule()
        assert sum(row.count for row in batch.rows) <= self.scheduler.step_tokens
        assert len(batch.rows) <= self.scheduler.batch_rows
        for row in batch.rows:
            assert len(row.sequence.blocks) * BLOCK >= row.start + row.count, "a row has its memory"
        for row in batch.rows:
            self.scheduler.commit(row)
            if row.samples:
                row.sequence.sampled(row.sequence.stream)
            self.scheduler.refresh(row.sequence)
        self.cache.audit(self.scheduler.sequences.values())
        return batch

    def steps(self, times: int) -> list[Batch]:
        return [self.step() for _ in range(times)]

    def decoding(self, *streams: int, tokens: int = 1, **numbers: Any) -> list[Sequence]:
        seqs = [self.add(stream, tokens, **numbers) for stream in streams]
        while not all(seq.decoding for seq in seqs):
            self.step()
        return seqs

    def pause(self, seq: Sequence) -> None:
        seq.paused = True
        self.scheduler.refresh(seq)

    def resume(self, seq: Sequence) -> None:
        seq.paused = False
        self.scheduler.refresh(seq)


def rows(batch: Batch) -> list[tuple[int, int, bool]]:
    return [(row.sequence.stream, row.count, row.samples) for row in batch.rows]


def streams(batch: Batch) -> list[int]:
    return [row.sequence.stream for row in batch.rows]


def turns(batches: list[Batch]) -> Counter[int]:
    return Counter(stream for batch in batches for stream in streams(batch))


# -- rows of a step --------------------------------------------------------------------------------


def test_a_prompt_is_computed_in_chunks_and_the_last_one_samples() -> None:
    house = House()
    house.add(1, 40)
    assert [rows(batch) for batch in house.steps(4)] == [
        [(1, 16, False)],
        [(1, 16, False)],
        [(1, 8, True)],
        [(1, 1, True)],
    ]


def test_rows_that_bring_a_token_come_before_prompts() -> None:
    house = House()
    house.decoding(1, 2)
    house.add(3, 100)
    assert rows(house.step()) == [(1, 1, True), (2, 1, True), (3, 14, False)]


def test_a_prompt_gets_a_row_however_many_decode() -> None:
    house = House(batch_rows=4)
    house.decoding(1, 2, 3)
    house.decoding(4)
    house.add(5, 30)
    batch = house.step()
    assert len(batch.rows) == 4
    assert 5 in streams(batch)


def test_those_who_do_not_fit_take_turns() -> None:
    house = House(batch_rows=2)
    house.decoding(*range(1, 6))
    assert set(turns(house.steps(10)).values()) == {4}


def test_whoever_pauses_or_has_no_credit_is_in_no_batch() -> None:
    house = House()
    paused, stalled, running = house.decoding(1, 2, 3)
    house.pause(paused)
    stalled.credit = stalled.outputs
    house.scheduler.refresh(stalled)
    assert turns(house.steps(5)) == {3: 5}
    assert house.scheduler.ready == 1
    house.pause(running)
    assert house.scheduler.idle
    assert house.step().rows == []


def test_without_credit_all_but_the_last_token_is_prepared() -> None:
    house = House()
    seq = house.add(1, 20, credit=0)
    assert [rows(batch) for batch in house.steps(3)] == [[(1, 16, False)], [(1, 3, False)], []]
    seq.credit = 1
    house.scheduler.refresh(seq)
    assert rows(house.step()) == [(1, 1, True)]


# -- fairness --------------------------------------------------------------------------------------


def test_tenants_share_by_tokens_and_not_by_streams() -> None:
    house = House(batch_rows=2, step_tokens=2)
    house.decoding(1, 2, 3, 4, 5, 6, tenant=1)
    house.decoding(7, tenant=2)
    served = turns(house.steps(60))
    assert served[7] == pytest.approx(60, abs=2)
    assert sum(served[stream] for stream in range(1, 7)) == pytest.approx(60, abs=2)


def test_tenants_take_turns_with_their_prompts_and_each_finishes_one_before_the_next() -> None:
    house = House()
    for stream in (1, 2, 3):
        house.add(stream, 160, tenant=1)
    house.add(9, 160, tenant=2)
    first = [streams(batch)[-1] for batch in house.steps(22)]
    assert first[:4] in ([1, 9, 1, 9], [9, 1, 9, 1])
    assert list(dict.fromkeys(stream for stream in first if stream != 9))[:2] == [1, 2]


def test_a_higher_priority_takes_the_memory_of_those_who_decode() -> None:
    house = House(blocks=8)
    house.decoding(1, 2, tokens=12)
    house.add(5, 12, priority=5)
    (batch,) = house.steps(1)
    assert [sequence.stream for sequence in batch.preempted] == [2]
    assert 5 in streams(batch)


def test_of_those_who_came_together_the_first_is_first() -> None:
    house = House()
    for stream in (1, 2, 3):
        house.add(stream, 16)
    assert [streams(batch)[-1] for batch in house.steps(3)] == [1, 2, 3]


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    house = House(batch_rows=2, step_tokens=2)
    house.decoding(1, 2, tenant=1)
    house.steps(100)
    house.decoding(3, 4, tenant=2)
    served = turns(house.steps(40))
    assert served[1] + served[2] == pytest.approx(served[3] + served[4], abs=2)


def test_a_higher_priority_goes_first() -> None:
    house = House(batch_rows=2)
    house.decoding(1, 2)
    house.decoding(3, 4, priority=1)
    assert turns(house.steps(20)) == {3: 20, 4: 20}


def test_waiting_raises_a_rank_so_that_nobody_starves() -> None:
    house = House(batch_rows=2)
    house.decoding(1)
    house.decoding(2, 3, priority=2)
    served = turns(house.steps(10 * PATIENCE_STEPS))
    assert 3 <= served[1] < served[2]


@pytest.mark.parametrize(("cap", "admitted"), [(47, False), (48, True)])
def test_a_tenant_may_have_only_so_much_prefill_under_way(cap: int, admitted: bool) -> None:
    house = House(tenant_prefill=cap)
    house.add(1, 40, tenant=1)
    second = house.add(2, 40, tenant=1)
    house.steps(3)  # the third has 8 tokens left of the first, and room for 8 of another
    assert second.admitted == admitted
    other = house.add(3, 40, tenant=2)
    house.steps(6)
    assert second.admitted
    assert other.admitted


def test_one_prompt_above_the_cap_runs_all_the_same() -> None:
    house = House(tenant_prefill=20)
    house.add(1, 60)
    assert rows(house.step()) == [(1, 16, False)]


# -- memory ----------------------------------------------------------------------------------------


def test_the_first_in_line_for_memory_is_not_overtaken() -> None:
    house = House(blocks=8)
    (running,) = house.decoding(1)
    large = house.add(2, 31)
    small = house.add(3, 1)
    house.steps(3)
    assert not large.admitted
    assert not small.admitted
    house.scheduler.remove(running)
    house.step()
    assert large.admitted


def test_idle_holders_lose_their_memory_first_and_the_longest_idle_before_others() -> None:
    house = House(blocks=12)
    first, second, running = house.decoding(1, 2, 3)
    house.pause(second)
    house.steps(2)
    house.pause(first)
    while house.cache.free:
        house.step()
    house.add(4, 1)
    house.step()
    assert second.evicted
    assert not first.evicted
    assert running.blocks
    assert (house.scheduler.evictions, house.scheduler.preemptions) == (1, 0)


def test_cached_blocks_go_before_anybody_is_evicted() -> None:
    house = House(blocks=8)
    gone = house.add(1, 16)
    house.step()
    idle = house.add(2, 8, credit=0)
    house.step()
    house.scheduler.remove(gone)
    assert house.cache.cached == 4
    house.add(3, 16)
    house.step()
    assert not idle.evicted
    assert house.scheduler.evictions == 0


def test_of_equals_who_run_the_last_to_come_gives_way_and_comes_back() -> None:
    house = House(blocks=8)
    early, late = house.decoding(1, 2)
    batches = []
    while not late.preempted:
        batches.append(house.step())
    assert batches[-1].preempted == [late]
    assert early.blocks
    assert late.evicted
    known = late.known
    house.scheduler.remove(early)
    batch = house.step()
    ((resumed, recomputed),) = batch.resumed
    assert resumed is late
    assert recomputed == known - 1 - batch.rows[0].start
    assert not late.preempted


def test_a_newcomer_takes_nothing_from_its_equals_who_run() -> None:
    house = House(blocks=4)
    house.decoding(1, 2)
    newcomer = house.add(3, 13)
    house.steps(2)
    assert not newcomer.admitted
    assert house.scheduler.preemptions == 0


def test_a_newcomer_of_higher_priority_takes_memory_from_the_lowest() -> None:
    house = House(blocks=4, batch_rows=2)
    low, lower = house.decoding(1, 2, tokens=5)
    lower.priority = -1
    urgent = house.add(3, 4, priority=1)
    batch = house.step()
    assert batch.preempted == [lower]
    assert low.blocks
    assert urgent.admitted


def test_whoever_has_a_row_in_this_step_keeps_its_memory() -> None:
    house = House(blocks=6, step_tokens=16)
    house.decoding(1, 2, 3)
    for _ in range(60):
        batch = house.step()
        assert not {id(row.sequence) for row in batch.rows} & {id(seq) for seq in batch.preempted}
    assert house.scheduler.preemptions


def test_nor_does_a_newcomer_of_any_priority_take_it() -> None:
    house = House(blocks=4)
    running = house.decoding(1, 2, tokens=5)
    house.add(3, 4, priority=1)
    batch = house.step()
    assert not {id(row.sequence) for row in batch.rows} & {id(seq) for seq in batch.preempted}
    assert any(seq.blocks for seq in running)


def test_who_is_evicted_without_credit_takes_no_memory_back_before_it_has_some() -> None:
    house = House(blocks=4)
    stalled = house.add(1, 8, credit=0)
    house.steps(2)
    house.add(2, 12)
    house.step()
    assert stalled.evicted
    assert house.scheduler.ready == 1


# -- prefixes --------------------------------------------------------------------------------------


def test_a_known_prefix_is_not_computed_again() -> None:
    house = House()
    first = house.add(1, 14)
    house.step()
    twin = Sequence(2, first.tokens[:14], Sampling(), credit=10, context=100)
    house.scheduler.add(twin)
    batch = house.step()
    assert [(seq.stream, found) for seq, found in batch.admitted] == [(2, 12)]
    assert (2, 2, True) in rows(batch)


def test_a_shared_block_is_copied_before_a_row_writes_to_it() -> None:
    house = House()
    first = house.add(1, 14)
    house.step()
    twin = Sequence(2, first.tokens[:14], Sampling(), credit=10, context=100, prompt=6)
    house.scheduler.add(twin)
    house.step()
    twin.truncate(0)
    house.cache.release(twin, keep=twin.computed)
    house.scheduler.refresh(twin)
    shared = first.blocks[1]
    batch = house.step()
    assert batch.copies == [(shared, twin.blocks[1])]
    assert first.blocks[1] == shared != twin.blocks[1]
    assert house.step().copies == []


def test_whoever_finds_no_memory_keeps_nobody_from_going_on() -> None:
    """A full cache, a row for each but one who decode, and the first in turn may take memory from nobody."""
    house = House(blocks=5, batch_rows=2)
    (first,) = house.decoding(1, tokens=9)
    house.decoding(2, tokens=7)
    house.add(3, 20)
    house.steps(40)
    assert first.outputs > 10
