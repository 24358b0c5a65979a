"""Prompt times: how long tokens of prompts make a step in which others decode, and how many it may have.

Mostly they are as many as take a third of the time of those who decode. On a device a step that has any is
launched anew and not replayed, and that alone may take several times as long as its rows do: a few tokens
would be the dearest, with everybody's pace gone for them. There as many come as are worth it, and then none
until the others have had their time.

It knows numbers alone.
"""

from __future__ import annotations

from engine.step.times_table import TimesTable

LONG = 3.5  # times what they may take: hardly longer than those who decode take themselves
DEAR = 2.0  # times what a token costs at best
CHEAPER = 0.75  # of what a token costs: there are to be more of them


class PromptTimes:
    def __init__(self) -> None:
        self._table = TimesTable()
        self._lent = False  # there were to be more than may be
        self._owed_s = 0.0  # for that, to those who decode

    def __bool__(self) -> bool:
        return bool(self._table)

    @property
    def owe(self) -> bool:
        return self._owed_s > 0

    def learn(self, tokens: int, seconds: float, may_take_s: float | None) -> None:
        """So many took so long, where they were to take so long beside others, if there were any."""
        self._table.learn(tokens, max(0.0, seconds))
        if self._lent and may_take_s is not None:
            self._lent = False
            self._owed_s += max(0.0, self._table.of(tokens) - may_take_s)

    def rest(self, may_take_s: float) -> None:
        """A step had none of them, where they might have taken so long."""
        self._owed_s = max(0.0, self._owed_s - may_take_s)

    def most_of(self, may_take_s: float, least: int) -> int:
        """Of a step in which they may take so long."""
        if within := int(self._table.most(may_take_s)):
            return within
        first, *_ = points = self._table.points
        costs = [point.seconds / point.tokens for point in points]
        dear = costs[0] > DEAR * min(costs)
        few = first.tokens * may_take_s < least * first.seconds
        if first.seconds <= LONG * may_take_s or not (dear or few):
            return max(least, int(first.tokens * may_take_s / first.seconds))  # each costs as much, it seems
        if len(points) == 1 or costs[-1] < CHEAPER * costs[-2]:
            most = 2 * points[-1].tokens  # the more, the less each costs: more than were seen
        elif dear:
            most = self._worth(min(costs))
        else:
            return least
        self._lent = True
        return int(most)

    def _worth(self, best: float) -> float:
        """The fewest of which each costs not much more than it may."""
        first, *_, last = self._table.points
        tokens = first.tokens
        while tokens < last.tokens and self._table.of(tokens) > DEAR * best * tokens:
            tokens *= 2
        return min(tokens, last.tokens)
