"""The pace of drafting: as many drafts as bring more tokens a second, learnt from what was computed."""

from __future__ import annotations

import random

import pytest

from engine.drafts.pace import MOST, Acceptance, StepCost, worthwhile


def line(step: float, token: float, sizes: list[int]) -> StepCost:
    cost = StepCost()
    for size in sizes:
        cost.learn(size, step + token * size)
    return cost


def test_it_learns_what_a_step_and_a_token_more_cost() -> None:
    chance = random.Random(1)
    cost = line(0.020, 0.002, [chance.randint(1, 9) for _ in range(300)])
    assert cost.of_token == pytest.approx(0.002, rel=0.1)
    assert cost.of_step(1) == pytest.approx(0.022, rel=0.1)
    assert cost.of_step(9) == pytest.approx(0.038, rel=0.1)


def test_of_steps_that_are_all_alike_it_supposes_something() -> None:
    cost = line(0.020, 0.002, [1] * 50)
    assert 0 < cost.of_token < 0.1 * cost.of_step(1) * 2


def test_a_step_that_was_held_up_once_does_not_count_for_long() -> None:
    cost = line(0.020, 0.002, [1, 5] * 100)
    cost.learn(5, 60.0)
    assert cost.of_token < 0.006
    for size in [1, 5] * 100:
        cost.learn(size, 0.020 + 0.002 * size)
    assert cost.of_token == pytest.approx(0.002, rel=0.2)


def rate(chance: float, drafts: int, rows: int, step: float, token: float) -> float:
    expected = rows + sum(chance**at for at in range(1, drafts + 1))
    return expected / (step + token * (rows + drafts))


@pytest.mark.parametrize("chance", [0.05, 0.3, 0.6, 0.9, 0.99])
@pytest.mark.parametrize("rows", [1, 8, 32])
@pytest.mark.parametrize("token", [0.0005, 0.002, 0.008])
def test_as_many_are_worthwhile_as_make_most_tokens_a_second(chance: float, rows: int, token: float) -> None:
    cost = line(0.020, token, [1, 33] * 500)
    best = max(range(MOST + 1), key=lambda drafts: rate(chance, drafts, rows, 0.020, token))
    assert abs(worthwhile(chance, cost, rows=rows, tokens=rows) - best) <= 1


def test_a_stream_whose_drafts_are_wrong_is_left_alone_and_tried_again_later() -> None:
    cost = line(0.007, 0.0022, [1, 9] * 200)
    acceptance = Acceptance()

    def worth() -> int:
        return worthwhile(acceptance.chance, cost, rows=1, tokens=1)

    assert worth() > 0
    for _ in range(20):
        acceptance.learn(0, 2)
    assert worth() == 0
    rested = 0
    while not worth():
        acceptance.rest()
        rested += 1
    assert 10 < rested < 200


def test_a_stream_whose_drafts_are_right_gets_more_of_them() -> None:
    cost = line(0.020, 0.0015, [1, 9] * 200)
    acceptance = Acceptance()
    before = worthwhile(acceptance.chance, cost, rows=1, tokens=1)
    for _ in range(10):
        acceptance.learn(4, 4)
    assert worthwhile(acceptance.chance, cost, rows=1, tokens=1) > before
