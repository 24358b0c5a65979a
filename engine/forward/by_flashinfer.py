"""The FlashInfer backend: the wrapper of the package flashinfer for ragged batches over pages.

It plans on the host, once a step for each way in which layers attend (group, window, cap, scale), and in
buffers that it uses again in the next step: a plan waits until the one before it is on the device, which it
is as soon as its step has begun. It knows rows and their blocks; sinks are applied to what it gives.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from engine.forward.attention import AttentionParams, apply_sinks
from engine.nonblocking_transfer import Download, upload
from engine.schedule.batch import Row
from engine.schedule.windows import first_held

WORKSPACE_BYTES = 2**27  # what it recommends
Wrapper = Any  # flashinfer.BatchPrefillWithPagedKVCacheWrapper, which carries no types


@dataclass(frozen=True, slots=True)
class PlanKey:
    """What a wrapper's plan depends on beside the batch."""

    group: int  # of layers
    scale: float
    window: int | None
    softcap: float | None
    heads: int


@dataclass(slots=True)
class PlannedWrapper:
    wrapper: Wrapper
    uploaded: Download | None = None  # queued behind the last plan


@dataclass(slots=True)
class FlashInferPlan:
    """A batch: where queries and pages of each row end, and how full its last page is; on the host. Pages
    that are gone are in front of all that a row reads, and are left out."""

    group: int
    pool_indices: Tensor
    queries: Tensor
    ends: Tensor
    pages: Tensor
    last: Tensor
    backend: FlashInferBackend
    planned: dict[PlanKey, PlannedWrapper] = field(default_factory=dict)

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, own: tuple[Tensor, Tensor], params: AttentionParams
    ) -> Tensor:
        key = PlanKey(self.group, params.scale, params.window, params.softcap, query.shape[0])
        if key not in self.planned:
            self.planned[key] = self.backend.plan_wrapper(self, key, keys)
        pages = self.backend.pages(keys), self.backend.pages(values)
        out, lse = self.planned[key].wrapper.run(query.transpose(0, 1), pages, return_lse=True)
        return apply_sinks(out, lse * math.log(2), params.sinks)  # it counts in powers of two


class FlashInferBackend:
    name = "flashinfer"

    def __init__(
        self, block_size: int, device: torch.device, wrapper: Callable[[Tensor, str], Wrapper]
    ) -> None:
        self._block_size = block_size
        self._device = device
        self._wrapper = wrapper
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._wrappers: dict[PlanKey, PlannedWrapper] = {}

    def plan(self, rows: Rows[Row]) -> tuple[list[int], list[FlashInferPlan]]:
        tables = zip(*(row.sequence.tables for row in rows), strict=True)  # of each group of layers
        plans = [self._plan(group, rows, of_group) for group, of_group in enumerate(tables)]
        return list(range(len(rows))), plans

    def _plan(self, group: int, rows: Rows[Row], tables: Rows[list[int]]) -> FlashInferPlan:
        size = self._block_size
        ends = [row.start + row.count for row in rows]
        pages = [table[first_held(table) : -(-end // size)] for table, end in zip(tables, ends, strict=True)]
        pool_indices = [
            table[at // size] * size + at % size
            for row, table in zip(rows, tables, strict=True)
            for at in range(row.start, row.start + row.count)
        ]
        return FlashInferPlan(
            group,
            upload(pool_indices, self._device),
            self._numbers(list(accumulate((row.count for row in rows), initial=0))),
            self._numbers(list(accumulate(map(len, pages), initial=0))),
            self._numbers([number for own in pages for number in own]),
            self._numbers([(end - 1) % size + 1 for end in ends]),
            self,
        )

    def plan_wrapper(self, batch: FlashInferPlan, key: PlanKey, keys: Tensor) -> PlannedWrapper:
        """A wrapper that reads the batch for the layers of this key."""
        planned = self._wrappers.get(key)
        if planned is None:
            planned = self._wrappers[key] = PlannedWrapper(self._wrapper(self._workspace, "HND"))
        if planned.uploaded is not None:
            planned.uploaded.read()
        planned.wrapper.plan(
            batch.queries,
            batch.ends,
            batch.pages,
            batch.last,
            key.heads,
            keys.shape[0],
            keys.shape[2],
            self._block_size,
            causal=True,
            sm_scale=key.scale,
            window_left=-1 if key.window is None else key.window - 1,
            logits_soft_cap=key.softcap,
            q_data_type=keys.dtype,
        )
        planned.uploaded = Download(self._workspace[:1])
        return planned

    def pages(self, pool: Tensor) -> Tensor:
        """A layer's pool as [blocks, KV heads, block size, size], without moving anything."""
        heads, tokens, size = pool.shape
        return pool.view(heads, tokens // self._block_size, self._block_size, size).transpose(0, 1)

    def _numbers(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, pin_memory=self._device.type == "cuda")
