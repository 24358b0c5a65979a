"""Step times: what is learnt of steps that were taken, and how long others wait for a token beside prompts
that yield to them. The clock is the test's own."""

from __future__ import annotations

from functools import partial
from itertools import count

import pytest

from engine.api import Sampling
from engine.schedule.batch import Batch, Row
from engine.schedule.sequence import Sequence
from engine.step.row_times import PART
from engine.step.step_times import LEAST_SHARE, MIXED, StepTimes
from tests.fakes.clocked_steps import ClockedSteps
from tests.fakes.scheduler_driver import SchedulerDriver

STEP, DECODES = 128, 8
_streams = count()


def decoded(rows: int) -> list[Row]:
    sequences = [Sequence(next(_streams), [1], Sampling(), credit=9, context=99) for _ in range(rows)]
    return [Row(sequence, 0, 1, True, sequence.sampling) for sequence in sequences]


def prompt(tokens: int) -> Row:
    sequence = Sequence(next(_streams), [1] * tokens, Sampling(), credit=9, context=999)
    return Row(sequence, 0, tokens, False, sequence.sampling)


def takes(rows: list[Row], *, token_s: float) -> float:
    """A step: 12 ms, and what its rows and tokens add."""
    prompts = sum(row.count for row in rows if not row.samples or row.count > 1)
    return 0.012 + 0.001 * (len(rows)) + token_s * prompts


def test_as_long_as_nothing_is_known_prompts_that_yield_have_half_of_a_step() -> None:
    times = StepTimes(STEP)
    assert times.prompt_tokens(8) == STEP // 2
    times.learn(decoded(8), 0.02)
    assert times.prompt_tokens(8) == 8, "of prompts nothing is: as many as of rows"


def test_they_take_a_third_as_long_as_the_rows_beside_them() -> None:
    times = StepTimes(STEP)
    for rows in (2, 9, 4) * 40:
        times.learn(decoded(rows), takes(decoded(rows), token_s=0.0015))
    for _ in range(40):
        step = [*decoded(4), prompt(60)]
        times.learn(step, takes(step, token_s=0.0015))
    times.learn(decoded(4), takes(decoded(4), token_s=0.0015))
    assert times.prompt_tokens(4) == pytest.approx(PART * 0.016 / 0.0015, abs=1.5)
    assert times.prompt_tokens(9) == pytest.approx(PART * 0.021 / 0.0015, abs=1.5)


def test_where_a_prompt_costs_nothing_nobody_need_yield() -> None:
    times = StepTimes(STEP)
    for step in ([*decoded(4)], [*decoded(4), prompt(100)]) * 20:
        times.learn(step, 0.02)
    assert times.prompt_tokens(4) == STEP


def test_behind_many_steps_with_both_one_has_no_prompts_so_that_it_is_seen_how_long_rows_take() -> None:
    times = StepTimes(STEP)
    for _ in range(MIXED):
        assert times.prompt_tokens(4) > 0
        times.learn([*decoded(4), prompt(60)], 0.05)
    assert times.prompt_tokens(4) == 0
    times.learn(decoded(4), 0.02)
    assert times.prompt_tokens(4) > 0


def test_a_row_whose_token_was_certain_in_the_end_is_none_of_a_prompt() -> None:
    """On a device that is known behind its launch. Where each step had one no prompt beside was computed."""
    times = StepTimes(STEP)
    for _ in range(2 * MIXED):
        rows = decoded(4)
        rows[0].sequence.launch(rows[0])
        rows[0].sequence.force([7])
        assert not rows[0].samples
        times.learn(rows, 0.02)
    assert times.prompt_tokens(4) == 4


def test_they_always_have_some() -> None:
    times = StepTimes(STEP)
    for _ in range(20):
        times.learn(decoded(1), 0.001)
        times.learn([prompt(10)], 60.0)
    assert times.prompt_tokens(1) >= STEP // LEAST_SHARE


@pytest.mark.parametrize("token_s", [0.0001, 0.0015, 0.01])
def test_who_decodes_waits_at_most_twice_as_long_beside_those_who_come(token_s: float) -> None:
    clocked = ClockedSteps(partial(takes, token_s=token_s), step_tokens=STEP)
    driver = clocked.driver
    driver.decoding(*range(DECODES))
    quiet_s = max(clocked.step() for _ in range(50))
    homeless = [driver.add(100 + one, 400, num_yielding=399, credit=1) for one in range(5)]
    gaps = list[float]()
    while not all(one.num_outputs for one in homeless):
        gaps.append(clocked.step())
    least = 0.012 + 0.001 * 2 * DECODES + token_s * STEP / LEAST_SHARE
    bound = max(1.6 * quiet_s, least) + 0.001 * 10  # of them some are rows by now
    assert sorted(gaps)[int(0.99 * len(gaps)) - 1] <= bound
    newcomer = driver.add(999, 400)
    clocked.step()
    assert newcomer.next_position == STEP - DECODES, "others do not yield"


def test_nobody_yields_where_nobody_decodes() -> None:
    driver = SchedulerDriver(step_tokens=16, prompt_tokens=lambda rows: 4)
    homeless = driver.add(1, 40, num_yielding=39)
    assert tokens(driver.step()) == 16
    (reader,) = driver.decoding(2)
    before = homeless.next_position
    assert tokens(driver.step()) == 1 + 4
    assert homeless.next_position == before + 4
    driver.pause(reader)
    assert tokens(driver.step()) == min(16, 39 - before - 4 + 1)


def tokens(batch: Batch) -> int:
    return sum(row.count for row in batch.rows)
