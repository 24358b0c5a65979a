"""The scheduler: who is computed, in whose memory, and in what order; without a model."""

from __future__ import annotations

from itertools import pairwise

import pytest

from engine.api import Sampling
from engine.schedule.closed_line import IN_VAIN, ClosedLine
from engine.schedule.memory_line import VAIN_LOOKUPS
from engine.schedule.scheduler import BEGIN_LOOKUPS, MOST_LOOKUPS
from engine.schedule.sequence import Sequence
from engine.schedule.serving_order import AGING_STEPS
from tests.fakes.scheduler_driver import BLOCK, SchedulerDriver, rows, streams, turns

# -- rows of a step --------------------------------------------------------------------------------


def test_a_prompt_is_computed_in_chunks_and_the_last_one_samples() -> None:
    driver = SchedulerDriver()
    driver.add(1, 40)
    assert [rows(batch) for batch in driver.steps(4)] == [
        [(1, 16, False)],
        [(1, 16, False)],
        [(1, 8, True)],
        [(1, 1, True)],
    ]


def test_rows_that_bring_a_token_come_before_prompts() -> None:
    driver = SchedulerDriver()
    driver.decoding(1, 2)
    driver.add(3, 100)
    assert rows(driver.step()) == [(1, 1, True), (2, 1, True), (3, 14, False)]


def test_a_prompt_gets_a_row_however_many_decode() -> None:
    driver = SchedulerDriver(batch_rows=4)
    driver.decoding(1, 2, 3)
    driver.decoding(4)
    driver.add(5, 30)
    batch = driver.step()
    assert len(batch.rows) == 4
    assert 5 in streams(batch)


def test_those_who_do_not_fit_take_turns() -> None:
    driver = SchedulerDriver(batch_rows=2)
    driver.decoding(*range(1, 6))
    assert set(turns(driver.steps(10)).values()) == {4}


def test_whoever_pauses_or_has_no_credit_is_in_no_batch() -> None:
    driver = SchedulerDriver()
    paused, stalled, running = driver.decoding(1, 2, 3)
    driver.pause(paused)
    stalled.credit = stalled.num_outputs
    driver.scheduler.update_ready(stalled)
    assert turns(driver.steps(5)) == {3: 5}
    assert driver.scheduler.num_ready == 1
    driver.pause(running)
    assert driver.scheduler.idle
    assert driver.step().rows == []


def test_without_credit_all_but_the_last_token_is_prepared() -> None:
    driver = SchedulerDriver()
    seq = driver.add(1, 20, credit=0)
    assert [rows(batch) for batch in driver.steps(3)] == [[(1, 16, False)], [(1, 3, False)], []]
    seq.credit = 1
    driver.scheduler.update_ready(seq)
    assert rows(driver.step()) == [(1, 1, True)]


# -- fairness --------------------------------------------------------------------------------------


def test_tenants_share_by_tokens_and_not_by_streams() -> None:
    driver = SchedulerDriver(batch_rows=2, step_tokens=2)
    driver.decoding(1, 2, 3, 4, 5, 6, tenant=1)
    driver.decoding(7, tenant=2)
    served = turns(driver.steps(60))
    assert served[7] == pytest.approx(60, abs=2)
    assert sum(served[stream] for stream in range(1, 7)) == pytest.approx(60, abs=2)


def test_tenants_take_turns_with_their_prompts_and_each_finishes_one_before_the_next() -> None:
    driver = SchedulerDriver()
    for stream in (1, 2, 3):
        driver.add(stream, 160, tenant=1)
    driver.add(9, 160, tenant=2)
    first = [streams(batch)[-1] for batch in driver.steps(22)]
    assert first[:4] in ([1, 9, 1, 9], [9, 1, 9, 1])
    assert list(dict.fromkeys(stream for stream in first if stream != 9))[:2] == [1, 2]


def test_a_higher_priority_takes_the_memory_of_those_who_decode() -> None:
    driver = SchedulerDriver(blocks=8)
    driver.decoding(1, 2, tokens=12)
    driver.add(5, 12, priority=5)
    (batch,) = driver.steps(1)
    assert [sequence.stream for sequence in batch.preempted] == [2]
    assert 5 in streams(batch)


def test_of_those_who_came_together_the_first_is_first() -> None:
    driver = SchedulerDriver()
    for stream in (1, 2, 3):
        driver.add(stream, 16)
    assert [streams(batch)[-1] for batch in driver.steps(3)] == [1, 2, 3]


def test_a_tenant_that_was_away_has_saved_nothing_up() -> None:
    driver = SchedulerDriver(batch_rows=2, step_tokens=2)
    driver.decoding(1, 2, tenant=1)
    driver.steps(100)
    driver.decoding(3, 4, tenant=2)
    served = turns(driver.steps(40))
    assert served[1] + served[2] == pytest.approx(served[3] + served[4], abs=2)


