"""Lookup: what comes next is what came next where a context's last tokens stood before.

Prompt, output and injections are one context, so what is quoted is found wherever it stands: a text to be
edited, a tool's result, a schema. Of the places that have the most last tokens in common the latest counts.
Where it is so near that what follows it ends, a pattern repeats, and goes on repeating.

It knows tokens, and nothing of models.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Protocol
from weakref import WeakKeyDictionary

import numpy as np
from numpy.typing import NDArray

from engine.drafts.interface import Kind

# Last tokens that a place has in common, and up to how many are compared. In free text fewer are found in
# common often, and what followed them is seldom what comes.
LEAST, MOST = 5, 8
Tokens = NDArray[np.int32]


class Context(Protocol):
    """Tokens, which change by more behind the last, and otherwise with their version."""

    tokens: list[int]
    tokens_version: int

    def stood_since(self, version: int) -> int:
        """How many of the tokens that it had then, the first of them, are as they were; or fewer."""


class Lookup:
    kind: Kind = "lookup"

    def __init__(self, least: int = LEAST) -> None:
        self._least = least
        self._copies = WeakKeyDictionary[Context, _Copy]()

    def propose(self, wanted: Several[tuple[Context, int]]) -> list[list[int]]:
        return [following(self._tokens(context), most, self._least) for context, most in wanted]

    def seconds(self, rows: int) -> float:
        return 0.0

    def _tokens(self, context: Context) -> Tokens:
        copy = self._copies.get(context)
        if copy is None:
            copy = self._copies[context] = _Copy()
        return copy.catch_up(context)


class _Copy:
    """A context as an array, which can be searched at once."""

    def __init__(self) -> None:
        self._version = 0
        self._count = 0
        self._tokens: Tokens = np.empty(0, np.int32)

    def catch_up(self, context: Context) -> Tokens:
        tokens, count = context.tokens, len(context.tokens)
        self._count = min(self._count, context.stood_since(self._version))
        self._version = context.tokens_version
        if count > len(self._tokens):
            room: Tokens = np.empty(2 * count, np.int32)
            room[: self._count] = self._tokens[: self._count]
            self._tokens = room
        self._tokens[self._count : count] = tokens[self._count :]
        self._count = count
        return self._tokens[:count]


def following(tokens: Tokens, most: int, least: int) -> list[int]:
    """Up to so many tokens that may come behind these, the last `least` of which stood before."""
    last = len(tokens) - 1
    places = np.flatnonzero(tokens[:last] == tokens[last:])
    common = 1
    while len(places) and common < MOST:
        further = places[places >= common]
        further = further[tokens[further - common] == tokens[last - common]]
        if not len(further):
            break
        places, common = further, common + 1
    if common < least or most < 1:
        return []
    latest = int(places[-1])
    return [int(token) for token in tokens[latest + 1 + np.arange(most) % (last - latest)]]
