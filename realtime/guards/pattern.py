"""A pattern: a regular expression that is looked for in a text which comes in pieces.

Where it stands in the text is one number, so that to go back is to remember it. Every character costs a
bounded number of operations on sets of bits, and mostly one look into a table, which is limited. What ends
first is found, with the earliest character that tells, and of what ends there the shortest is meant: where
that begins is looked for backwards.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from sys import getsizeof
from threading import Lock
from typing import Any, ClassVar, TypeVar
from weakref import WeakValueDictionary

from realtime.guards.arrows import Arrows
from realtime.guards.automaton import ALWAYS, GAPS, KINDS, Automaton, Bits, RegexError, gap
from realtime.guards.characters import NONE, Places, kind_of

LONGEST = 512  # characters of an expression
MOST_STEPS = 64  # that one character may cost
MOST_REMEMBERED = 4096  # steps, of one pattern; the table is begun anew then
MOST_IN_ALL = 1 << 16  # steps and masks, of all patterns: some 12 MB at most
MOST_BACK = 4096  # characters that are looked back through
PATTERN_BYTES = 2000  # what one weighs as measured, beside its characters and ways
MOST_KEPT = 16 << 20  # bytes of those that are known for a while: a set of 500 letters takes 150 KB
START = 0

_SHIFT = KINDS.bit_length() - 1  # of a state: its positions stand before the kind of the last character
_KIND = KINDS - 1


K = TypeVar("K")
V = TypeVar("V")


class Remembered(dict[K, V]):
    """What one pattern remembers. Where all together have no room they forget in turn, whoever began first:
    so room is made at the same cost however many there are, and nobody is left without."""

    in_all = 0
    _begun: ClassVar[WeakValueDictionary[int, Remembered[Any, Any]]] = WeakValueDictionary()

    def remember(self, key: K, value: V) -> V:
        if len(self) >= MOST_REMEMBERED:
            self.forget()
        elif Remembered.in_all >= MOST_IN_ALL:
            next(self._begun.values()).forget()
        if not self:
            self._begun[id(self)] = self
        self[key] = value
        Remembered.in_all += 1
        return value

    def forget(self) -> None:
        type(self).in_all -= len(self)  # by its type: the module may be gone when the last one goes
        self.clear()
        self._begun.pop(id(self), None)

    def __del__(self) -> None:
        self.forget()


class Pattern:
    def __init__(self, source: str) -> None:
        if len(source) > LONGEST:
            raise RegexError(f"has {len(source)} characters; it may have {LONGEST}")
        automaton = Automaton(source)
        self.positions = len(automaton.charsets)
        self._ascii = bool(automaton.flags & re.ASCII)
        self._places = Places(automaton.charsets)
        self._empty = automaton.empty
        self._whole = 0  # positions at which it is found, whatever follows
        if ALWAYS in automaton.last:
            self._whole = automaton.last[ALWAYS]
        self._first = [_at(automaton.first, number) for number in range(GAPS)]
        self._last = [_at(automaton.last, number) for number in range(GAPS)]
        self._arrows = _arrows(automaton.follow)
        alone = {id(arrows): arrows for arrows in self._arrows}.values()
        # About how much memory it takes, beside what it remembers.
        self.bytes = PATTERN_BYTES + self._places.weight + sum(arrows.weight for arrows in alone)
        self.bytes += sum(map(getsizeof, self._first + self._last))
        steps = max(map(len, self._arrows))
        if steps > MOST_STEPS:
            raise RegexError(
                f"is too tangled: a character would cost {steps} steps, and may cost {MOST_STEPS}"
            )
        self._masks = Remembered[str, int]()
        self._steps = Remembered[tuple[int, str], tuple[int, int]]()

    @property
    def may_be_empty(self) -> bool:
        """Whether it is found where nothing stands."""
        return self._empty != 0

    def find(self, state: int, text: str) -> tuple[int, int]:
        """The state behind the text; and before which of its characters ends what is found first, or -1."""
        steps, found = self._steps, -1
        for at, char in enumerate(text):
            step = steps.get((state, char))
            if step is None:
                step = steps.remember((state, char), self._step(state, char))
            state, end = step
            if end >= 0 and found < 0:
                found = at + end
        return state, found

    def found_at_end(self, state: int) -> bool:
        """Whether it is found where the text ends."""
        between = gap(state & _KIND, NONE)
        return bool(state >> _SHIFT & self._last[between] or self._empty >> between & 1)

    def begin(self, text: str, end: int, most: int = MOST_BACK) -> int:
        """Where the shortest begins that ends there; of one of more characters, so many before its end."""
        between = self._gap(text, end)
        positions = self._mask(text[end - 1]) & self._last[between]
        for at in range(end - 1, max(0, end - most), -1):
            between = self._gap(text, at)
            if positions & self._first[between]:
                return at
            positions = self._arrows[between].gone_back(positions) & self._mask(text[at - 1])
        return max(0, end - most)

    def _gap(self, text: str, at: int) -> int:
        return gap(self._kind(text, at - 1), self._kind(text, at))

    def _kind(self, text: str, at: int) -> int:
        return kind_of(text[at], self._ascii) if 0 <= at < len(text) else NONE

    def _step(self, state: int, char: str) -> tuple[int, int]:
        """The next state; and whether something ends before the character (0), behind it (1), or not (-1).
        Behind what is found the search begins anew."""
        kind = kind_of(char, self._ascii)
        between, positions = gap(state & _KIND, kind), state >> _SHIFT
        ends = bool(positions & self._last[between]) or bool(self._empty >> between & 1)
        come = self._first[between] if ends else self._first[between] | self._arrows[between].gone(positions)
        positions = come & self._mask(char)
        if ends:
            return positions << _SHIFT | kind, 0
        if positions & self._whole:
            return kind, 1
        return positions << _SHIFT | kind, -1

    def _mask(self, char: str) -> int:
        """The positions at which it may be read."""
        mask = self._masks.get(char)
        if mask is None:
            mask = self._masks.remember(char, self._places.of(char))
        return mask


class Lately:
    """Patterns that were asked for last, of so many bytes at most. Threads ask, too."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._patterns = OrderedDict[str, Pattern]()
        self._bytes = 0
        self._lock = Lock()

    def keep(self, source: str, pattern: Pattern) -> None:
        with self._lock:
            if source not in self._patterns:
                self._patterns[source] = pattern
                self._bytes += pattern.bytes
            self._patterns.move_to_end(source)
            while self._bytes > self._most_bytes:
                self._bytes -= self._patterns.popitem(last=False)[1].bytes


def pattern_of(source: str) -> Pattern:
    """All that look for the same share it: to make one takes milliseconds. What nobody looks for is known for
    a while. Raises `RegexError`."""
    pattern = _in_use.get(source)
    if pattern is None:
        pattern = _in_use[source] = Pattern(source)
    _lately.keep(source, pattern)
    return pattern


_in_use = WeakValueDictionary[str, Pattern]()
_lately = Lately(MOST_KEPT)


def _at(bits: Bits, number: int) -> int:
    """The positions that count in the gap of this number."""
    found = 0
    for gaps, positions in bits.items():
        if gaps >> number & 1:
            found |= positions
    return found


def _arrows(follow: list[Bits]) -> list[Arrows]:
    """Of each gap. Those in which the same arrows may be gone share them."""
    asked = {gaps for one in follow for gaps in one}
    made = dict[frozenset[int], Arrows]()
    of_gaps = list[Arrows]()
    for number in range(GAPS):
        holding = frozenset(gaps for gaps in asked if gaps >> number & 1)
        if holding not in made:
            made[holding] = Arrows([_at(one, number) for one in follow])
        of_gaps.append(made[holding])
    return of_gaps
