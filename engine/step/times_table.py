"""A table of times: how long something takes by how many there are of it, learnt from what was seen.

It has a line for each doubling, and between those it is as between points. What was seen long ago counts no
more: it may have come to take more, or less. It knows numbers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from operator import attrgetter

NEWEST = 0.1  # how much of a mean the newest is
OUTLIER = 3.0  # times what was expected: nothing is taken to have cost more
KNOWN_STEPS = 250  # for which something is known that is not seen again


@dataclass(slots=True)
class Seen:
    tokens: float  # means
    seconds: float
    at: int  # the last step


class TimesTable:
    def __init__(self) -> None:
        self.steps = 0
        self._seen: dict[int, Seen] = {}  # by how many digits the number of tokens has

    def __bool__(self) -> bool:
        return bool(self._seen)

    def learn(self, tokens: int, seconds: float) -> None:
        self.steps += 1
        digits = tokens.bit_length()
        self._seen[digits] = self._mean(self._seen.get(digits), tokens, seconds)

    def _mean(self, seen: Seen | None, tokens: int, seconds: float) -> Seen:
        """With one more, seen in this step."""
        if seen is None:
            return Seen(tokens, seconds, self.steps)
        weight = NEWEST if self.is_known(seen) else 1.0
        seen.tokens += weight * (tokens - seen.tokens)
        seen.seconds += weight * (min(seconds, OUTLIER * seen.seconds) - seen.seconds)
        seen.at = self.steps
        return seen

    def is_known(self, seen: Seen, within: int = KNOWN_STEPS) -> bool:
        return self.steps - seen.at <= within

    def of(self, tokens: float) -> float:
        """As of the nearest that was seen, where nothing was on one side."""
        points = self.points
        if tokens <= points[0].tokens:
            return points[0].seconds
        for below, above in pairwise(points):
            if tokens <= above.tokens:
                part = (tokens - below.tokens) / (above.tokens - below.tokens)
                return below.seconds + part * (above.seconds - below.seconds)
        return points[-1].seconds

    def most(self, seconds: float) -> float:
        """Of what takes so long. Where nothing that was seen took longer, as many as would if it went on as
        between the last two, and twice as many as were seen at most: the more may cost the more each."""
        points = self.points
        within = max((at for at, point in enumerate(points) if point.seconds <= seconds), default=-1)
        if within < 0:
            return 0
        most = 2 * points[-1].tokens
        if within < len(points) - 1:
            short, long = points[within : within + 2]
        elif len(points) == 1 or (short := points[-2]).seconds >= (long := points[-1]).seconds:
            return most
        part = (seconds - short.seconds) / (long.seconds - short.seconds)
        return min(most, short.tokens + part * (long.tokens - short.tokens))

    @property
    def points(self) -> list[Seen]:
        """There is one, if anything was seen: the last."""
        return sorted(filter(self.is_known, self._seen.values()), key=attrgetter("tokens"))
