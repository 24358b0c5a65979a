"""The router: which of several engines a stream is given to. Among the two that hold most of its context and
a few others, the one that has its first token soonest, by what is known of each from outside.

Few, and by chance, since what is known is old: where several gateways ask all engines, all run to the same
one. Pure: it knows numbers, and no engine, link or stream.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Generic, NamedTuple, TypeVar

E = TypeVar("E")

HOLDERS, OTHERS = 2, 3
FIRST_STEP_S, FIRST_TOKEN_S = 0.01, 0.0002  # of an engine that has computed nothing yet
NEWEST = 0.1  # how much of an average the newest step is


class Pace:
    """How long an engine's steps take: a part for itself, and a part by what it computes."""

    def __init__(self) -> None:
        self.step_s = FIRST_STEP_S
        self.token_s = FIRST_TOKEN_S

    def stepped(self, step_s: float, rows: int, prompt_tokens: int) -> None:
        """A step has taken so long."""
        if prompt_tokens > rows:
            rest_s = max(0.0, step_s - self.step_s)
            self.token_s += NEWEST * (rest_s / prompt_tokens - self.token_s)
        elif rows:
            self.step_s += NEWEST * (step_s - self.step_s)


class Choice(NamedTuple, Generic[E]):
    """An engine, and what it has before it."""

    engine: E
    pace: Pace
    waiting_tokens: int  # of contexts that it is yet to compute
    streams: int  # that it was given
    held_tokens: int  # of the context that is to be computed

    def first_token_s(self, tokens: int) -> float:
        """How long a context of so many tokens waits there for its first one more."""
        missing = max(0, tokens - self.held_tokens)
        return self.pace.step_s + self.pace.token_s * (self.waiting_tokens + missing)


def choose(choices: Sequence[Choice[E]], tokens: int, chance: Random) -> E | None:
    """The engine for a context of so many tokens; of equals, the one with the fewest streams. None where
    there is none."""
    if not choices:
        return None
    holding = [choice for choice in choices if choice.held_tokens]
    holders = sorted(holding, key=lambda choice: -choice.held_tokens)[:HOLDERS]
    others = [choice for choice in choices if choice not in holders]
    asked = [*holders, *chance.sample(others, min(OTHERS, len(others)))]
    return min(asked, key=lambda choice: (choice.first_token_s(tokens), choice.streams)).engine
