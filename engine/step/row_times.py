"""Row times: how long steps take by how many rows decode in them, and how many rows a step of several tenants
may have. Each of the others adds at most half of the time that the one with the fewest rows has alone.

A table of what was seen, with a line for each doubling, and between those as between points. What was seen
long ago counts no more: contexts have outgrown it, or whoever had long ones is gone. What is not known is
tried, a doubling at a time: a step that is too long is so once. How long a tenant takes alone is known of it
alone: of another, whose contexts are long, as few rows may take many times as long.

It knows numbers alone, and which are one tenant's.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

PART = 0.5  # of others' time, for what comes beside them
NEWEST = 0.1  # how much of a mean the newest step is
OUTLIER = 3.0  # times what was expected: no step is taken to have cost more
TRIED = 8  # one in so many steps has none but those whose time is to be seen
TENANTS, SELDOM = 4, 64  # of whom it is known: then one in so many, and else it is as of the quickest of them
KNOWN_STEPS = 250  # for which something is known that is not seen again


@dataclass(slots=True)
class _Seen:
    tokens: float  # means
    seconds: float
    at: int  # the last step


class RowTimes:
    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}  # by how many digits the number of tokens has
        self._alone: dict[tuple[int, int], _Seen] = {}  # of a tenant's steps, by that too
        self._steps = 0
        self._asked, self._tried = 0, -TRIED  # times, and the last of them that something was to be seen

    def __bool__(self) -> bool:
        return bool(self._seen)

    def learn(self, tokens: int, seconds: float, whose: int | None = None) -> None:
        """A step that did nothing else has taken so long. `whose`: all its rows are this tenant's."""
        self._steps += 1
        digits = tokens.bit_length()
        self._seen[digits] = self._with(self._seen.get(digits), tokens, seconds)
        if whose is not None:
            alone = self._with(self._alone.pop((whose, digits), None), tokens, seconds)
            self._alone[whose, digits] = alone
            if len(self._alone) > KNOWN_STEPS + 1:  # the first is known no more
                del self._alone[next(iter(self._alone))]

    def _with(self, seen: _Seen | None, tokens: int, seconds: float) -> _Seen:
        """One step more."""
        if seen is None:
            return _Seen(tokens, seconds, self._steps)
        weight = NEWEST if self._is_known(seen) else 1.0
        seen.tokens += weight * (tokens - seen.tokens)
        seen.seconds += weight * (min(seconds, OUTLIER * seen.seconds) - seen.seconds)
        seen.at = self._steps
        return seen

    def _is_known(self, seen: _Seen) -> bool:
        return self._steps - seen.at <= KNOWN_STEPS

    def of(self, tokens: float) -> float:
        """As of the nearest that was seen, where nothing was on one side."""
        points = self._points
        if tokens <= points[0].tokens:
            return points[0].seconds
        for below, above in pairwise(points):
            if tokens <= above.tokens:
                part = (tokens - below.tokens) / (above.tokens - below.tokens)
                return below.seconds + part * (above.seconds - below.seconds)
        return points[-1].seconds

    def most_of(self, tenants: int, whose: int, fewest: int, beside_prompts: bool) -> int | None:
        """Rows that a step of so many tenants may have, of whom this one has the fewest; prompts have half of
        what is not theirs. Where it is yet to be seen how long those take alone, None now and then: the step
        is to have nothing else. Else it is as many for each."""
        self._asked += 1
        alone, some = self._alone_of(whose, fewest.bit_length())
        if alone is None and self._asked - self._tried >= (SELDOM if some else TRIED):
            self._tried = self._asked
            return None
        base = alone or some
        if base is None:
            return tenants * fewest
        part = PART / 2 if beside_prompts else PART
        own_s = base.seconds + self.of(fewest) - self.of(base.tokens)
        return int(self._most((1 + part * (tenants - 1)) * own_s))

    def _alone_of(self, whose: int, digits: int) -> tuple[_Seen | None, _Seen | None]:
        """What is known of this tenant, and of the quickest, if it is known of several."""
        alone = self._alone.get((whose, digits))
        if alone is not None and self._is_known(alone):
            return alone, None
        others = [
            seen for (_, count), seen in self._alone.items() if count == digits and self._is_known(seen)
        ]
        return None, min(others, key=attrgetter("seconds")) if len(others) >= TENANTS else None

    def beside(self, tokens: int) -> int:
        """How many more leave so many two thirds of their pace."""
        return max(0, int(self._most((1 + PART) * self.of(tokens))) - tokens)

    def _most(self, seconds: float) -> float:
        """Rows of a step that takes so long; twice as many as were seen where none took longer."""
        points = self._points
        within = max((at for at, point in enumerate(points) if point.seconds <= seconds), default=-1)
        if within < 0:
            return 0
        if within == len(points) - 1:
            return 2 * points[-1].tokens
        short, long = points[within], points[within + 1]
        part = (seconds - short.seconds) / (long.seconds - short.seconds)
        return short.tokens + part * (long.tokens - short.tokens)

    @property
    def _points(self) -> list[_Seen]:
        """There is one, if anything was seen: the last."""
        return sorted(filter(self._is_known, self._seen.values()), key=attrgetter("tokens"))
