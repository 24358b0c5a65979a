"""What a step's rows read of the pool, as the numbers that attention in ggml's graphs is told.

Of each group of layers: where a row's tokens stand in the batch and in their context, in which parts its
queries are computed, and its table of blocks. It knows rows, and neither tensors of a model nor addresses.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
from torch import Tensor

from engine.schedule.batch import Row

NAME = "ggml"  # of this attention
TOGETHER = 48  # queries, heads counted, that go through a tile at once
HEADER, ROW, PART = 4, 4, 3  # how many numbers: in front, of each row, of each of its parts


@dataclass(frozen=True, slots=True)
class Reading:
    """What a step's rows read, of each group of layers: the numbers that the operators are told."""

    tokens: int
    of_groups: list[Tensor]


class GgmlBackend:
    """Attention that is part of ggml's graphs."""

    name = NAME

    def __init__(self, block_size: int, heads_together: int) -> None:
        self._block_size = block_size
        self._queries = max(1, TOGETHER // heads_together)

    def plan(self, rows: Rows[Row]) -> tuple[list[int], Reading]:
        groups = len(rows[0].sequence.tables)
        read = Reading(
            sum(row.count for row in rows), [self._numbers(rows, group) for group in range(groups)]
        )
        return list(range(len(rows))), read

    def _numbers(self, rows: Rows[Row], group: int) -> Tensor:
        spans: list[int] = []
        parts: list[int] = []
        tables: list[int] = []
        first = 0
        for at, row in enumerate(rows):
            spans += (first, row.count, row.start, len(tables))
            table = row.sequence.tables[group]
            tables += table[: -(-(row.start + row.count) // self._block_size)]
            for begin in range(0, row.count, self._queries):
                parts += (at, begin, min(self._queries, row.count - begin))
            first += row.count
        header = (len(rows), len(parts) // PART, self._block_size, HEADER + len(spans) + len(parts))
        return torch.tensor([*header, *spans, *parts, *tables])
