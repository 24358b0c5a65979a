"""The interface of drafters: tokens that are known in, tokens that may follow them out.

It knows no sequence, no row and no step. A drafter may be wrong: nobody reads what it says.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Protocol


class Context(Protocol):
    """A stream's tokens. They change by more behind the last, and otherwise with their version."""

    tokens: list[int]
    tokens_version: int


class Drafter(Protocol):
    def propose(self, wanted: Several[tuple[Context, int]]) -> list[list[int]]:
        """Of each context up to so many tokens that may come next, one behind the other. What it keeps of a
        context it keeps for as long as there is the context."""
