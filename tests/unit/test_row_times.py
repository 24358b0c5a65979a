"""Row times: how many rows a step of several tenants may have, by what was seen of steps; and how long those
who have few wait beside a crowd. The clock is the test's own."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several

import pytest

from engine.drafts.interface import Kind
from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence
from engine.step.drafting import Drafting
from engine.step.row_times import LOOK_STEPS, LOOKS, PART, SELDOM, TRIED, RowTimes
from engine.step.times_table import KNOWN_STEPS
from tests.fakes.clocked_steps import ClockedSteps
from tests.fakes.scheduler_driver import turns

STEP, CROWD, STEPS = 128, 40, 250
FEW, MANY = 1, 2  # tenants


def known(took: Callable[[int], float], *rows: int) -> RowTimes:
    times = RowTimes()
    for count in rows:
        times.learn(count, took(count), FEW)
    return times


def test_between_what_was_seen_it_is_as_between_points_and_else_as_of_the_nearest() -> None:
    times = known(lambda rows: 0.01 + 0.001 * rows, 2, 4, 10)
    assert [times.of(rows) for rows in (1, 2, 3, 7, 10, 50)] == pytest.approx(
        [0.012, 0.012, 0.013, 0.017, 0.02, 0.02]
    )


def test_one_step_that_took_long_is_not_believed() -> None:
    times = known(lambda rows: 0.01, 1, 1, 1)
    times.learn(1, 60.0)
    assert times.of(1) < 0.013


def test_how_long_a_tenant_takes_alone_is_to_be_seen_first_and_again_when_that_is_old() -> None:
    times = RowTimes()
    asked = [times.most_of(2, FEW, 3, False) for _ in range(TRIED + 1)]
    assert asked == [None, *[6] * (TRIED - 1), None], "where it is not seen, as many for each"
    for _ in range(LOOKS):
        times.learn(3, 0.01, FEW)
    assert times.most_of(2, FEW, 3, False) == 6, "twice what was seen is tried"
    for _ in range(LOOK_STEPS + 1):
        times.learn(40, 0.01)
    assert None in [times.most_of(2, FEW, 3, False) for _ in range(TRIED)]


def test_where_one_look_at_what_a_tenant_takes_alone_was_long_the_next_says_so() -> None:
    times = known(lambda rows: 0.01 + 0.001 * rows, 2, 4, 8, 16, 32, 64)
    times.learn(1, 0.06, FEW)
    asked = [times.most_of(2, FEW, 1, False) for _ in range(TRIED)]
    assert None in asked
    times.learn(1, 0.011, FEW)
    times.learn(1, 0.06, FEW)
    assert [times.most_of(2, FEW, 1, False) for _ in range(TRIED)] == [4] * TRIED


@pytest.mark.parametrize("tenants", [2, 3])
def test_each_of_the_others_adds_a_part_of_ones_own_time_and_prompts_have_half_of_that(tenants: int) -> None:
    times = known(lambda rows: 0.0103 + 0.001 * rows, 1, 1, 2, 4, 8, 16, 32)
    alone_ms = 11.3
    most_ms = alone_ms * (1 + PART * (tenants - 1))
    assert times.most_of(tenants, FEW, 1, False) == int(most_ms - 10.3)
    assert times.most_of(tenants, FEW, 1, True) == int((alone_ms + most_ms) / 2 - 10.3)


class Sure:
    """Knows what some streams say next."""

    kind: Kind = "lookup"

    def __init__(self, streams: Several[int]) -> None:
        self._streams = streams

    def propose(self, wanted: Several[tuple[Sequence, int]]) -> list[list[int]]:
        return [[one.stream] * most if one.stream in self._streams else [] for one, most in wanted]

    def seconds(self, rows: int) -> float:
        return 0.0


class Clocked(ClockedSteps):
    """A step takes what `row_s` and `token_s`, of a prompt, add to 10 ms."""

    def __init__(self, *, row_s: float, token_s: float = 0.0) -> None:
        super().__init__(self._seconds, step_tokens=STEP, batch_rows=STEP)
        self.row_s, self._token_s = row_s, token_s

    def _seconds(self, rows: list[Row]) -> float:
        prompt = sum(row.count for row in rows if row.count > 1 and not row.drafts)
        drafts = sum(len(row.drafts) for row in rows)
        return 0.01 + self.row_s * (len(rows) + drafts - 1) + self._token_s * prompt

    def draft(self, *streams: int) -> None:
        """These have drafts in every step, and all are right."""
        self.driver.drafting = Drafting(self.driver.scheduler, [Sure(streams)], self.times.decode)

    def until_alone(self, one: Sequence) -> list[float]:
        """How long each of its tokens took."""
        gaps, since = list[float](), 0.0
        for _ in range(STEPS):
            before = one.num_outputs
            since += self.step()
            if one.num_outputs > before:
                gaps.append(since)
                since = 0.0
        return gaps


@pytest.mark.parametrize("row_s", [0.0002, 0.001, 0.01])
def test_beside_a_crowd_a_token_takes_a_third_longer(row_s: float) -> None:
    clocked = Clocked(row_s=row_s)
    (one,) = clocked.driver.decoding(1, tenant=FEW)
    crowd = clocked.driver.decoding(*range(2, 2 + CROWD), tenant=MANY)
    before = [sequence.num_outputs for sequence in crowd]
    gaps = sorted(clocked.until_alone(one))
    assert len(gaps) == STEPS, "it has its row in each step"
    assert gaps[int(0.99 * len(gaps)) - 1] <= max(0.01 * (1 + PART), 0.01 + row_s) + 1e-9
    outputs = [sequence.num_outputs - had for sequence, had in zip(crowd, before, strict=True)]
    assert max(outputs) - min(outputs) <= 2, "of the crowd each has its turn"
    assert sum(outputs) > 0.8 * STEPS, "and somebody in almost each step"


def test_where_more_rows_cost_nothing_all_have_theirs_in_each_step() -> None:
    clocked = Clocked(row_s=0.0)
    clocked.driver.decoding(1, tenant=FEW)
    crowd = clocked.driver.decoding(*range(2, 2 + CROWD), tenant=MANY)
    for _ in range(20):
        clocked.step()
    assert turns(clocked.driver.steps(5)) == dict.fromkeys([1, *(one.stream for one in crowd)], 5)


def test_tenants_with_as_many_rows_and_one_alone_are_not_bounded() -> None:
    clocked = Clocked(row_s=0.01)
    both = clocked.driver.decoding(*range(10), tenant=FEW)
    both += clocked.driver.decoding(*range(10, 20), tenant=MANY)
    before = [one.num_outputs for one in both]
    for _ in range(50):
        clocked.step()
    assert [one.num_outputs - had for one, had in zip(both, before, strict=True)] == [50] * 20


def test_where_there_may_be_drafts_one_of_two_stands_still_twice_in_a_thousand_steps() -> None:
    clocked = Clocked(row_s=0.0001)
    both = [*clocked.driver.decoding(1, tenant=FEW), *clocked.driver.decoding(2, tenant=MANY)]
    clocked.draft()
    before = [one.num_outputs for one in both]
    for _ in range(LOOK_STEPS):
        clocked.step()
    outputs = [one.num_outputs - had for one, had in zip(both, before, strict=True)]
    assert sorted(outputs) == [LOOK_STEPS - LOOKS, LOOK_STEPS]


def test_whoever_comes_when_a_crowd_is_there_waits_no_longer() -> None:
    clocked = Clocked(row_s=0.003)
    clocked.driver.decoding(*range(2, 2 + CROWD), tenant=MANY)
    for _ in range(50):
        clocked.step()
    (one,) = clocked.driver.decoding(1, tenant=FEW)
    gaps = sorted(clocked.until_alone(one))
    assert gaps[int(0.99 * len(gaps)) - 1] <= 0.01 * (1 + PART) + 1e-9


def test_prompts_beside_anothers_rows_leave_them_most_of_their_pace() -> None:
    clocked = Clocked(row_s=0.001, token_s=0.001)
    (one,) = clocked.driver.decoding(1, tenant=FEW)
    for _ in range(10):
        clocked.step()
    own = clocked.driver.add(2, 2_000, tenant=FEW)
    assert clocked.step() > 0.1, "a tenant's own prompts do not yield to its rows"
    long = clocked.driver.add(3, 2_000, tenant=MANY)
    while own.num_uncomputed > 1:
        clocked.step()
    gaps = sorted(clocked.until_alone(one))
    assert gaps[int(0.98 * len(gaps)) - 1] <= 0.011 * (1 + PART) + 0.002
    assert long.num_outputs > 0


@pytest.mark.parametrize("crowd", [1, 5, CROWD])
def test_drafts_of_others_make_a_step_no_longer_than_their_rows_may(crowd: int) -> None:
    clocked = Clocked(row_s=0.001)
    (one,) = clocked.driver.decoding(1, tenant=FEW)
    for _ in range(10):
        clocked.step()
    clocked.driver.decoding(*range(2, 2 + crowd), tenant=MANY)
    clocked.draft(*range(2, 2 + crowd))
    gaps = sorted(clocked.until_alone(one))
    assert len(gaps) == STEPS
    assert gaps[int(0.98 * len(gaps)) - 1] <= 0.01 * (1 + PART) + 1e-9
    assert crowd > 1 or clocked.driver.drafting.drafted["lookup"] > STEPS, "and there are some"


def test_how_long_one_row_takes_is_seen_though_it_always_has_drafts() -> None:
    clocked = Clocked(row_s=0.00005)
    crowd = clocked.driver.decoding(*range(2, 2 + CROWD), tenant=FEW)
    clocked.driver.decoding(1, tenant=MANY)
    clocked.draft(1)
    for _ in range(20):
        clocked.step()
    assert turns(clocked.driver.steps(5)) == turns(clocked.driver.steps(5))
    assert set(turns(clocked.driver.steps(1))) == {1, *(one.stream for one in crowd)}


def test_beside_prompts_in_every_step_it_is_seen_how_long_rows_take() -> None:
    clocked = Clocked(row_s=0.0, token_s=0.0001)
    clocked.driver.decoding(1, tenant=FEW)
    for stream in range(100, 200):
        clocked.driver.add(stream, 128, tenant=FEW, credit=0)
    crowd = [clocked.driver.add(stream, tenant=MANY) for stream in range(2, 2 + CROWD)]
    for _ in range(200):
        clocked.step()
    decoding = {one: one.num_outputs for one in crowd if one.num_outputs}
    assert len(decoding) > CROWD // 2, "as much as others' prompts are"
    for _ in range(20):
        clocked.step()
    assert not clocked.driver.scheduler.sequences[199].admitted, "there are prompts yet"
    assert [one.num_outputs - had for one, had in decoding.items()] == [20] * len(decoding)


def test_rows_that_took_long_a_long_time_ago_are_tried_again() -> None:
    clocked = Clocked(row_s=0.02)
    for rows in (1, 2, 4, 8):
        slow = clocked.driver.decoding(*range(100 * rows, 101 * rows), tenant=MANY)
        for _ in range(10):
            clocked.step()
        for one in slow:
            clocked.driver.scheduler.remove(one)
    clocked.row_s = 0.0
    clocked.driver.decoding(1, tenant=FEW)
    crowd = [clocked.driver.add(stream, tenant=MANY) for stream in range(2, 2 + CROWD)]
    for _ in range(KNOWN_STEPS + 80):
        clocked.step()
    assert turns(clocked.driver.steps(5)) == dict.fromkeys([1, *(one.stream for one in crowd)], 5)


def test_how_long_anothers_long_row_took_alone_says_nothing_of_who_comes_beside_it() -> None:
    clocked = Clocked(row_s=0.001)
    for _ in range(20):
        clocked.times.rows.learn(1, 0.06, MANY)
    (one,) = clocked.driver.decoding(1, tenant=FEW)
    clocked.driver.decoding(*range(2, 2 + CROWD), tenant=MANY)
    gaps = sorted(clocked.until_alone(one))
    assert gaps[int(0.98 * len(gaps)) - 1] <= 0.01 * (1 + PART) + 1e-9


def test_of_tenants_that_come_and_go_all_are_remembered_who_were_seen_of_late() -> None:
    times = known(lambda rows: 0.01, *[1] * LOOKS)
    for tenant in range(MANY, MANY + LOOK_STEPS - 1):
        times.learn(1, 0.01, tenant)
    assert not any(times.most_of(2, FEW, 1, False) is None for _ in range(SELDOM))
    times.learn(1, 0.01, MANY + LOOK_STEPS)
    assert times.most_of(2, FEW, 1, False) is None


def test_where_many_tenants_come_and_go_hardly_a_step_is_for_one_alone() -> None:
    times = known(lambda rows: 0.01 + 0.001 * rows, 1, 2, 4, 8)
    alone = 0
    for tenant in range(1000):
        if (most := times.most_of(8, tenant, 1, False)) is None:
            alone += 1
            times.learn(1, 0.011, tenant)
        else:
            times.learn(8, 0.018)
        assert most is None or most >= 8
    assert alone < 1000 // (SELDOM // 2)


def test_prompts_of_a_token_have_a_few_rows_beside_anothers() -> None:
    clocked = Clocked(row_s=0.01, token_s=0.00001)
    clocked.driver.decoding(1, tenant=FEW)
    for _ in range(10):
        clocked.step()
    clocked.driver.add(2, 400, tenant=MANY, credit=0)
    for _ in range(10):
        clocked.step()
    short = [clocked.driver.add(stream, tenant=MANY, credit=1) for stream in range(100, 200)]
    assert max(clocked.step() for _ in range(240)) < 0.031, "two, each as long as its own"
    assert all(one.num_outputs for one in short), "and a long one does not keep them all from it"
