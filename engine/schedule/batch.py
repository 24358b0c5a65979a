"""What one step computes, and what must happen to memory before it does.

A batch is the scheduler's word to those who run it; it decides nothing, and knows no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.schedule.host_cache import Load
from engine.schedule.sequence import Sequence


@dataclass(slots=True)
class Row:
    """`count` tokens of a sequence, from position `start`; `samples` when the next token is chosen behind
    them."""

    sequence: Sequence
    start: int
    count: int
    samples: bool
    index: int = 0  # of the output token that is chosen
    recalls: int = 0  # of the sequence when the row was made

    @property
    def void(self) -> bool:
        """Whether the row was given up while it was under way."""
        return self.recalls != self.sequence.recalls


@dataclass(slots=True)
class Batch:
    rows: list[Row] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)  # blocks to copy before anything is written
    loads: list[Load] = field(default_factory=list)  # blocks to bring from the host
    fence: bool = False  # whether nothing may be written before what is being brought is there
    preempted: list[Sequence] = field(default_factory=list)
    resumed: list[tuple[Sequence, int]] = field(
        default_factory=list
    )  # after preemption; tokens to compute again
    admitted: list[tuple[Sequence, int]] = field(default_factory=list)  # first run; tokens found computed
