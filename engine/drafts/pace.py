"""The pace of drafting: how many drafts of a stream are worth computing, by how many were right lately, by
what a token more costs a step, and by what a draft takes to be found.

All are learnt from what was computed anyway. A draft is worth it where it brings more tokens a second, for
all rows of the step together: beside many rows a token more costs as much as a row of its own, and then none
is.

It knows numbers alone.
"""

from __future__ import annotations

from typing import Protocol

MOST = 16  # drafts of a row
RIGHT, TRIED = 2.0, 3.0  # what is supposed of a stream of which nothing is known
KEPT = 0.9  # of what is known of a stream, for each draft that is tried
RESTING = 0.99  # and for each step that none was worth trying
STEPS_KEPT = 0.98  # of what is known of steps, for each
SPARED = 8  # tokens that a step could compute in the time that it takes beside them, until that is known
OUTLIER = 3.0  # times what was expected: no step is taken to have cost more


class Acceptance:
    """How often a stream's drafts are right."""

    def __init__(self) -> None:
        self._right, self._tried = RIGHT, TRIED

    @property
    def chance(self) -> float:
        """That the next draft is right, where those before it were."""
        return self._right / self._tried

    def learn(self, right: int, drafted: int) -> None:
        """So many were right, and the next, if there was one, was wrong."""
        for was_right in [1] * right + [0] * (right < drafted):
            self._right = KEPT * self._right + was_right
            self._tried = KEPT * self._tried + 1

    def rest(self) -> None:
        """What was wrong need not be so for ever."""
        self._right = RESTING * self._right + (1 - RESTING) * RIGHT
        self._tried = RESTING * self._tried + (1 - RESTING) * TRIED


class Cost(Protocol):
    """Of a step, in seconds, by how many tokens it computes."""

    @property
    def of_token(self) -> float: ...
    def of_step(self, tokens: int) -> float: ...
    def learn(self, tokens: int, seconds: float) -> None: ...


class StepCost:
    """A line through steps that were taken, of which the latest weigh most."""

    def __init__(self) -> None:
        self._steps = 0
        self._tokens = self._seconds = 0.0  # means
        self._variance = self._covariance = 0.0

    def learn(self, tokens: int, seconds: float) -> None:
        if self._steps:
            seconds = min(seconds, OUTLIER * self.of_step(tokens))
        self._steps += 1
        weight = max(1 - STEPS_KEPT, 1 / self._steps)
        more, longer = tokens - self._tokens, seconds - self._seconds
        self._tokens += weight * more
        self._seconds += weight * longer
        self._variance = (1 - weight) * (self._variance + weight * more * more)
        self._covariance = (1 - weight) * (self._covariance + weight * more * longer)

    @property
    def of_token(self) -> float:
        """As if one step more had been seen, a token larger, that cost what is supposed."""
        supposed = self._seconds / (SPARED + self._tokens)
        return max(0.0, (self._covariance + supposed) / (self._variance + 1))

    def of_step(self, tokens: int) -> float:
        beside_tokens = max(0.0, self._seconds - self.of_token * self._tokens)
        return beside_tokens + self.of_token * tokens


def worthwhile(chance: float, cost: Cost, *, rows: int, tokens: int, drafting_s: float = 0.0) -> int:
    """How many drafts of a row are worth computing, in a step that computes so many tokens for rows that
    sample one each: as long as the next brings more for its time than all before. `drafting_s`: what each
    takes to be found."""
    step, each = cost.of_step(tokens), cost.of_token + drafting_s
    drafts, expected, next_right = 0, float(rows), chance
    while drafts < MOST and next_right * step > expected * each:
        expected += next_right
        step += each
        next_right *= chance
        drafts += 1
    return drafts
