"""The router: which of several engines a stream is given to. The one that has its first token soonest, by
what is known of each from outside.

Pure: it knows numbers, and no engine, link or stream.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import NamedTuple, TypeVar

E = TypeVar("E", bound=Hashable)

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


class Load(NamedTuple):
    """What an engine has before it."""

    pace: Pace
    waiting_tokens: int  # of contexts that it is yet to compute
    streams: int  # that it was given


def first_token_s(load: Load, tokens: int) -> float:
    """How long a context of so many tokens waits there for its first one more."""
    return load.pace.step_s + load.pace.token_s * (load.waiting_tokens + tokens)


def choose(loads: Iterable[tuple[E, Load]], tokens: int) -> E | None:
    """The engine that is soonest there; of several, the one with the fewest streams. None where there is
    none."""
    ranked = [
        (first_token_s(load, tokens), load.streams, at, engine) for at, (engine, load) in enumerate(loads)
    ]
    return min(ranked)[-1] if ranked else None
