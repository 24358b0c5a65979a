"""Attention by the package flashinfer, where it is installed: its wrapper for ragged batches over pages.

It plans on the host, once a step for each way in which layers look (window, cap, scale), and in buffers that
it uses again in the next step: a plan waits until the one before it is on the device, which it is as soon as
its step has begun. It knows rows and their blocks; sinks are applied to what it gives.
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

from engine.forward.attention import Look, with_sinks
from engine.schedule.batch import Row
from engine.transfer import Download, upload

WORKSPACE_BYTES = 2**27  # what it recommends
Wrapper = Any  # flashinfer.BatchPrefillWithPagedKVCacheWrapper, which carries no types


@dataclass(frozen=True, slots=True)
class Kind:
    """What a plan depends on beside its batch."""

    scale: float
    window: int | None
    softcap: float | None
    heads: int


@dataclass(slots=True)
class Planned:
    wrapper: Wrapper
    there: Download | None = None  # what was queued behind the last plan


@dataclass(slots=True)
class Infer:
    """A batch: where queries and pages of each row end, and how full its last page is; on the host."""

    slots: Tensor
    queries: Tensor
    ends: Tensor
    pages: Tensor
    last: Tensor
    backend: FlashInfer
    planned: dict[Kind, Planned] = field(default_factory=dict)

    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, own: tuple[Tensor, Tensor], look: Look
    ) -> Tensor:
        kind = Kind(look.scale, look.window, look.softcap, query.shape[0])
        if kind not in self.planned:
            self.planned[kind] = self.backend.planned(self, kind, keys)
        pages = self.backend.pages(keys), self.backend.pages(values)
        out, lse = self.planned[kind].wrapper.run(query.transpose(0, 1), pages, return_lse=True)
        return with_sinks(out, lse * math.log(2), look.sinks)  # it counts in powers of two


class FlashInfer:
    name = "flashinfer"

    def __init__(self, block: int, device: torch.device, wrapper: Callable[[Tensor, str], Wrapper]) -> None:
        self._block = block
        self._device = device
        self._wrapper = wrapper
        self._workspace = torch.empty(WORKSPACE_BYTES, dtype=torch.uint8, device=device)
        self._kinds: dict[Kind, Planned] = {}

    def plan(self, rows: Rows[Row]) -> tuple[list[int], Infer]:
        block = self._block
        ends = [row.start + row.count for row in rows]
        pages = [row.sequence.blocks[: -(-end // block)] for row, end in zip(rows, ends, strict=True)]
        slots = [
            row.sequence.blocks[at // block] * block + at % block
            for row in rows
            for at in range(row.start, row.start + row.count)
        ]
        batch = Infer(
            upload(slots, self._device),
            self._numbers(list(accumulate((row.count for row in rows), initial=0))),
            self._numbers(list(accumulate(map(len, pages), initial=0))),
            self._numbers([number for own in pages for number in own]),
            self._numbers([(end - 1) % block + 1 for end in ends]),
            self,
        )
        return list(range(len(rows))), batch

    def planned(self, batch: Infer, kind: Kind, keys: Tensor) -> Planned:
        """A wrapper that reads the batch for layers of a kind."""
        planned = self._kinds.get(kind)
        if planned is None:
            planned = self._kinds[kind] = Planned(self._wrapper(self._workspace, "HND"))
        if planned.there is not None:
            planned.there.read()
        planned.wrapper.plan(
            batch.queries,
            batch.ends,
            batch.pages,
            batch.last,
            kind.heads,
            keys.shape[0],
            keys.shape[2],
            self._block,
            causal=True,
            sm_scale=kind.scale,
            window_left=-1 if kind.window is None else kind.window - 1,
            logits_soft_cap=kind.softcap,
            q_data_type=keys.dtype,
        )
        planned.there = Download(self._workspace[:1])
        return planned

    def pages(self, pool: Tensor) -> Tensor:
        """A layer's pool as [blocks, KV heads, block, size], without moving anything."""
        heads, tokens, size = pool.shape
        return pool.view(heads, tokens // self._block, self._block, size).transpose(0, 1)

    def _numbers(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int32, pin_memory=self._device.type == "cuda")