def test_a_higher_priority_goes_first() -> None:
    driver = SchedulerDriver(batch_rows=2)
    driver.decoding(1, 2)
    driver.decoding(3, 4, priority=1)
    assert turns(driver.steps(20)) == {3: 20, 4: 20}


def test_waiting_raises_a_rank_so_that_nobody_starves() -> None:
    driver = SchedulerDriver(batch_rows=2)
    driver.decoding(1)
    driver.decoding(2, 3, priority=2)
    served = turns(driver.steps(10 * AGING_STEPS))
    assert 3 <= served[1] < served[2]


@pytest.mark.parametrize(("cap", "admitted"), [(47, False), (48, True)])
def test_a_tenant_may_have_only_so_much_prefill_under_way(cap: int, admitted: bool) -> None:
    driver = SchedulerDriver(tenant_prefill=cap)
    driver.add(1, 40, tenant=1)
    second = driver.add(2, 40, tenant=1)
    driver.steps(3)  # the third has 8 tokens left of the first, and room for 8 of another
    assert second.admitted == admitted
    other = driver.add(3, 40, tenant=2)
    driver.steps(6)
    assert second.admitted
    assert other.admitted


def test_what_a_step_completes_begins_beside_all_the_prefill_that_a_tenant_may_have_under_way() -> None:
    driver = SchedulerDriver(tenant_prefill=40)
    for stream in range(1, 5):
        driver.decoding(stream)[0].inject([7] * 300)
        driver.scheduler.update_ready(driver.scheduler.sequences[stream])
    long, short = driver.add(8, 30), driver.add(9, 4)
    batch = driver.step()
    assert short.decoding, rows(batch)
    assert not long.admitted


def test_one_prompt_above_the_cap_runs_all_the_same() -> None:
    driver = SchedulerDriver(tenant_prefill=20)
    driver.add(1, 60)
    assert rows(driver.step()) == [(1, 16, False)]


# -- memory ----------------------------------------------------------------------------------------


def test_the_first_in_line_for_memory_is_not_overtaken() -> None:
    driver = SchedulerDriver(blocks=8)
    (running,) = driver.decoding(1)
    large = driver.add(2, 31)
    small = driver.add(3, 1)
    driver.steps(3)
    assert not large.admitted
    assert not small.admitted
    driver.scheduler.remove(running)
    driver.step()
    assert large.admitted


@pytest.mark.parametrize("priority", [1, -1], ids=["is first", "is due"])
def test_but_it_keeps_no_other_tenant_waiting_for_what_its_own_streams_hold(priority: int) -> None:
    driver = SchedulerDriver(blocks=700, step_tokens=64)
    driver.decoding(1, tokens=2400, tenant=1, priority=1)
    large = driver.add(2, tokens=2100, tenant=1, priority=priority)
    driver.steps(AGING_STEPS)
    for stream in range(10, 20):
        small = driver.add(stream, tokens=5, tenant=2)
        driver.steps(3)
        assert small.num_outputs, "there is room for it"
    assert not large.blocks


def test_it_does_where_others_hold_it() -> None:
    driver = SchedulerDriver(blocks=700, step_tokens=64)
    (holder,) = driver.decoding(1, tokens=2400, tenant=1, priority=1)
    large = driver.add(2, tokens=2100, tenant=3, priority=1)
    small = driver.add(3, tokens=5, tenant=2)
    driver.steps(10)
    assert not large.blocks
    assert not small.blocks
    driver.scheduler.remove(holder)
    driver.step()
    assert large.blocks


