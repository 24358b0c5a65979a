"""The lines of news: what takes long is not waited for by others, and each stream's news and each step come
in their order, whatever becomes dear in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import cast

import pytest

from engine import api
from realtime.hub.news_lines import NewsLines, StepNews, StreamNews
from realtime.hub.serving_engine import ServingEngine

ENGINE = cast(ServingEngine, object())
MOST = 8
PAYERS = 3
DEAR = 4  # as many plain ones one weighs


class Taker:
    """Streams from 100 on are dear, and whichever is said to be."""

    def __init__(self) -> None:
        self.dear = set(range(100, 200))
        self.payers: dict[int, int] = {}
        self.again: dict[int, int] = {}  # streams that have more to be taken in, and how often
        self.steps: list[StepNews] = []
        self.taken: list[tuple[int, int]] = []  # stream, step
        self.held_back: list[StreamNews] = []  # what was taken in after its step
        self.told: list[int] = []
        self.turns = list[Callable[[], None]]()
        self.later = list[Callable[[], None]]()
        self.waits: dict[int, float] = {}  # streams of which nothing is to be taken in
        self.failing = set[int]()
        self.step = 0
        self.goes = 0  # in which it was told
        self.lines = NewsLines(
            self.take_in,
            self.tell,
            self.weighed,
            most=MOST,
            wait_s=lambda stream: self.waits.get(stream, 0.0),
            call_later=lambda delay_s, call: (self.later if delay_s else self.turns).append(call),
        )

    def weighed(self, step: StepNews, news: api.News) -> StreamNews:
        is_dear = news.stream in self.dear
        payer = self.payers.get(news.stream, news.stream % PAYERS)
        return StreamNews(step, news, payer, DEAR if is_dear else 1, is_dear)

    def add(self, *streams: int) -> None:
        self.add_together(streams)

    def add_together(self, *steps: Sequence[int]) -> None:
        """Of each step its streams."""
        came = list[StepNews]()
        for streams in steps:
            self.step += 1
            output = api.StepOutput(self.step, [api.News(stream) for stream in streams], api.Stats())
            came.append(StepNews(ENGINE, output, 0.0))
        self.steps += came
        self.lines.add(came)

    def take_in(self, some: Iterable[StreamNews]) -> None:
        self.goes += 1
        for one in some:
            if one.news.stream in self.failing:
                raise ValueError(one.news.stream)
            if one.step in self.steps:  # else it is more of one
                self.taken.append((one.news.stream, one.step.output.step))
            else:
                self.held_back.append(one)
            if self.again.get(one.news.stream):
                self.again[one.news.stream] -= 1
                self.lines.more(one)

    def tell(self, step: StepNews) -> None:
        self.told.append(step.output.step)

    def turn(self) -> None:
        """Of the event loop."""
        turns, self.turns[:] = self.turns[:], []
        for turn in turns:
            turn()


def test_what_is_plain_does_not_wait_behind_what_is_dear() -> None:
    taker = Taker()
    taker.add(*range(100, 120), 1, 2)
    assert {(1, 1), (2, 1)} <= set(taker.taken)
    taker.add(1, 2)
    assert {(1, 2), (2, 2)} <= set(taker.taken)
    assert len(taker.taken) == 4 + MOST // DEAR
    assert taker.told == [], "a step is told of behind all of its news, and they in their order"
    while taker.turns:
        taker.turn()
    assert taker.told == [1, 2]
    assert len(taker.taken) == 24


def test_news_of_a_payer_do_not_wait_behind_a_crowd_of_anothers() -> None:
    taker, crowd = Taker(), range(0, 20 * PAYERS, PAYERS)
    taker.add(*crowd)
    taker.add(*crowd, 1)
    assert (1, 2) not in taker.taken, "the turn was over before they came"
    taker.turn()
    assert (1, 2) in taker.taken
    assert len(taker.taken) == 2 * MOST
    while taker.turns:
        taker.turn()
    assert taker.told == [1, 2]


def test_few_news_are_taken_in_in_one_go_of_however_many_steps() -> None:
    taker = Taker()
    taker.add_together([1, 2, 3], [1, 2], [], [3])
    assert taker.taken == [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2), (3, 4)]
    assert (taker.goes, taker.told, taker.turns) == (1, [1, 2, 3, 4], [])
    assert taker.lines.empty


def test_they_are_empty_when_nothing_waits_and_all_steps_are_told_of() -> None:
    taker = Taker()
    taker.waits = {100: 0.1}
    seen = []
    acts: list[Callable[[], None]] = [lambda: taker.add(*range(MOST + 1)), taker.turn, lambda: taker.add(100)]
    for act in acts:
        act()
        seen.append(taker.lines.empty)
    assert seen == [False, True, False]


def test_what_becomes_dear_where_others_stand_is_waited_for_by_none_of_them() -> None:
    taker = Taker()
    crowd, others = range(0, MOST * PAYERS, PAYERS), range(1, 2 * MOST * PAYERS, PAYERS)
    taker.add(*range(2, MOST * PAYERS, PAYERS))
    taker.add(*crowd)
    taker.dear |= set(crowd)
    taker.again = dict.fromkeys(crowd, 5)
    taker.add(*crowd)
    taker.add(*others)
    for _ in range(len(others) // (MOST // 2)):
        taker.turn()
    assert {(stream, 4) for stream in others} <= set(taker.taken)
    while taker.turns:
        taker.turn()
    assert [step for stream, step in taker.taken if stream == crowd[0]] == [2, 3]
    assert taker.told == [1, 2, 3, 4]


def test_a_streams_news_come_in_their_order_also_where_it_is_known_meanwhile_who_pays_for_it() -> None:
    taker = Taker()
    adopted = range(0, 2 * MOST * PAYERS, PAYERS)
    taker.add(*adopted)
    taker.payers[adopted[-1]] = 1
    taker.add(adopted[-1])
    while taker.turns:
        taker.turn()
    assert [step for stream, step in taker.taken if stream == adopted[-1]] == [1, 2]


def test_what_is_to_wait_holds_up_nobody_and_comes_in_its_order() -> None:
    taker = Taker()
    taker.waits = {100: 0.1}
    for _ in range(3):
        taker.add(100, 101, 1)
        while taker.turns:
            taker.turn()
    assert taker.told == [1, 2, 3], "no step waits for it"
    assert all(stream != 100 for stream, _ in taker.taken)
    assert len(taker.later) == 1
    taker.later.pop()()
    while taker.turns:
        taker.turn()
    assert all(stream != 100 for stream, _ in taker.taken), "it owes as before"
    taker.waits = {}
    taker.later.pop()()
    taker.add(100)
    while taker.turns:
        taker.turn()
    assert [one.step.output.step for one in taker.held_back] == [1, 2, 3]
    assert taker.taken[-1] == (100, 4)
    assert not taker.later


@pytest.mark.parametrize("failing", [1, 101])
def test_where_one_fails_those_behind_it_are_taken_in_all_the_same(failing: int) -> None:
    taker = Taker()
    taker.failing = {failing}
    with pytest.raises(ValueError, match=str(failing)):
        taker.add(1, 100, 2, 101, 3, 102)
    while taker.turns:
        taker.turn()
    assert {stream for stream, _ in taker.taken} == {1, 2, 3, 100, 101, 102} - {failing}
    assert taker.told == [1]
    assert taker.lines.empty


def test_what_waits_can_be_looked_at() -> None:
    taker = Taker()
    taker.waits = {100: 0.1}
    taker.add(100)
    taker.add(100, *range(101, 110), *range(MOST + 2))
    waits = [(one.news.stream, one.step.output.step) for one in taker.lines]
    assert [step for stream, step in waits if stream == 100] == [1, 2]
    assert len(waits) + len(taker.taken) == 1 + 1 + 9 + MOST + 2
    assert not set(waits) & set(taker.taken)
    taker.waits = {}
    taker.later.pop()()
    while taker.turns:
        taker.turn()
    assert not list(taker.lines)


def test_each_turn_has_some_of_both() -> None:
    taker = Taker()
    taker.add(*range(100, 110), *range(40))
    for turn in range(1, 4):
        assert sum(stream < 100 for stream, _ in taker.taken) == MOST * turn
        assert sum(stream >= 100 for stream, _ in taker.taken) == MOST // DEAR * turn
        taker.turn()


@pytest.mark.parametrize("seed", range(20))
def test_each_streams_news_come_in_their_order_whatever_becomes_dear(seed: int) -> None:
    taker, chance = Taker(), random.Random(seed)
    said: dict[int, list[int]] = {}
    for _ in range(40):
        for stream in chance.sample(range(90, 110), 4):  # a guard comes, or goes
            taker.dear ^= {stream}
            taker.again[stream] = chance.randrange(3)
        streams = chance.sample(range(80, 120), 25)
        taker.add(*streams)
        for stream in streams:
            said.setdefault(stream, []).append(taker.step)
        if chance.random() < 0.5:
            taker.turn()
    while taker.turns:
        taker.turn()
    for stream, steps in said.items():
        assert [step for one, step in taker.taken if one == stream] == steps
    assert taker.told == list(range(1, taker.step + 1))
