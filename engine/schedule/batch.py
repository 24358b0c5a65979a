"""The batch: the rows of one step, and what must happen to memory before they are computed.

It is what the scheduler tells those who run it. It decides nothing, and knows no tensor.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from engine.schedule.host_cache import Load
from engine.schedule.sequence import Sequence


@dataclass(slots=True)
class Row:
    """`count` tokens of a sequence, from position `start`; `samples` when the next token is sampled behind
    them."""

    sequence: Sequence
    start: int
    count: int
    samples: bool
    index: int = 0  # of the output token that is sampled
    epoch: int = 0  # of the sequence when the row was planned

    @property
    def discarded(self) -> bool:
        """Whether the sequence gave the row up while it was in flight."""
        return self.epoch != self.sequence.epoch


@dataclass(slots=True)
class Batch:
    rows: list[Row] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)  # blocks to copy before anything is written
    loads: list[Load] = field(default_factory=list)  # blocks to load from the host
    fence: bool = False  # whether nothing may be written before the loads under way are done
    preempted: list[Sequence] = field(default_factory=list)
    resumed: list[tuple[Sequence, int]] = field(
        default_factory=list
    )  # after preemption; tokens to compute again
    admitted: list[tuple[Sequence, int]] = field(default_factory=list)  # first run; tokens found computed
