"""Row times: how long steps take by how many rows decode in them, and how many rows a step of several tenants
may have. Each of the others adds at most half of the time that the one with the fewest rows has alone.

A table of what was seen, with a line for each doubling, and between those as between points; what was seen
long ago, contexts have outgrown. What is not known is tried, a doubling at a time: a step that is too long is
so once.

It knows numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

PART = 0.5  # of others' time, for what comes beside them
NEWEST = 0.1  # how much of a mean the newest step is
OUTLIER = 3.0  # times what was expected: no step is taken to have cost more
TRIED = 8  # one in so many steps has none but those whose time is to be seen
KNOWN_STEPS = 2_000  # for which something is known that is not seen again


@dataclass(slots=True)
class _Seen:
    rows: float  # means
    seconds: float
    at: int  # the last step


class RowTimes:
    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}  # by how many digits the number of rows has
        self._steps = 0
        self._unknown = 0  # times that it was not known how long those take who have the fewest

    def __bool__(self) -> bool:
        return bool(self._seen)

    def learn(self, rows: int, seconds: float) -> None:
        """A step that did nothing else has taken so long."""
        self._steps += 1
        digits = rows.bit_length()
        seen = self._seen.get(digits)
        if seen is None:
            self._seen[digits] = _Seen(rows, seconds, self._steps)
            return
        seen.rows += NEWEST * (rows - seen.rows)
        seen.seconds += NEWEST * (min(seconds, OUTLIER * seen.seconds) - seen.seconds)
        seen.at = self._steps

    def of(self, rows: int) -> float:
        """As of the nearest that was seen, where nothing was on one side."""
        points = self._points
        if rows <= points[0].rows:
            return points[0].seconds
        for below, above in pairwise(points):
            if rows <= above.rows:
                part = (rows - below.rows) / (above.rows - below.rows)
                return below.seconds + part * (above.seconds - below.seconds)
        return points[-1].seconds

    def most_of(self, tenants: int, fewest: int, beside_prompts: bool) -> int | None:
        """Rows that a step of so many tenants may have, of whom one has the fewest; prompts have half of what
        is not theirs. Where it is yet to be seen how long those take alone, None now and then, and else as
        many for each: beside prompts it cannot be seen."""
        digits = fewest.bit_length()
        seen = self._seen.get(digits)
        if seen is not None and self._steps - seen.at <= KNOWN_STEPS:
            part = PART / 2 if beside_prompts else PART
            return int(self._most((1 + part * (tenants - 1)) * self.of(fewest)))
        self._unknown += 1
        return None if self._unknown % TRIED == 1 else tenants * fewest

    def beside(self, rows: int) -> int:
        """How many more rows leave so many two thirds of their pace."""
        return max(0, int(self._most((1 + PART) * self.of(rows))) - rows)

    def _most(self, seconds: float) -> float:
        """Rows of a step that takes so long; twice as many as were seen where none took longer."""
        points = self._points
        above = next((at for at, point in enumerate(points) if point.seconds > seconds), None)
        if above is None:
            return 2 * points[-1].rows
        if above == 0:
            return 0
        short, long = points[above - 1], points[above]
        part = (seconds - short.seconds) / (long.seconds - short.seconds)
        return short.rows + part * (long.rows - short.rows)

    @property
    def _points(self) -> list[_Seen]:
        return sorted(self._seen.values(), key=attrgetter("rows"))
