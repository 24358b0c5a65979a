"""How a ragged batch is read: which keys and values each row needs, and which rows can be read in one call.

Pure arithmetic on positions in the pool, done once a step and used by every layer. It knows spans and where
their tokens lie; it knows no model and computes no attention.

Rows that decode are grouped where their contexts begin evenly spaced in the pool, which is how the block
cache lays sequences out: such a group is one strided view, padded to its longest. A distance of zero is a
context that they share. A context that lies in several runs takes part in several calls, whose results are
joined by the caller.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from engine.transfer import upload

PADDING = 2.0  # a group may read at most so many times what its rows really see
SMALL = 64  # tokens of padding a row that are cheaper than another call


@dataclass(slots=True)
class Span:
    """One sequence's share of the batch: `count` query tokens from row `first`, at positions from `start`
    on."""

    first: int
    count: int
    start: int
    runs: list[tuple[int, int]]  # where positions 0 to start + count lie in the pool: (first token, tokens)

    @property
    def end(self) -> int:
        return self.start + self.count

    def slices(self, begin: int, end: int) -> list[slice]:
        """Where positions `begin` to `end` lie."""
        found = []
        position = 0
        for first, tokens in self.runs:
            low, high = max(begin, position), min(end, position + tokens)
            if low < high:
                found.append(slice(first + low - position, first + high - position))
            position += tokens
        return found


def runs_of(blocks: list[int], block: int, tokens: int) -> list[tuple[int, int]]:
    """Where the first `tokens` of a table lie, neighbours joined."""
    runs: list[tuple[int, int]] = []
    for at, number in enumerate(blocks[: -(-tokens // block)]):
        here = min(block, tokens - at * block)
        if runs and sum(runs[-1]) == number * block:
            runs[-1] = (runs[-1][0], runs[-1][1] + here)
        else:
            runs.append((number * block, here))
    return runs


@dataclass(slots=True)
class Call:
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

    def takes(self, row: int, part: slice, pool_tokens: int) -> bool:
        """Whether one more row fits the pattern, at a price worth paying; if so it is taken."""
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
class Plan:
    """The calls that cover all decoding rows, for layers with one window."""

    calls: list[Call]
    parts: int  # the most calls that any row takes part in


@dataclass(slots=True)
class Ragged:
    """A batch as attention sees it. Its first `decoding` rows are spans of one token each."""

    slots: Tensor  # where each query token's own key and value are kept
    spans: list[Span]
    pool_tokens: int
    dtype: torch.dtype
    decoding: int = 0
    _plans: dict[int | None, Plan] = field(default_factory=dict)

    def __post_init__(self) -> None:
        while self.decoding < len(self.spans) and self.spans[self.decoding].count == 1:
            self.decoding += 1

    @property
    def chunks(self) -> list[Span]:
        return self.spans[self.decoding :]

    def plan(self, window: int | None) -> Plan:
        if window not in self._plans:
            self._plans[window] = self._planned(window)
        return self._plans[window]

    def _planned(self, window: int | None) -> Plan:
        parts = [
            span.slices(0 if window is None else max(0, span.end - window), span.end)
            for span in self.spans[: self.decoding]
        ]
        deepest = max(map(len, parts), default=0)
        calls = [call for depth in range(deepest) for call in self._grouped(parts, depth)]
        return Plan(calls, deepest)

    def _grouped(self, parts: list[list[slice]], depth: int) -> list[Call]:
        calls: list[Call] = []
        for row, slices in enumerate(parts):
            if len(slices) <= depth:
                continue
            part = slices[depth]
            if not calls or not calls[-1].takes(row, part, self.pool_tokens):
                calls.append(Call(depth, row, part.start, 0, [part.stop - part.start]))
        for call in calls:
            call.mask = self._mask(call)
        return calls

    def _mask(self, call: Call) -> Tensor | None:
        longest = call.longest
        if min(call.lengths) == longest:
            return None
        lengths = upload(call.lengths, self.slots.device).view(-1, 1, 1, 1)
        beyond = torch.arange(longest, device=self.slots.device) >= lengths
        return torch.zeros(beyond.shape, dtype=self.dtype, device=self.slots.device).masked_fill_(
            beyond, -torch.inf
        )
