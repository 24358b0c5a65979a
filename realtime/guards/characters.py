"""Characters as regular expressions know them: sets of them, and the kinds that assertions look at.

Sets are written as Python's own parser reads them. What is a letter of a word, a digit or a space is what
Python says.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import chain
from re import _constants as sre
from sys import getsizeof
from typing import Any

# What one of a set weighs as measured, beside its places: a character, and what is none.
LITERAL_BYTES, ITEM_BYTES = 120, 300
NONE, OTHER, WORD, NEWLINE = range(4)  # what stands beside a gap; none at the ends of a text
Item = tuple[Any, Any]  # of a set, as the parser writes it
Charset = tuple[bool, bool, tuple[Item, ...]]  # negated, whatever the case, items


def kind_of(char: str, ascii_only: bool) -> int:
    if char == "\n":
        return NEWLINE
    return WORD if _is_of_word(char, ascii_only) else OTHER


def charset(items: Iterable[Item], flags: int) -> Charset:
    items = tuple(items)
    negated = bool(items) and items[0][0] is sre.NEGATE
    return negated, bool(flags & re.IGNORECASE), tuple(map(_plain, items[negated:], [flags] * len(items)))


def _plain(item: Item, flags: int) -> Item:
    """A category with what it means by these flags."""
    return (item[0], (item[1], bool(flags & re.ASCII))) if item[0] is sre.CATEGORY else item


class Places:
    """At which places, each with its set, a character may stand. What one costs follows from how many ranges
    and categories there are in all sets, and not from how many sets: a letter is looked up."""

    def __init__(self, charsets: Iterable[Charset]) -> None:
        self._negated = 0
        self._exact, self._folded = _Items(), _Items()
        for at, (negated, folded, items) in enumerate(charsets):
            self._negated |= negated << at
            found = self._folded if folded else self._exact
            for item in items:
                found.add(item, 1 << at, folded)

    @property
    def weight(self) -> int:
        """About how many bytes of memory they take."""
        return self._exact.weight + self._folded.weight

    def of(self, char: str) -> int:
        """As bits."""
        found = self._exact.of(char)
        for spelling in _spellings(char) if self._folded else ():
            found |= self._folded.of(spelling)
        return found ^ self._negated


class _Items:
    """Of sets, with the places of those."""

    def __init__(self) -> None:
        self._literals: dict[str, int] = {}
        self._others: dict[Item, int] = {}

    def __bool__(self) -> bool:
        return bool(self._literals or self._others)

    @property
    def weight(self) -> int:
        numbers = chain(self._literals.values(), self._others.values())
        size = LITERAL_BYTES * len(self._literals) + ITEM_BYTES * len(self._others)
        return size + sum(map(getsizeof, numbers))

    def add(self, item: Item, places: int, folded: bool) -> None:
        kind, value = item
        if kind is not sre.LITERAL:
            self._others[item] = self._others.get(item, 0) | places
            return
        for char in {chr(value), *(_spellings(chr(value)) if folded else ())}:
            self._literals[char] = self._literals.get(char, 0) | places

    def of(self, char: str) -> int:
        found = self._literals.get(char, 0)
        for item, places in self._others.items():
            if found & places != places and _fits(char, item):
                found |= places
        return found


def _fits(char: str, item: Item) -> bool:
    kind, value = item
    if kind is sre.RANGE:
        return bool(value[0] <= ord(char) <= value[1])
    category, ascii_only = value
    return _CATEGORIES[category](char, ascii_only)


def _spellings(char: str) -> set[str]:
    """A character in either case."""
    once = {char, char.lower(), char.upper()}
    return {again for one in once for again in (one, one.lower(), one.upper()) if len(again) == 1}


def _is_of_word(char: str, ascii_only: bool) -> bool:
    return (char.isalnum() or char == "_") and (char.isascii() or not ascii_only)


def _is_digit(char: str, ascii_only: bool) -> bool:
    return char.isdecimal() and (char.isascii() or not ascii_only)


def _is_space(char: str, ascii_only: bool) -> bool:
    return char in " \t\n\r\f\v" if ascii_only else char.isspace()


_CATEGORIES: dict[Any, Callable[[str, bool], bool]] = {
    sre.CATEGORY_WORD: _is_of_word,
    sre.CATEGORY_NOT_WORD: lambda char, ascii_only: not _is_of_word(char, ascii_only),
    sre.CATEGORY_DIGIT: _is_digit,
    sre.CATEGORY_NOT_DIGIT: lambda char, ascii_only: not _is_digit(char, ascii_only),
    sre.CATEGORY_SPACE: _is_space,
    sre.CATEGORY_NOT_SPACE: lambda char, ascii_only: not _is_space(char, ascii_only),
}