def test_but_not_for_long_where_nothing_comes_free_of_what_they_hold() -> None:
    driver = SchedulerDriver(blocks=900, step_tokens=64)
    (holder,) = driver.decoding(1, tokens=2000, tenant=1, priority=1)
    large = driver.add(2, tokens=2100, tenant=3, priority=1)
    small = driver.add(3, tokens=5, tenant=2, priority=1)
    driver.steps(IN_VAIN - 1)
    assert not small.blocks
    driver.steps(3)
    assert small.num_outputs
    assert not large.blocks
    driver.scheduler.remove(holder)
    driver.steps(2100 // BLOCK // VAIN_LOOKUPS * 2 + 2)
    assert large.blocks


@pytest.mark.parametrize("branches", [0, 8])
def test_who_stands_first_has_what_comes_free_though_its_own_tenant_holds_some(branches: int) -> None:
    """Fewer than it needs; of what branches share each holds all."""
    driver = SchedulerDriver(blocks=1000, step_tokens=4000, batch_rows=64, tenant_prefill=10**6)
    own = driver.add(1, 4 * 250, tenant=1, credit=1)
    driver.steps(3)
    for stream in range(2, 2 + branches):
        known = [*own.tokens[:1000], -stream]
        driver.scheduler.add(Sequence(stream, known, Sampling(), credit=1, context=10**5, tenant=1))
    driver.steps(8)
    others = [driver.add(stream, 4 * 20, tenant=2, credit=stream % 9) for stream in range(100, 140)]
    driver.steps(3)
    large = driver.add(50, 4 * 500, tenant=1)
    for stream in range(200, 200 + AGING_STEPS // 2):
        driver.step()
        gone = next((other for other in others if other.stalled and other.blocks), None)
        if gone:
            driver.scheduler.remove(gone)
            others.remove(gone)
        others.append(driver.add(stream, 4 * 20, tenant=2, credit=9))
    assert large.num_outputs, "as soon as what went before it has gone"


def test_who_found_too_little_before_others_had_rows_looks_again_where_those_took_more_than_they_need() -> (
    None
):
    driver = SchedulerDriver(blocks=15, step_tokens=64)
    driver.decoding(1)
    (grows,) = driver.decoding(2, tokens=19, priority=1)
    idle = driver.add(3, tokens=34, priority=1, credit=0)
    driver.step()
    assert not driver.cache.free
    urgent = driver.add(4, tokens=24, priority=1)
    while not idle.evicted:
        assert not urgent.blocks
        driver.step()
    assert grows.blocks
    assert urgent.blocks, "in the same step"


def test_who_stood_first_and_is_gone_has_nothing_in_the_name_of_another_of_its_number() -> None:
    """As a stream that came to its end, and goes on before it: memory was given to what is no more, and the
    stream stood in no line."""
    driver = SchedulerDriver(blocks=40, step_tokens=64, batch_rows=32)
    driver.decoding(1, tenant=1)
    holder = driver.add(2, 4 * 30, tenant=2)
    driver.steps(4)
    first = driver.add(7, 4 * 20, tenant=2)
    driver.steps(3)
    driver.scheduler.remove(first)
    again = driver.add(7, 4 * 20, tenant=2)
    driver.scheduler.remove(holder)
    driver.steps(8 + 4 * 20 // VAIN_LOOKUPS)
    assert again.num_outputs
    assert not first.blocks


def test_the_line_is_closed_while_something_comes_free_and_else_open_now_and_then() -> None:
    line = ClosedLine()
    free = 0
    for step in range(10 * IN_VAIN):
        free += not step % (IN_VAIN - 1)
        assert line.close(step, free)
    closed = [line.close(step, free) for step in range(10 * IN_VAIN, 18 * IN_VAIN)]
    changes = [at for at, (one, then) in enumerate(pairwise(closed)) if one != then]
    assert {later - at for at, later in pairwise(changes)} == {IN_VAIN}
    assert line.close(30 * IN_VAIN, 1), "nobody was first in line since"


def test_idle_holders_lose_their_memory_first_and_the_longest_idle_before_others() -> None:
    driver = SchedulerDriver(blocks=12)
    first, second, running = driver.decoding(1, 2, 3)
    driver.pause(second)
    driver.steps(2)
    driver.pause(first)
    while driver.cache.free:
        driver.step()
    driver.add(4, 1)
    driver.step()
    assert second.evicted
    assert not first.evicted
    assert running.blocks
    assert (driver.scheduler.evictions, driver.scheduler.preemptions) == (1, 0)


def test_cached_blocks_go_before_anybody_is_evicted() -> None:
    driver = SchedulerDriver(blocks=8)
    gone = driver.add(1, 16)
    driver.step()
    idle = driver.add(2, 8, credit=0)
    driver.step()
    driver.scheduler.remove(gone)
    assert driver.cache.cached == 4
    driver.add(3, 16)
    driver.step()
    assert not idle.evicted
    assert driver.scheduler.evictions == 0


def test_of_equals_who_run_the_last_to_come_gives_way_and_comes_back() -> None:
    driver = SchedulerDriver(blocks=8)
    early, late = driver.decoding(1, 2)
    batches = []
    while not late.preempted:
        batches.append(driver.step())
    assert batches[-1].preempted == [late]
    assert early.blocks
    assert late.evicted
    known = late.num_tokens
    driver.scheduler.remove(early)
    batch = driver.step()
    ((resumed, recomputed),) = batch.resumed
    assert resumed is late
    assert recomputed == known - 1 - batch.rows[0].start
    assert not late.preempted


def test_a_newcomer_takes_nothing_from_its_equals_who_run() -> None:
    driver = SchedulerDriver(blocks=4)
    driver.decoding(1, 2)
    newcomer = driver.add(3, 13)
    driver.steps(2)
    assert not newcomer.admitted
    assert driver.scheduler.preemptions == 0


def test_a_newcomer_of_higher_priority_takes_memory_from_the_lowest() -> None:
    driver = SchedulerDriver(blocks=4, batch_rows=2)
    low, lower = driver.decoding(1, 2, tokens=5)
    lower.priority = -1
    urgent = driver.add(3, 4, priority=1)
    batch = driver.step()
    assert batch.preempted == [lower]
    assert low.blocks
    assert urgent.admitted


def test_whoever_has_a_row_in_this_step_keeps_its_memory() -> None:
    driver = SchedulerDriver(blocks=6, step_tokens=16)
    driver.decoding(1, 2, 3)
    for _ in range(60):
        batch = driver.step()
        assert not {id(row.sequence) for row in batch.rows} & {id(seq) for seq in batch.preempted}
    assert driver.scheduler.preemptions


def test_nor_does_a_newcomer_of_any_priority_take_it() -> None:
    driver = SchedulerDriver(blocks=4)
    running = driver.decoding(1, 2, tokens=5)
    driver.add(3, 4, priority=1)
    batch = driver.step()
    assert not {id(row.sequence) for row in batch.rows} & {id(seq) for seq in batch.preempted}
    assert any(seq.blocks for seq in running)


def test_who_is_evicted_without_credit_takes_no_memory_back_before_it_has_some() -> None:
    driver = SchedulerDriver(blocks=4)
    stalled = driver.add(1, 8, credit=0)
    driver.steps(2)
    driver.add(2, 12)
    driver.steps(AGING_STEPS)
    assert stalled.evicted
    assert driver.scheduler.num_ready == 1


# -- prefixes --------------------------------------------------------------------------------------


def test_a_known_prefix_is_not_computed_again() -> None:
    driver = SchedulerDriver()
    first = driver.add(1, 14)
    driver.step()
    twin = Sequence(2, first.tokens[:14], Sampling(), credit=10, context=100)
    driver.scheduler.add(twin)
    batch = driver.step()
    assert [(seq.stream, found) for seq, found in batch.admitted] == [(2, 12)]
    assert (2, 2, True) in rows(batch)


def test_a_shared_block_is_copied_before_a_row_writes_to_it() -> None:
    driver = SchedulerDriver()
    first = driver.add(1, 14)
    driver.step()
    twin = Sequence(2, first.tokens[:14], Sampling(), credit=10, context=100, num_prompt=6)
    driver.scheduler.add(twin)
    driver.step()
    twin.truncate(0)
    driver.cache.release(twin, keep=twin.num_computed)
    driver.scheduler.update_ready(twin)
    shared = first.blocks[1]
    batch = driver.step()
    assert batch.copies == [(shared, twin.blocks[1])]
    assert first.blocks[1] == shared != twin.blocks[1]
    assert driver.step().copies == []


def test_whoever_finds_no_memory_keeps_nobody_from_going_on() -> None:
    """A full cache, a row for each but one who decode, and the first in turn may take memory from nobody."""
    driver = SchedulerDriver(blocks=5, batch_rows=2)
    (first,) = driver.decoding(1, tokens=9)
    driver.decoding(2, tokens=7)
    driver.add(3, 20)
    driver.steps(40)
    assert first.num_outputs > 10


def test_a_step_looks_for_so_many_blocks_of_new_prompts_and_others_wait_for_the_next() -> None:
    """What is cached need not be computed, but each of its blocks has to be found."""
    each = MOST_LOOKUPS // 2 + 10  # blocks
    driver = SchedulerDriver(blocks=each * 2 + 100, step_tokens=64, batch_rows=16, tenant_prefill=10_000)
    driver.decoding(0, tokens=each * BLOCK)
    long = driver.add(20, tokens=200, tenant=1)
    driver.step()
    alike = driver.scheduler.sequences[0].tokens[: each * BLOCK]
    for stream in range(1, 6):
        sequence = Sequence(stream, [*alike, *[stream] * BLOCK, 0], Sampling(), credit=9, context=100_000)
        driver.scheduler.add(sequence)
    admitted = list[int]()
    while sum(admitted) < 5:
        before, batch = long.num_computed, driver.step()
        admitted.append(len(batch.admitted))
        assert long.num_computed > before or not long.num_uncomputed, "who has begun goes on"
    assert max(admitted) == 2


def test_a_step_begins_with_so_many_prompts_however_short_they_are() -> None:
    """Which lengthens it for those who decode."""
    most, crowd = MOST_LOOKUPS // BEGIN_LOOKUPS, range(1, 4 * MOST_LOOKUPS // BEGIN_LOOKUPS)
    driver = SchedulerDriver(blocks=2000, step_tokens=1024, batch_rows=512, tenant_prefill=10_000)
    driver.decoding(0)
    for stream in crowd:
        driver.add(stream, 1, tenant=1)
    batches = driver.steps(5)
    assert [len(batch.admitted) for batch in batches] == [most, most, most, most - 1, 0]
    assert all(0 in streams(batch) for batch in batches)
