"""Whom a new engine is given: all, or a part of those who may have killed the last, and so on to a culprit;
and what of it other engines feel."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pytest

from realtime.hub.engine_recovery import DEATHS, FEW, PARTS, EngineRecovery

E = 0  # the engine that is alone


def move(recovery: EngineRecovery, number: int, engine: int = E, times: int = FEW + 1) -> list[int]:
    """It moves on, by default as often as it takes; returns those that were given meanwhile."""
    return [other for _ in range(times) for other in recovery.progressed(engine, number)]


def all_move(recovery: EngineRecovery, numbers: Iterable[int]) -> list[int]:
    return [other for number in numbers for other in move(recovery, number)]


def proven(recovery: EngineRecovery) -> bool:
    return recovery.proven(E)


def test_at_first_everybody_is_given_at_once() -> None:
    recovery = EngineRecovery()
    assert proven(recovery)
    assert recovery.engine_ready(E, [1, 2, 3], others=False) == [1, 2, 3]
    assert not proven(recovery)
    assert all_move(recovery, [2, 1, 3]) == []
    assert proven(recovery)


def test_engines_that_are_killed_from_outside_again_and_again_cost_nobody_anything() -> None:
    recovery, everybody = EngineRecovery(), list(range(9))
    for life in (9, 40, 31, 5, 20, 12, 4, 60, 6, 11):
        assert recovery.engine_ready(E, everybody, others=False) == everybody
        for number in everybody:
            move(recovery, number, times=life + 1)
        assert recovery.engine_died(E) is None


def test_one_that_has_nothing_to_do_dies_of_nobody() -> None:
    recovery = EngineRecovery()
    assert recovery.engine_ready(E, [], others=False) == []
    assert proven(recovery)
    assert recovery.engine_died(E) is None
    assert recovery.engine_ready(E, [1], others=False) == [1]


def test_those_that_had_not_moved_are_tried_one_after_the_other() -> None:
    recovery = EngineRecovery()
    recovery.engine_ready(E, [1, 2, 3, 4], others=False)
    move(recovery, 1)
    assert recovery.engine_died(E) is None
    assert recovery.engine_ready(E, [1, 2, 3, 4], others=False) == [1, 2], "one had moved, one is tried"
    assert move(recovery, 1) == []
    assert move(recovery, 2) == [3], "those held back follow when the others have moved"
    assert move(recovery, 3) == [4]
    assert not proven(recovery)
    assert move(recovery, 4) == []
    assert proven(recovery)


def test_one_that_died_when_all_there_had_moved_is_given_nobody_more_who_would_be_blamed_for_it() -> None:
    recovery = EngineRecovery()
    recovery.engine_ready(E, [1, 2], others=False)
    recovery.engine_died(E)
    assert recovery.engine_ready(E, [1, 2], others=False) == [1]
    assert recovery.engine_died(E, moved=[1] * (FEW + 1)) is None
    for death in range(2, DEATHS + 1):
        assert recovery.engine_ready(E, [1, 2], others=False) == [1, 2]
        culprit = recovery.engine_died(E, moved=[1] * 10 * death)
        assert culprit == (2 if death == DEATHS else None), "it was there as often as that"


def test_a_part_that_killed_is_parted_before_the_rest() -> None:
    recovery, everybody = EngineRecovery(), list(range(2 * PARTS))
    recovery.engine_ready(E, everybody, others=False)
    recovery.engine_died(E)
    assert recovery.engine_ready(E, everybody, others=False) == [0, 1]
    assert all_move(recovery, [0, 1]) == [2, 3]
    recovery.engine_died(E)
    assert recovery.engine_ready(E, everybody, others=False) == [0, 1, 2], "who has been proven comes along"
    assert move(recovery, 2) == [3]
    assert move(recovery, 3) == [4, 5]


def test_newcomers_are_not_held_back_for_what_was_before_them() -> None:
    recovery = EngineRecovery()
    recovery.engine_ready(E, [1, 2], others=False)
    recovery.engine_died(E)
    assert recovery.engine_ready(E, [1, 2, 9], others=False) == [9, 1]


def test_those_that_have_ended_are_skipped() -> None:
    recovery = EngineRecovery()
    recovery.engine_ready(E, [1, 2, 3, 4], others=False)
    recovery.engine_died(E)
    assert recovery.engine_ready(E, [3, 4], others=False) == [3], "nobody waits for who is no more"
    assert recovery.ended(E, 4) == []
    assert move(recovery, 3) == []
    assert proven(recovery)


def test_the_end_of_a_stream_is_as_good_as_its_going_on() -> None:
    recovery = EngineRecovery()
    recovery.engine_ready(E, [1, 2], others=False)
    recovery.engine_died(E)
    recovery.engine_ready(E, [1, 2], others=False)
    assert move(recovery, 1) == [2]
    move(recovery, 2)
    assert proven(recovery)


def test_news_of_others_prove_nothing() -> None:
    recovery = EngineRecovery()
    recovery.engine_ready(E, [1, 2], others=False)
    recovery.engine_died(E)
    recovery.engine_ready(E, [1, 2], others=False)
    assert move(recovery, 2) == []
    assert move(recovery, 77) == []
    assert not proven(recovery)


def test_one_alone_is_tried_so_often_and_then_it_is_the_culprit() -> None:
    recovery = EngineRecovery()
    for death in range(1, DEATHS + 1):
        assert recovery.engine_ready(E, [1], others=False) == [1]
        assert recovery.engine_died(E) == (1 if death == DEATHS else None)
    assert recovery.engine_ready(E, [2], others=False) == [2]
    move(recovery, 2)
    assert proven(recovery)


def test_one_that_moved_on_at_last_is_no_culprit_and_is_counted_anew() -> None:
    recovery = EngineRecovery()
    for _ in range(3):
        for _ in range(DEATHS - 2):
            assert recovery.engine_ready(E, [1], others=False) == [1]
            assert recovery.engine_died(E) is None
        recovery.engine_ready(E, [1], others=False)
        move(recovery, 1)
        assert recovery.engine_died(E) is None, "it had moved on"


def live(recovery: EngineRecovery, everybody: list[int], poison: set[int]) -> bool:
    """A new engine, which dies as soon as it is given one of the poison: whether it lived."""
    left = recovery.engine_ready(E, everybody, others=False)
    while left and not poison & set(left):
        left = left[1:] + move(recovery, left[0])
    return not left


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 100, 1000])
def test_a_culprit_is_found_among_many_in_few_deaths_and_nobody_else_is_given_up(count: int) -> None:
    most = 1 + math.ceil(math.log(count, PARTS)) + DEATHS
    for poison in {0, count // 3, count - 1}:
        recovery, left, found = EngineRecovery(), list(range(count)), list[int]()
        for _ in range(most):
            assert not live(recovery, left, {poison} - set(found))
            culprit = recovery.engine_died(E)
            if culprit is not None:
                found.append(culprit)
                left.remove(culprit)
                break
        assert found == [poison]
        assert live(recovery, left, set())
        assert proven(recovery), "everybody else goes on, and nobody is held back for ever"


def test_several_culprits_are_found_one_after_the_other() -> None:
    recovery, left, poison = EngineRecovery(), list(range(20)), {3, 4, 17}
    deaths = 0
    while not live(recovery, left, poison):
        deaths += 1
        assert deaths < 30
        culprit = recovery.engine_died(E)
        if culprit is not None:
            left.remove(culprit)
    assert sorted(set(range(20)) - set(left)) == sorted(poison)
    assert proven(recovery)


def test_those_without_credit_have_moved_when_nothing_is_prepared_any_more() -> None:
    recovery = EngineRecovery()
    recovery.engine_ready(E, [1, 2, 3, 4], others=False)
    recovery.engine_died(E)
    assert recovery.engine_ready(E, [1, 2, 3, 4], others=False) == [1]
    assert recovery.prepared(E) == [], "it has not even begun"
    recovery.preparing(E, 1)
    assert recovery.prepared(E) == [2]
    recovery.preparing(E, 2)
    recovery.engine_died(E)
    assert recovery.engine_ready(E, [1, 2, 3, 4], others=False) == [1, 2]
    assert recovery.prepared(E) == [], "what the last engine had begun with says nothing of this one"


def test_who_has_nothing_to_be_computed_as_it_comes_there_is_not_waited_for() -> None:
    recovery = EngineRecovery()
    recovery.engine_ready(E, [1, 2, 3], others=False)
    recovery.engine_died(E)
    assert recovery.engine_ready(E, [1, 2, 3], others=False) == [1]
    assert recovery.rests(E, 1) == [2]
    assert recovery.rests(E, 2) == [3]
    assert recovery.rests(E, 3) == []
    assert proven(recovery)


class WatchedNumber(int):
    """Of a stream; how often any of them was compared."""

    compared = 0
    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        WatchedNumber.compared += 1
        return int.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other


def test_thousands_of_suspects_are_not_looked_for_one_by_one() -> None:
    recovery = EngineRecovery()
    recovery.engine_ready(E, list(range(2000)), others=False)
    recovery.engine_died(E)
    WatchedNumber.compared = 0
    assert recovery.engine_ready(E, [WatchedNumber(number) for number in range(2000)], others=False)
    assert WatchedNumber.compared <= 3 * 2000


def test_thousands_of_suspects_that_end_are_not_looked_for_among_all_others() -> None:
    recovery = EngineRecovery()
    recovery.engine_ready(E, list(range(2000)), others=False)
    recovery.engine_died(E)
    WatchedNumber.compared = 0
    for number in range(2000):
        recovery.ended(None, WatchedNumber(number))
    assert WatchedNumber.compared <= 3 * 2000
    assert not recovery.suspicious


# -- several engines -------------------------------------------------------------------------------


def test_suspects_are_tried_where_nobody_else_is_while_the_rest_goes_on() -> None:
    recovery = EngineRecovery()
    for engine in (0, 1, 2):
        assert recovery.engine_ready(engine, [], others=engine > 0) == []
    recovery.given(1, [5, 6])
    move(recovery, 5, 1)
    assert recovery.engine_died(1) is None
    assert recovery.suspects == {6}
    assert recovery.needs_engine
    assert recovery.takes_starts(0)
    recovery.given(0, [5])
    assert recovery.engine_ready(1, [6], others=True) == [6]
    assert not recovery.takes_starts(1) or not recovery.suspicious
    recovery.engine_died(1)
    assert not recovery.takes_starts(1) or recovery.needs_engine
    assert recovery.engine_ready(1, [6], others=True) == [6]
    assert not recovery.takes_starts(1), "nobody else comes in while it is tried"
    assert recovery.takes_starts(0)
    move(recovery, 6, 1)
    assert recovery.takes_starts(1)


def test_while_suspects_are_tried_another_engine_is_for_the_others() -> None:
    recovery = EngineRecovery()
    recovery.given(0, [1, 2])
    recovery.engine_died(0)
    assert recovery.engine_ready(0, [1, 2], others=True) == [1]
    assert recovery.engine_ready(1, [2, 3], others=True) == [3]
    assert move(recovery, 1, 0) == [2]


def test_what_an_engine_that_was_told_to_end_was_given_is_suspected_of_nothing() -> None:
    recovery = EngineRecovery()
    recovery.given(0, [1, 2])
    recovery.engine_left(0)
    assert not recovery.suspicious
    recovery.given(0, [1, 2])
    recovery.engine_died(0)
    assert recovery.engine_ready(0, [1, 2], others=True) == [1]
    recovery.engine_left(0)
    assert recovery.engine_ready(1, [1, 2], others=True) == [1], "it is tried elsewhere"
