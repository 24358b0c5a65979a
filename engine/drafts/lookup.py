"""Lookup: what comes next is what came next where a context's last tokens stood before.

Prompt, output and injections are one context, so what is quoted is found wherever it stands: a text to be
edited, a tool's result, a schema. Of the places that have the most last tokens in common the latest counts.
Where it is so near that what follows it ends, a pattern repeats, and goes on repeating.

It knows tokens, and nothing of models.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence as Several
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from engine.drafts.interface import Kind

# Last tokens that a place has in common, and up to how many are compared. In free text fewer are found in
# common often, and what followed them is seldom what comes.
LEAST, MOST = 5, 8
Tokens = NDArray[np.int32]


class Context(Protocol):
    tokens: array[int]


class Lookup:
    kind: Kind = "lookup"

    def __init__(self, least: int = LEAST) -> None:
        self._least = least

    def propose(self, wanted: Several[tuple[Context, int]]) -> list[list[int]]:
        """Tokens are looked at where they lie: contexts may be very long, and very many may begin at once."""
        return [
            following(np.frombuffer(context.tokens, np.intc), most, self._least) for context, most in wanted
        ]

    def seconds(self, rows: int) -> float:
        return 0.0


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
