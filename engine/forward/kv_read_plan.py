"""The KV read plan of a ragged batch: which keys and values each row reads, and which rows can be read in one
call.

Pure arithmetic on positions in the pool, done once a step and used by every layer. It knows spans and where
their tokens lie; it knows no model and computes no attention.

Rows that decode are grouped where their contexts begin evenly spaced in the pool, which is how the block
cache lays sequences out: such a group is one strided view, padded to its longest. A distance of zero is a
context that they share. A row whose context lies in several runs is in several groups, whose results are
joined by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.nonblocking_transfer import upload

PADDING = 2.0  # a group may read at most so many times what its rows really see
SMALL = 64  # tokens of padding a row that are cheaper than another call


@dataclass(slots=True)
class RowSpan:
    """One row's share of the batch: `count` query tokens from row `first`, at positions from `start`
    on."""

    first: int
    count: int
    start: int
    runs: list[tuple[int, int]]  # where positions `held` to start + count lie: (first token, tokens)
    held: int = 0  # the first position that its table holds

    @property
    def end(self) -> int:
        return self.start + self.count

    def slices(self, begin: int, end: int) -> list[slice]:
        """Where positions `begin` to `end` lie."""
        found = []
        position = self.held
        for first, tokens in self.runs:
            low, high = max(begin, position), min(end, position + tokens)
            if low < high:
                found.append(slice(first + low - position, first + high - position))
            position += tokens
        return found


def contiguous_runs(blocks: list[int], block_size: int, tokens: int) -> list[tuple[int, int]]:
    """Where the first `tokens` of a table lie, neighbours joined."""
    runs: list[tuple[int, int]] = []
    for at, number in enumerate(blocks[: -(-tokens // block_size)]):
        here = min(block_size, tokens - at * block_size)
        if runs and sum(runs[-1]) == number * block_size:
            runs[-1] = (runs[-1][0], runs[-1][1] + here)
        else:
            runs.append((number * block_size, here))
    return runs


@dataclass(slots=True)
class DecodeGroup:
    """Decoding rows `first_row` and on read together: row i sees `lengths[i]` tokens from `first + i *
    pitch` on."""

    depth: int  # which of its rows' parts this is
    first_row: int
    first: int
    pitch: int
    lengths: list[int]
    mask: Tensor | None = None  # [rows, 1, 1, longest]: what to add to the scores; None where all are as long

    @property
    def rows(self) -> slice:
        return slice(self.first_row, self.first_row + len(self.lengths))

    @property
    def longest(self) -> int:
        return max(self.lengths)

    def try_add(self, row: int, part: slice, pool_tokens: int) -> bool:
        """Add one more row, if it fits the pattern at a price worth paying."""
        pitch = part.start - self.first if len(self.lengths) == 1 else self.pitch
        lengths = [*self.lengths, part.stop - part.start]
        longest, last = max(lengths), self.first + (len(lengths) - 1) * pitch
        fits = (
            row == self.first_row + len(self.lengths)
            and part.start == last
            and pitch >= 0
            and last + longest <= pool_tokens
            and longest * len(lengths) <= PADDING * sum(lengths) + SMALL * len(lengths)
        )
        if fits:
            self.pitch, self.lengths = pitch, lengths
        return fits


@dataclass(slots=True)
class DecodePlan:
    """The groups that cover all decoding rows, for layers with one window."""

    groups: list[DecodeGroup]
    parts: int  # the most groups that any row is in


@dataclass(slots=True)
class RaggedBatch:
    """A batch as attention sees it. Its first `decoding` rows are spans of one token each."""

    pool_indices: Tensor  # where each query token's own key and value are kept
    spans: list[RowSpan]
    pool_tokens: int
    dtype: torch.dtype
    decoding: int = 0
    _plans: dict[int | None, DecodePlan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        while self.decoding < len(self.spans) and self.spans[self.decoding].count == 1:
            self.decoding += 1

    @property
    def chunks(self) -> list[RowSpan]:
        return self.spans[self.decoding :]

    def plan(self, window: int | None) -> DecodePlan:
        if window not in self._plans:
            self._plans[window] = self._decode_plan(window)
        return self._plans[window]

    def _decode_plan(self, window: int | None) -> DecodePlan:
        parts = [
            span.slices(0 if window is None else max(0, span.end - window), span.end)
            for span in self.spans[: self.decoding]
        ]
        deepest = max(map(len, parts), default=0)
        groups = [group for depth in range(deepest) for group in self._grouped(parts, depth)]
        return DecodePlan(groups, deepest)

    def _grouped(self, parts: list[list[slice]], depth: int) -> list[DecodeGroup]:
        groups: list[DecodeGroup] = []
        for row, slices in enumerate(parts):
            if len(slices) <= depth:
                continue
            part = slices[depth]
            if not groups or not groups[-1].try_add(row, part, self.pool_tokens):
                groups.append(DecodeGroup(depth, row, part.start, 0, [part.stop - part.start]))
        for group in groups:
            group.mask = self._mask(group)
        return groups

    def _mask(self, group: DecodeGroup) -> Tensor | None:
        longest = group.longest
        if min(group.lengths) == longest:
            return None
        lengths = upload(group.lengths, self.pool_indices.device).view(-1, 1, 1, 1)
        beyond = torch.arange(longest, device=self.pool_indices.device) >= lengths
        return torch.zeros(beyond.shape, dtype=self.dtype, device=self.pool_indices.device).masked_fill_(
            beyond, -torch.inf
        )
