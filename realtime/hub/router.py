"""The router: which of several engines a stream is given to. Among the two that hold most of its context and
a few others, the one that has its first token soonest, by what is known of each from outside.

Few, and by chance, since what is known is old: where several gateways ask all engines, all run to the same
one. Pure: it knows numbers, and no engine, link or stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from random import Random
from typing import Generic, NamedTuple, TypeVar

E = TypeVar("E")

HOLDERS, OTHERS = 2, 3
FIRST_TOKEN_S = 0.0002  # of an engine that has computed nothing yet
NEWEST = 0.1  # how much of an average the newest step is
ABOUT, ABOUT_S = 1.25, 0.01  # what is sooner by less than this is as soon


class Pace:
    """How long an engine takes to compute a token of a context."""

    def __init__(self) -> None:
        self.token_s = FIRST_TOKEN_S

    def stepped(self, step_s: float, rows: int, prompt_tokens: int) -> None:
        """A step has taken so long. One that mostly decodes says nothing of it."""
        if prompt_tokens > rows:
            self.token_s += NEWEST * (step_s / (prompt_tokens + rows) - self.token_s)


class Choice(NamedTuple, Generic[E]):
    """An engine, and what it has before it."""

    engine: E
    pace: Pace
    waiting_tokens: int  # of contexts that it is yet to compute
    streams: int  # that it was given
    held_tokens: int  # of the context that is to be computed

    def first_token_s(self, tokens: int) -> float:
        """How long a context of so many tokens waits there until it is computed."""
        return self.pace.token_s * (self.waiting_tokens + max(0, tokens - self.held_tokens))


def choose(choices: Sequence[Choice[E]], tokens: int, chance: Random) -> E | None:
    """The engine for a context of so many tokens: of those that are about as soon, the one with the fewest
    streams. None where there is none."""
    if not choices:
        return None
    holding = [choice for choice in choices if choice.held_tokens]
    holders = sorted(holding, key=lambda choice: -choice.held_tokens)[:HOLDERS]
    others = [choice for choice in choices if choice not in holders]
    left_out = chance.sample(others, len(others) - OTHERS) if len(others) > OTHERS else []
    asked = [choice for choice in choices if choice not in left_out] if left_out else choices
    waits = [(choice.first_token_s(tokens), choice) for choice in asked]
    soon_s = ABOUT * min(waits, key=itemgetter(0))[0] + ABOUT_S
    soon = [(choice.streams, wait_s, choice) for wait_s, choice in waits if wait_s <= soon_s]
    return min(soon, key=itemgetter(0, 1))[2].engine
