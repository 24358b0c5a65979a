"""The scoring of an experiment: what clients came to, held against a quiet run; and percentiles of times.

It knows nothing of what befalls whom: an experiment does that meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import midstream
from tests.fakes.steering_clients import Outcome, SteeringClient, run_all

MOST_TOLD = 5  # of what went wrong: one is enough to be a bug


class Score:
    """What each player comes to in a quiet run, and everything that came out otherwise."""

    def __init__(self, truth: Mapping[tuple[int, int], Outcome]) -> None:
        self.truth = truth  # by player and seed
        self.plays = 0
        self.wrong: list[str] = []

    def count(self, player: int, seed: int, outcome: Outcome) -> None:
        self.plays += 1
        if outcome != self.truth[player, seed]:
            self.fail(f"player {player}, seed {seed}: {outcome} instead of {self.truth[player, seed]}")

    def fail(self, what: str) -> None:
        if len(self.wrong) < MOST_TOLD:
            self.wrong.append(what)


async def quiet_run(url: str, seeds: Iterable[int], players: Sequence[SteeringClient]) -> Score:
    """The truth."""
    async with midstream.connect(url) as client:
        truth = {seed: await run_all(client, seed, players) for seed in seeds}
    return Score({(player, seed): truth[seed][player] for seed in truth for player in range(len(players))})


async def keep_playing(
    client: midstream.Client, score: Score, players: Sequence[SteeringClient], over: Callable[[], bool]
) -> None:
    """All of them at once, each one seed after the other, until it is over."""

    async def keep(number: int, player: SteeringClient) -> None:
        for seed in itertools.cycle(sorted({seed for _, seed in score.truth})):
            score.count(number, seed, await player(client, seed))
            if over():
                return

    await asyncio.gather(*(keep(number, player) for number, player in enumerate(players)))


def rank(values: Iterable[float], part: float) -> float:
    """The smallest of the values that so large a part of them do not exceed."""
    ordered = sorted(values)
    return ordered[max(math.ceil(part * len(ordered)) - 1, 0)]
