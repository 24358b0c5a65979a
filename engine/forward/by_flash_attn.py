"""The FlashAttention backend: the varlen function of the package flash_attn, which reads block tables.

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

from engine.forward.attention import AttentionParams, apply_sinks
from engine.forward.block_tables import BlockTables, GroupTables
from engine.nonblocking_transfer import upload
from engine.schedule.batch import Row

Varlen = Callable[..., tuple[Tensor, Tensor, object]]


@dataclass(slots=True)
class VarlenCall:
    """Rows that are read in one call: where each one's queries and keys end, and its blocks."""

    tokens: slice
    queries: Tensor
    keys: Tensor
    max_queries: int
    max_keys: int
    tables: Tensor


@dataclass(slots=True)
class FlashAttnPlan:
    pool_indices: Tensor
    calls: list[VarlenCall]
    block_size: int
    varlen: Varlen

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, own: tuple[Tensor, Tensor], params: AttentionParams
    ) -> Tensor:
        outs = [self._read(call, keys, values, query.transpose(0, 1), params) for call in self.calls]
        return outs[0] if len(outs) == 1 else torch.cat(outs)

    def _read(
        self, call: VarlenCall, keys: Tensor, values: Tensor, query: Tensor, params: AttentionParams
    ) -> Tensor:
        out, lse, _ = self.varlen(
            query[call.tokens],
            self._pages(keys),
            self._pages(values),
            cu_seqlens_q=call.queries,
            cu_seqlens_k=call.keys,
            max_seqlen_q=call.max_queries,
            max_seqlen_k=call.max_keys,
            softmax_scale=params.scale,
            causal=True,
            window_size=(-1, -1) if params.window is None else (params.window - 1, 0),
            softcap=params.softcap or 0.0,
            return_attn_probs=True,  # for the log-sum-exp, [heads, tokens]
            block_table=call.tables,
        )
        return apply_sinks(out, lse.transpose(0, 1), params.sinks)

    def _pages(self, pool: Tensor) -> Tensor:
        """A layer's pool as [blocks, block size, KV heads, size], without moving anything."""
        heads, tokens, size = pool.shape
        return pool.view(heads, tokens // self.block_size, self.block_size, size).permute(1, 2, 0, 3)


class FlashAttnBackend:
    name = "flash_attn"

    def __init__(self, tables: BlockTables, varlen: Varlen) -> None:
        self.tables = tables
        self._varlen = varlen

    def plan(self, rows: Rows[Row]) -> tuple[list[int], list[FlashAttnPlan]]:
        """Rows of one token first: read by themselves, their contexts are split among the device."""
        order = sorted(range(len(rows)), key=lambda at: rows[at].count > 1)
        self.tables.update(rows)
        ordered = [rows[at] for at in order]
        owners = [row.sequence.slot for row in ordered for _ in range(row.count)]
        positions = [at for row in ordered for at in range(row.start, row.start + row.count)]
        slots, at = upload([owners, positions], self.tables.device)
        ones = sum(row.count == 1 for row in ordered)
        parts = [(part, first) for part, first in ((ordered[:ones], 0), (ordered[ones:], ones)) if part]
        plans = []
        for tables in self.tables.groups:
            calls = [self._call(part, first, tables) for part, first in parts]
            pool_indices = tables.pool_indices(slots, at)
            plans.append(FlashAttnPlan(pool_indices, calls, self.tables.block_size, self._varlen))
        return order, plans

    def _call(self, rows: list[Row], first: int, tables: GroupTables) -> VarlenCall:
        counts, ends = [row.count for row in rows], [row.start + row.count for row in rows]
        return VarlenCall(
            slice(first, first + sum(counts)),
            self._integers(list(accumulate(counts, initial=0))),
            self._integers(list(accumulate(ends, initial=0))),
            max(counts),
            max(ends),
            tables.tensor[self._integers([row.sequence.slot for row in rows])],
        )

    def _integers(self, numbers: list[int]) -> Tensor:
        return upload(numbers, self.tables.device, torch.int32)
