"""Attention by the package flash_attn, where it is installed: its varlen function, which reads block tables.

It wants blocks of 256 tokens or a multiple, and half precision. It knows rows and tables; sinks, which that
function does not know, are applied to what it gives.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from engine.forward.attention import Look, with_sinks
from engine.forward.block_tables import Tables
from engine.schedule.batch import Row
from engine.transfer import upload

Varlen = Callable[..., tuple[Tensor, Tensor, object]]


@dataclass(slots=True)
class Part:
    """Rows that are read in one call: where each one's queries and keys end, and its blocks."""

    tokens: slice
    queries: Tensor
    keys: Tensor
    most_queries: int
    most_keys: int
    tables: Tensor


@dataclass(slots=True)
class Flash:
    slots: Tensor
    parts: list[Part]
    block: int
    varlen: Varlen

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, own: tuple[Tensor, Tensor], look: Look
    ) -> Tensor:
        outs = [self._read(part, keys, values, query.transpose(0, 1), look) for part in self.parts]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _read(self, part: Part, keys: Tensor, values: Tensor, query: Tensor, look: Look) -> Tensor:
        out, lse, _ = self.varlen(
            query[part.tokens],
            self._pages(keys),
            self._pages(values),
            cu_seqlens_q=part.queries,
            cu_seqlens_k=part.keys,
            max_seqlen_q=part.most_queries,
            max_seqlen_k=part.most_keys,
            softmax_scale=look.scale,
            causal=True,
            window_size=(-1, -1) if look.window is None else (look.window - 1, 0),
            softcap=look.softcap or 0.0,
            return_attn_probs=True,  # for the log-sum-exp, [heads, tokens]
            block_table=part.tables,
        )
        return with_sinks(out, lse.transpose(0, 1), look.sinks)

    def _pages(self, pool: Tensor) -> Tensor:
        """A layer's pool as [blocks, block, KV heads, size], without moving anything."""
        heads, tokens, size = pool.shape
        return pool.view(heads, tokens // self.block, self.block, size).permute(1, 2, 0, 3)


class FlashAttn:
    name = "flash_attn"

    def __init__(self, tables: Tables, varlen: Varlen) -> None:
        self.tables = tables
        self._varlen = varlen

    def plan(self, rows: Rows[Row]) -> tuple[list[int], Flash]:
        """Rows of one token first: read by themselves, their contexts are split among the device."""
        order = sorted(range(len(rows)), key=lambda at: rows[at].count > 1)
        self.tables.write(rows)
        ordered = [rows[at] for at in order]
        owners = [row.sequence.slot for row in ordered for _ in range(row.count)]
        positions = [at for row in ordered for at in range(row.start, row.start + row.count)]
        places = self.tables.places(*upload([owners, positions], self.tables.numbers.device))
        ones = sum(row.count == 1 for row in ordered)
        parts = [
            self._part(part, first) for part, first in ((ordered[:ones], 0), (ordered[ones:], ones)) if part
        ]
        return order, Flash(places, parts, self.tables.block, self._varlen)

    def _part(self, rows: list[Row], first: int) -> Part:
        counts, ends = [row.count for row in rows], [row.start + row.count for row in rows]
        return Part(
            slice(first, first + sum(counts)),
            self._integers(list(accumulate(counts, initial=0))),
            self._integers(list(accumulate(ends, initial=0))),
            max(counts),
            max(ends),
            self.tables.numbers[self._integers([row.sequence.slot for row in rows])],
        )

    def _integers(self, numbers: list[int]) -> Tensor:
        return upload(numbers, self.tables.numbers.device, torch.int32)
