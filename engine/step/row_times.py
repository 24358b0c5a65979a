"""Row times: how long steps take by how many rows decode in them, and how many rows a step of several tenants
may have. Each of the others adds at most a third of the time that the one with the fewest rows has alone.

What is not known is tried, a doubling at a time: a step that is too long is so once. How long a tenant takes
alone is known of it alone: of another, whose contexts are long, as few rows may take many times as long. All
that comes beside it goes by that, and a step may be long for reasons of its own: of two looks the shorter
counts.

It knows numbers alone, and which are one tenant's.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from operator import attrgetter

from engine.step.times_table import Seen, TimesTable

PART = 1 / 3  # of others' time, for what comes beside them
LOOKS = 2  # at how long a tenant's steps take
LOOK_STEPS = 1_000  # for which a look counts: at each, others stand still
TRIED = 8  # one in so many steps has none but those whose time is to be seen
TENANTS, SELDOM = 4, 64  # of whom it is known: then one in so many, and else it is as of the quickest of them


class RowTimes:
    def __init__(self) -> None:
        self._table = TimesTable()
        # The last looks at a tenant's steps, by how many digits tokens have.
        self._alone: dict[tuple[int, int], deque[Seen]] = {}
        self._asked, self._tried = 0, -TRIED  # times, and the last of them that something was to be seen

    def __bool__(self) -> bool:
        return bool(self._table)

    def learn(self, tokens: int, seconds: float, whose: int | None = None) -> None:
        """A step that did nothing else has taken so long. `whose`: all its rows are this tenant's."""
        self._table.learn(tokens, seconds)
        if whose is not None:
            key = whose, tokens.bit_length()
            looks = self._alone.pop(key, None) or deque[Seen](maxlen=LOOKS)
            looks.append(Seen(tokens, seconds, self._table.steps))
            self._alone[key] = looks
            if len(self._alone) > LOOK_STEPS + 1:  # the first counts no more
                del self._alone[next(iter(self._alone))]

    def of(self, tokens: float) -> float:
        return self._table.of(tokens)

    def most_of(
        self, tenants: int, whose: int, fewest: int, beside_prompts: bool, even: bool = False
    ) -> int | None:
        """Rows that a step of so many tenants may have, of whom this one has the fewest; prompts have half of
        what is not theirs. Where it is yet to be seen how long those take alone, None now and then: the step
        is to have nothing else. Else it is as many for each. `even`: each has as many, and nobody drafts, so
        that nobody need stand still for others to be held back."""
        if even:
            return tenants * fewest + (self.beside(tenants * fewest) if self else 0)
        self._asked += 1
        looks = self._looks(whose, fewest.bit_length())
        base = _shortest(looks) if looks else self._quickest(fewest.bit_length())
        if len(looks) < LOOKS and self._asked - self._tried >= (SELDOM if base and not looks else TRIED):
            self._tried = self._asked
            return None
        if base is None:
            return tenants * fewest
        part = PART / 2 if beside_prompts else PART
        own_s = base.seconds + self.of(fewest) - self.of(base.tokens)
        return int(self._table.most((1 + part * (tenants - 1)) * own_s))

    def _looks(self, whose: int, digits: int) -> list[Seen]:
        return [look for look in self._alone.get((whose, digits), ()) if self._counts(look)]

    def _quickest(self, digits: int) -> Seen | None:
        """Of the tenants, if it is known of several."""
        last = [looks[-1] for (_, count), looks in self._alone.items() if count == digits]
        known = list(filter(self._counts, last))
        return _shortest(known) if len(known) >= TENANTS else None

    def _counts(self, look: Seen) -> bool:
        return self._table.is_known(look, LOOK_STEPS)

    def beside(self, tokens: int) -> int:
        """How many more leave so many three quarters of their pace."""
        return max(0, int(self._table.most((1 + PART) * self.of(tokens))) - tokens)


def _shortest(seen: Iterable[Seen]) -> Seen:
    return min(seen, key=attrgetter("seconds"))
