"""A regular expression as an automaton of positions (Glushkov's): one for each character that stands in it.

Whoever is at a position has read a character of its set; `follow` says who may come next. What an assertion
asks (`^`, `$`, `\\b`) it asks of the gap between two characters, so that each arrow has the gaps in which it
may be gone. Counted repetitions are written out. Everything is sets of bits: of positions, and of gaps.

The syntax is that of Python's `re`, whose own parser reads it. What no automaton can follow, look-around and
back-references, is refused by name, and so is what would be too large. It knows no text.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from re import _constants as sre
from re import _parser as parser
from typing import Any, NamedTuple

from realtime.guards.characters import NEWLINE, NONE, WORD, Charset, charset

MOST_POSITIONS = 512
MOST_NODES = 5_000  # that are looked at, repetitions written out
KINDS = 4
GAPS = KINDS * KINDS
ALWAYS = (1 << GAPS) - 1

Bits = dict[int, int]  # of gaps, in which these positions count


class RegexError(ValueError):
    """What is wrong with a regular expression, to go behind its name in a sentence."""


def gap(before: int, behind: int) -> int:
    """The number of the gap between characters of two kinds."""
    return KINDS * before + behind


def _gaps(holds: Callable[[int, int], bool]) -> int:
    return sum(1 << gap(a, b) for a in range(KINDS) for b in range(KINDS) if holds(a, b))


_ENDS = _gaps(lambda before, behind: behind == NONE)
_BOUNDARIES = _gaps(lambda before, behind: (before == WORD) != (behind == WORD))
_ASSERTIONS = {
    sre.AT_BEGINNING: _gaps(lambda before, behind: before == NONE),
    sre.AT_BEGINNING_STRING: _gaps(lambda before, behind: before == NONE),
    sre.AT_BEGINNING_LINE: _gaps(lambda before, behind: before in (NONE, NEWLINE)),
    sre.AT_END_LINE: _gaps(lambda before, behind: behind in (NONE, NEWLINE)),
    sre.AT_END_STRING: _ENDS,
    sre.AT_BOUNDARY: _BOUNDARIES,
    sre.AT_NON_BOUNDARY: ALWAYS & ~_BOUNDARIES,
}
_REFUSED = {
    sre.ASSERT: "looks ahead or behind",
    sre.ASSERT_NOT: "looks ahead or behind",
    sre.GROUPREF: "refers back to a group",
    sre.GROUPREF_EXISTS: "refers back to a group",
    sre.ATOMIC_GROUP: "has an atomic group",
    sre.POSSESSIVE_REPEAT: "repeats possessively",
}


class Part(NamedTuple):
    """A piece of an expression: the gaps in which it may be empty, and where it may begin and end."""

    empty: int
    first: Bits
    last: Bits


_EMPTY = Part(ALWAYS, {}, {})


class Automaton:
    """`flags`: those of the whole expression."""

    def __init__(self, source: str) -> None:
        self.charsets: list[Charset] = []  # of each position
        self.follow: list[Bits] = []
        self._nodes = 0
        tree = _parsed(source)
        self.flags: int = tree.state.flags
        try:
            self.empty, self.first, self.last = self._sequence(list(tree), self.flags)
        except RecursionError:
            raise RegexError("is nested too deeply") from None

    def _sequence(self, nodes: list[Any], flags: int) -> Part:
        whole = _EMPTY
        for kind, value in nodes:
            whole = self._then(whole, self._part(kind, value, flags))
        return whole

    def _part(self, kind: Any, value: Any, flags: int) -> Part:
        self._nodes += 1
        if self._nodes > MOST_NODES:
            raise RegexError("repeats too much")
        if kind in _REFUSED:
            raise RegexError(f"{_REFUSED[kind]}, which cannot be followed")
        if kind in (sre.LITERAL, sre.NOT_LITERAL, sre.ANY, sre.IN):
            return self._position(_charset(kind, value, flags))
        if kind is sre.AT:
            return self._assertion(value, flags)
        if kind is sre.BRANCH:
            return self._either([self._sequence(list(one), flags) for one in value[1]])
        if kind is sre.SUBPATTERN:
            _, added, removed, inner = value
            return self._sequence(list(inner), (flags | added) & ~removed)
        if kind in (sre.MAX_REPEAT, sre.MIN_REPEAT):
            least, most, inner = value
            return self._repeated(list(inner), least, most, flags)
        raise RegexError("has what cannot be followed")

    def _position(self, among: Charset) -> Part:
        at = len(self.charsets)
        if at >= MOST_POSITIONS:
            raise RegexError(f"has more than {MOST_POSITIONS} characters, with repetitions written out")
        self.charsets.append(among)
        self.follow.append({})
        return Part(0, {ALWAYS: 1 << at}, {ALWAYS: 1 << at})

    def _assertion(self, at: Any, flags: int) -> Part:
        if flags & re.MULTILINE:
            at = sre.AT_MULTILINE.get(at, at)
        if at is sre.AT_END:  # before a newline, too, that is the last character
            newline = self._position(charset([(sre.LITERAL, ord("\n"))], 0))
            return self._then(_optional(newline), Part(_ENDS, {}, {}))
        return Part(_ASSERTIONS[at], {}, {})

    def _repeated(self, nodes: list[Any], least: int, most: int, flags: int) -> Part:
        """Those that may be left out stand within each other, so that each has few before it."""
        before = len(self.charsets)
        one = self._sequence(nodes, flags)
        if most == 0:
            return _EMPTY
        if len(self.charsets) == before:  # it asks, and reads nothing: once is enough
            return one if least else _optional(one)
        rest, copies = one if least else _optional(one), least - 1
        if most is sre.MAXREPEAT:
            self._join(one.last, one.first)
        elif least < most:
            rest, copies = _optional(one), least
            for _ in range(most - least - 1):
                rest = _optional(self._then(self._sequence(nodes, flags), rest))
        for _ in range(copies):
            rest = self._then(self._sequence(nodes, flags), rest)
        return rest

    def _then(self, one: Part, other: Part) -> Part:
        self._join(one.last, other.first)
        first = _union(one.first, _within(other.first, one.empty))
        last = _union(other.last, _within(one.last, other.empty))
        return Part(one.empty & other.empty, first, last)

    def _either(self, parts: list[Part]) -> Part:
        empty, first, last = 0, dict[int, int](), dict[int, int]()
        for part in parts:
            empty |= part.empty
            first, last = _union(first, part.first), _union(last, part.last)
        return Part(empty, first, last)

    def _join(self, last: Bits, first: Bits) -> None:
        for gaps, positions in last.items():
            for at in ones(positions):
                for others, behind in first.items():
                    if both := gaps & others:
                        self.follow[at][both] = self.follow[at].get(both, 0) | behind


def ones(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def _charset(kind: Any, value: Any, flags: int) -> Charset:
    if kind is sre.IN:
        return charset(value, flags)
    if kind is sre.LITERAL:
        return charset([(kind, value)], flags)
    if kind is sre.NOT_LITERAL:
        return charset([(sre.NEGATE, None), (sre.LITERAL, value)], flags)
    return charset([(sre.NEGATE, None)] + ([] if flags & re.DOTALL else [(sre.LITERAL, ord("\n"))]), flags)


def _optional(part: Part) -> Part:
    return part._replace(empty=ALWAYS)


def _union(one: Bits, other: Bits) -> Bits:
    return {gaps: one.get(gaps, 0) | other.get(gaps, 0) for gaps in one | other}


def _within(bits: Bits, gaps: int) -> Bits:
    found: Bits = {}
    for own, positions in bits.items():
        if own & gaps:
            found[own & gaps] = found.get(own & gaps, 0) | positions
    return found


def _parsed(source: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return parser.parse(source)
    except (re.error, ValueError) as error:  # the latter of flags that exclude each other
        raise RegexError(f"is no regular expression: {error}") from None
    except (RecursionError, OverflowError):
        raise RegexError("is nested or repeated too much") from None
