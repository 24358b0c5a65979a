"""The interface of drafters: streams' tokens in, tokens that may follow them out.

A drafter may be wrong: nobody reads what it says. So it may forget whatever it likes, and knows a stream by
no more than its tokens as they stand: it is told of no rewind and of no end.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from typing import Literal, Protocol

from engine.schedule.sequence import Sequence

Kind = Literal["lookup", "model"]


class Drafter(Protocol):
    @property
    def kind(self) -> Kind: ...

    def propose(self, wanted: Several[tuple[Sequence, int]]) -> list[list[int]]:
        """Of each stream up to so many tokens that may come next, one behind the other. It is asked in every
        step, also where nobody wants any; whoever has a row in this step has it in flight."""

    def seconds(self, rows: int) -> float:
        """That a draft takes, where so many rows have one, before the step that computes it."""
