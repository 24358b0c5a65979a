"""Whenever a stream kills its engines, and whatever else dies beside: how many deaths it takes to find it,
who is there when they happen, and how long others wait.

The examples are the same each time: in one or two of a thousand in which engines are killed from outside as
well, somebody else happens to be there each time, and is given up.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from random import Random
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from realtime.hub.engine_recovery import DEATHS, FEW, EngineRecovery

ENGINES, STREAMS, LENGTH = 3, 60, 400
POISON = 0
BACK = 8  # ticks until another engine stands in a dead one's place
PATIENCE = 5_000


class Killed(NamedTuple):
    engine: int
    by_poison: bool
    beside: frozenset[int]  # who was there besides and was not tried


class Fleet:
    """Streams that move on once a tick where they are given, as the hub has them."""

    def __init__(self, chance: Random, kills: int, *, counts_anew: bool = False) -> None:
        """`kills`: behind how many moves the poison does, in all, or in each engine. What an engine has
        done when it dies is not always heard."""
        self.killed = list[Killed]()
        self.culprits = list[int]()
        self.waited = dict.fromkeys(range(STREAMS), 0)
        self.recovery = EngineRecovery()
        self._chance = chance
        self._kills = kills
        self._counts_anew = counts_anew
        self._done = dict.fromkeys(range(STREAMS), 0)
        self._begins = {number: chance.randrange(100) for number in range(STREAMS)}
        self._at = dict[int, int]()  # the engine of each stream that has one
        self._moves = dict[int, int]()  # of the poison, by engine: in this life of it
        self._suspects = set[int]()  # whoever is or was tried
        self._back = dict[int, int]()
        self._ticks = 0
        for engine in range(ENGINES):
            self.recovery.engine_ready(engine, [], others=engine > 0)

    def run(self, blows: AbstractSet[int] = frozenset()) -> None:
        """Until all have ended. `blows`: when one of the engines is killed from outside."""
        while self._done:
            assert self._ticks < PATIENCE, f"{len(self._done)} streams do not end"
            if self._ticks in blows:
                self.kill(self._chance.randrange(ENGINES))
            self.tick()

    def tick(self) -> None:
        self._ticks += 1
        for engine in [engine for engine, due in self._back.items() if due == self._ticks]:
            del self._back[engine]
            others = len(self._back) < ENGINES - 1
            given = self.recovery.engine_ready(engine, self._homeless(), others=others)
            self._give(engine, given)
        self._place()
        for number, engine in list(self._at.items()):
            if self._at.get(number) == engine:
                self._move(number, engine)
        for number in self._homeless():
            self.waited[number] += 1

    def kill(self, engine: int, by_poison: bool = False) -> None:
        if engine in self._back:
            return
        there = {number for number, at in self._at.items() if at == engine}
        apart = self._suspects if self.recovery.is_apart(engine) else set[int]()
        self.killed.append(Killed(engine, by_poison, frozenset(there - apart - {POISON})))
        culprit = self.recovery.engine_died(engine)
        for number in there:
            del self._at[number]
        self._back[engine] = self._ticks + BACK
        if culprit is not None:
            self.culprits.append(culprit)
            self._end(culprit)

    def _move(self, number: int, engine: int) -> None:
        if number == POISON:
            done = self._moves.get(engine, 0) if self._counts_anew else self._done[number]
            if done >= self._kills:
                self._moves.clear()
                if not self._counts_anew:
                    self._done[number] -= min(self._done[number], self._chance.randrange(2))
                self.kill(engine, by_poison=True)
                return
            self._moves = {engine: self._moves.get(engine, 0) + 1}
        self._done[number] += 1
        self._give(engine, self.recovery.progressed(engine, number))
        if self._done[number] == LENGTH:
            self._end(number)

    def _end(self, number: int) -> None:
        del self._done[number]
        engine = self._at.pop(number, None)
        given = self.recovery.ended(engine, number)
        if engine is not None:
            self._give(engine, given)

    def _homeless(self) -> list[int]:
        begun = [number for number in self._done if self._begins[number] <= self._ticks]
        return [number for number in begun if number not in self._at]

    def _give(self, engine: int, numbers: list[int]) -> None:
        for number in numbers:
            if self.recovery.is_apart(engine):
                self._suspects.add(number)
            self._at[number] = engine

    def _place(self) -> None:
        free = [engine for engine in range(ENGINES) if engine not in self._back]
        free = [engine for engine in free if self.recovery.takes_starts(engine)]
        free = [engine for engine in free if not self.recovery.is_apart(engine)] or free
        for number in self._homeless() if free else ():
            if number not in self.recovery.suspects:
                engine = self._chance.choice(free)
                self.recovery.given(engine, [number])
                self._at[number] = engine


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9), kills=st.integers(0, 60) | st.integers(0, LENGTH - 1))
def test_a_stream_that_kills_engines_is_found_in_three_more_deaths_whenever_it_kills(
    seed: int, kills: int
) -> None:
    fleet = Fleet(Random(seed), kills)
    fleet.run()
    assert fleet.culprits == [POISON], "nobody else is given up"
    assert len(fleet.killed) <= DEATHS
    among_others = [death for death in fleet.killed[1:] if death.beside]
    assert len(among_others) <= (kills > 0)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9), kills=st.integers(0, LENGTH - 1))
def test_one_that_kills_behind_so_many_moves_in_each_engine_is_found_too(seed: int, kills: int) -> None:
    fleet = Fleet(Random(seed), kills, counts_anew=True)
    fleet.run()
    assert fleet.culprits in ([POISON], []), "it moves on in each engine, and may come to its end"
    assert len(fleet.killed) <= 2 * DEATHS
    among_others = [death for death in fleet.killed[1:] if death.beside]
    assert len(among_others) <= 1


@settings(max_examples=60, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9), kills=st.integers(0, 60), blows=st.integers(1, 4))
def test_engines_that_die_beside_hide_nobody_and_give_up_nobody_else(
    seed: int, kills: int, blows: int
) -> None:
    fleet = Fleet(Random(seed), kills)
    fleet.run(set(Random(seed).sample(range(300), blows)))
    assert fleet.culprits == [POISON]
    by_poison = [death for death in fleet.killed if death.by_poison]
    assert len(by_poison) <= DEATHS * (1 + blows)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**9), between=st.integers(60, 160))
def test_engines_that_are_killed_from_outside_cost_nobody_a_long_wait(seed: int, between: int) -> None:
    fleet = Fleet(Random(seed), 2 * LENGTH)
    fleet.run(set(range(between, 10 * LENGTH, between)))
    assert fleet.culprits == []
    assert max(fleet.waited.values()) <= len(fleet.killed) * BACK * (FEW + 1)
