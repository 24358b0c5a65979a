"""How many bytes of a text may be forced in one run, bounded by how its grammar is written.

A run ends where two bytes may come next, or none need. So whoever is in the midst of one passes no place at
which two beginnings are known to be allowed, and what lies along its way is bounded: from any place within
an expression `within`, from its beginning `whole`. That is also so where a terminal goes on as long as it
can, and what might follow it has no chance: such a byte is still one that may come. It knows no notation.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

MANY = 1 << 20  # bytes: as good as endless
MOST_WORK = 60_000  # pieces, of a microsecond or less: what takes more is not told
A_TURN, AWAY_S = 250, 0.0002  # so many, and then the interpreter is whoever else's waits for it
# Bytes that may be left to come for each level of what is nested: of how many of those the library follows
# some 5,000 at once, and 10,000 at most.
MOST_A_LEVEL = 6
Bytes = frozenset[int]
END: Bytes = frozenset({256})  # the text's: as good as a byte


class UnknownError(Exception):
    """It cannot be told."""


class Work:
    """Of reading one grammar."""

    def __init__(self) -> None:
        self._done = 0

    def more(self) -> None:
        """Raises UnknownError where it is too much."""
        self._done += 1
        if self._done > MOST_WORK:
            raise UnknownError
        if self._done % A_TURN == 0:
            time.sleep(AWAY_S)


class Run(NamedTuple):
    whole: int
    within: int
    first: Bytes  # that are sure to be allowed at its beginning: also what follows, where it may be empty
    stops: bool = False  # whether nobody passes it in one run
    is_empty: bool = False  # whether it may be
    is_any: bool = False  # whether it is any text, but for a few
    is_closed: bool = False  # whether it ends in a text that is known
    is_sure: bool = False  # whether whoever takes it comes to its end


class Rules:
    """Of a grammar, each by its name, behind which this may follow."""

    def __init__(self, written: Mapping[str, Expression], work: Work) -> None:
        self._written = written
        self.work = work
        self._known: dict[tuple[str, Bytes], Run] = {}

    def longest(self, start: str) -> int:
        self.run(start, END)
        if self._settle(0):
            raise UnknownError
        return MANY if self._settle(1) > MOST_A_LEVEL else self.run(start, END).within

    def run(self, name: str, follow: Bytes) -> Run:
        key = (name, follow)
        if key not in self._known:
            if name not in self._written:
                raise UnknownError
            self._known[key] = Run(MANY, 0, frozenset())  # where it speaks of itself
            self._known[key] = self._written[name](self, follow)._replace(within=0)
        return self._known[key]

    def _settle(self, deep: int) -> int:
        """By how much more the most may be, where rules within one another come to no end."""
        rounds, grown = 0, 1
        while grown and rounds <= len(self._known):
            rounds, grown = rounds + 1, 0
            for name, follow in reversed(list(self._known)):  # what was spoken of last first
                self.work.more()
                had, count = self._known[name, follow], len(self._known)
                run = self._written[name](self, follow)
                run = self._known[name, follow] = run._replace(within=run.within * deep)
                if run != had or len(self._known) > count:
                    grown = max(grown, 1, run.within - had.within)
        return grown


Expression = Callable[[Rules, Bytes], Run]


def spelt(size: int, first: Bytes = frozenset(), **is_so: bool) -> Expression:
    """So many bytes, of which none is looked at but the first."""
    run = Run(min(size, MANY), min(size, MANY), first, len(first) > 1, **is_so)
    return lambda rules, follow: run


def rule(name: str) -> Expression:
    return lambda rules, follow: rules.run(name, follow)


def in_order(parts: Sequence[Expression]) -> Expression:
    if len(parts) == 1:
        return parts[0]

    def run(rules: Rules, follow: Bytes) -> Run:
        whole, within, stops, is_empty = 0, 0, False, True
        is_closed: bool | None = None
        is_sure = bool(parts)
        for part in reversed(parts):
            rules.work.more()
            one = part(rules, follow)
            is_closed = one.is_closed if is_closed is None else is_closed
            within = min(MANY, max(within, one.within + whole))
            follow = one.first | follow if one.is_empty else one.first
            whole = min(MANY, one.whole if one.stops else whole + one.whole)
            if len(follow) > 1:
                whole, stops = 0, True
            stops, is_empty = stops or one.stops, is_empty and one.is_empty
            is_sure = is_sure and one.is_sure
        return Run(whole, within, follow, stops, is_empty, is_closed=bool(is_closed), is_sure=is_sure)

    return run


def one_of(parts: Sequence[Expression]) -> Expression:
    if len(parts) == 1:
        return parts[0]

    def run(rules: Rules, follow: Bytes) -> Run:
        rules.work.more()
        runs = [part(rules, follow) for part in parts]
        first = frozenset[int]().union(*(one.first for one in runs))
        sure = [one.whole for one in runs if one.is_sure]
        whole = min(sure) if sure else max(one.whole for one in runs)
        within = max(one.within for one in runs)
        stops, is_empty = all(one.stops for one in runs), any(one.is_empty for one in runs)
        if len(first) > 1:
            whole, stops = 0, True
        is_closed = all(one.is_closed for one in runs)
        return Run(whole, within, first, stops, is_empty, is_closed=is_closed, is_sure=bool(sure))

    return run


def repeated(part: Expression, least: int, most: int = MANY, *, is_free: bool = False) -> Expression:
    """`is_free`: it may end as soon as it may, whatever follows."""

    def run(rules: Rules, follow: Bytes) -> Run:
        rules.work.more()
        again = part(rules, follow).first
        if most == 1:
            behind = follow
        elif most < MANY or least > 1:
            behind = again & follow  # some have but one of them behind
        else:
            behind = again | follow
        one = part(rules, behind)
        is_choice = len(again | follow) > 1
        times = least if is_free or is_choice else most
        begun = min(times, 1) if one.stops else times
        more = max(min(times - 1, begun), 0)
        is_empty = not least or one.is_empty
        return Run(
            min(MANY, begun * one.whole),
            min(MANY, one.within + more * one.whole),
            again | follow if is_empty else one.first,
            (is_choice and least < most) or (least > 0 and one.stops),
            is_empty,
            is_sure=is_free and (not least or one.is_sure),
        )

    return run
