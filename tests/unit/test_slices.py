"""Slices: in order, so many in one turn, and none is lost."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterable

import pytest

from realtime.hub.slices import Slices


class Turns:
    """Slices of numbers, and the turns that they ask for."""

    def __init__(self, most: int) -> None:
        self.asked = deque[Callable[[], None]]()
        self.done: list[list[int]] = []
        self.slices = Slices[int](self._work, most=most, next_turn=self.asked.append, weight=abs)

    def _work(self, some: Iterable[int]) -> None:
        self.done.append([])
        for number in some:
            self.done[-1].append(number)
            if number == -1:
                raise ValueError("of -1")

    def pass_on(self) -> None:
        while self.asked:
            self.asked.popleft()()


def test_few_are_done_at_once() -> None:
    turns = Turns(most=7)
    turns.slices.add([1, 2])
    turns.slices.add([3])
    assert turns.done == [[1, 2], [3]]
    assert not turns.asked


def test_of_many_that_bring_a_few_each_a_turn_has_no_more_than_of_one_that_brings_many() -> None:
    """As of a thousand connections that go at once."""
    turns = Turns(most=2)
    for number in range(1, 6):
        turns.slices.add([1] * number)
    assert turns.done == [[1], [1]]
    assert len(turns.asked) == 1
    turns.asked.popleft()()
    assert turns.done == [[1], [1], [1, 1]]
    turns.pass_on()
    assert sum(map(len, turns.done)) == 15
    assert max(map(len, turns.done)) == 2


def test_of_many_each_turn_has_some_and_what_comes_later_is_done_later() -> None:
    turns = Turns(most=2)
    turns.slices.add([1, 1, 5, 1])
    turns.slices.add([1])
    assert turns.done == [[1, 1]]
    turns.pass_on()
    assert turns.done == [[1, 1], [5], [1, 1]]
    turns.slices.add([7])
    assert turns.done[-1] == [7], "nothing waits any more"


def test_what_waits_need_not_be_done() -> None:
    turns = Turns(most=1)
    turns.slices.add([4, 5])
    turns.slices.clear()
    turns.pass_on()
    assert turns.done == [[4]]


@pytest.mark.parametrize("most", [1, 3])
def test_what_fails_keeps_nobody_behind_it_from_having_a_turn(most: int) -> None:
    """Nor who was to have the same."""
    turns = Turns(most)
    turns.slices.first(1)
    turns.slices.add([-1, 2, 3])
    with pytest.raises(ValueError, match="of -1"):
        turns.pass_on()
    turns.pass_on()
    assert list(itertools.chain(*turns.done)) == [1, -1, 2, 3]


def test_what_comes_first_has_a_turn_too_where_nothing_else_waits() -> None:
    turns = Turns(most=3)
    turns.slices.first(1)
    assert turns.done == []
    turns.pass_on()
    assert turns.done == [[1]]


def test_owners_take_turns_and_each_ones_things_are_done_in_their_order() -> None:
    done, turns = list[int](), deque[Callable[[], None]]()
    slices = Slices[int](done.extend, most=2, next_turn=turns.append, owner=lambda number: number % 10)
    slices.add([10, 20, 30, 40, 11, 21, 12])
    while turns:
        turns.popleft()()
    assert done == [10, 11, 12, 20, 21, 30, 40]
