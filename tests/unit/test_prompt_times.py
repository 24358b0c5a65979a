"""Prompt times: how many tokens of prompts a step has in which others decode, where a step that has any costs
much by that alone. The clock is the test's own."""

from __future__ import annotations

import pytest

from engine.schedule.batch import Row
from engine.step.prompt_times import PromptTimes
from engine.step.row_times import PART
from tests.fakes.clocked_steps import ClockedSteps

STEP, LEAST = 256, 2
ROW_S, LAUNCH_S, TOKEN_S = 0.005, 0.012, 0.00024
MAY_S = PART * ROW_S


def took(tokens: int) -> float:
    return LAUNCH_S + TOKEN_S * tokens


def test_what_costs_as_much_each_is_as_many_as_there_is_time_for() -> None:
    times = PromptTimes()
    times.learn(100, 0.1, None)
    assert times.most_of(0.0075, 1) == 7
    times.learn(7, 0.007, 0.0075)
    assert times.most_of(0.0075, 1) == pytest.approx(7, abs=1)
    assert not times.owe


def test_where_a_few_are_the_dearest_there_are_as_many_as_are_worth_it_and_none_until_that_is_paid() -> None:
    times = PromptTimes()
    times.learn(STEP, took(STEP), None)
    few = times.most_of(MAY_S, LEAST)
    assert LEAST <= few < 20, "each might cost as much"
    times.learn(few, took(few), MAY_S)
    worth = times.most_of(MAY_S, LEAST)
    assert took(worth) / worth <= 2.2 * took(STEP) / STEP < took(few) / few
    times.learn(worth, took(worth), MAY_S)
    steps = 0
    while times.owe:
        times.rest(MAY_S)
        steps += 1
    assert (took(worth) - MAY_S) / MAY_S <= steps <= 1 + took(worth) / MAY_S


def test_how_many_are_worth_it_is_found_where_only_a_few_were_seen() -> None:
    times, most = PromptTimes(), LEAST
    for _ in range(12):
        times.learn(most, took(most), MAY_S)
        most = min(STEP, times.most_of(MAY_S, LEAST))
    assert took(most) / most <= 2.2 * took(STEP) / STEP


@pytest.mark.parametrize("prompts_before", [False, True])
def test_beside_prompts_others_keep_most_of_their_pace_and_prompts_go_on(prompts_before: bool) -> None:
    computed = 0

    def seconds_of(rows: list[Row]) -> float:
        nonlocal computed
        prompt = sum(row.count for row in rows if row.count > 1)
        computed += prompt
        return (ROW_S if rows else 0.0) + (took(prompt) if prompt else 0.0)

    clocked = ClockedSteps(seconds_of, step_tokens=STEP)
    driver = clocked.driver
    if prompts_before:
        early = driver.add(7, 600, tenant=2, credit=1)
        while not early.num_outputs:
            clocked.step()
    (one,) = driver.decoding(1, tenant=1)
    for _ in range(20):
        clocked.step()
    driver.add(2, 8_000, tenant=2)
    for _ in range(100):  # in which it is found how many are worth it
        clocked.step()
    before, computed, seconds = one.num_outputs, 0, 0.0
    while computed < 2_000:
        seconds += clocked.step()
    tokens = one.num_outputs - before
    assert tokens * ROW_S >= 0.9 / (1 + PART) * seconds, "most of their pace, but for what is tried"
    assert computed / seconds >= 0.3 * PART / (1 + PART) / TOKEN_S, "the rest, of which not most is lost"
