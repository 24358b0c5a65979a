"""An attention backend in plain PyTorch: each query token gathers all that its block table names. For tests
of what is above our kernels; they themselves are tested against a dense softmax."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.forward.attention import AttentionParams
from engine.forward.block_tables import GroupTables
from engine.forward.by_triton import Tiles, TritonBackend, TritonPlan


class GatherBackend(TritonBackend):
    def plan_of(
        self, pool_indices: Tensor, positions: Tensor, parts: list[Tiles], tables: GroupTables
    ) -> TritonPlan:
        return GatherPlan(pool_indices, positions, parts, tables, self.launch)


@dataclass(slots=True)
class GatherPlan(TritonPlan):
    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, own: tuple[Tensor, Tensor], params: AttentionParams
    ) -> Tensor:
        slots, positions = (torch.cat(column) for column in zip(*map(_tokens, self.parts), strict=True))
        groups = query.shape[0] // keys.shape[0]
        size, width = self.tables.block_size, self.tables.tensor.shape[1]
        at = torch.arange(width * size, device=query.device)
        indices = self.tables.tensor[slots].long()[:, at // size] * size + at % size  # [T, L]
        q = query.transpose(0, 1).reshape(len(slots), -1, groups, query.shape[2])  # [T, KV, G, D]
        distance = positions[:, None] - at
        hidden = (distance < 0) | (distance >= (params.window or len(at)))
        indices = indices.masked_fill(hidden, 0)  # it may lie nowhere any more
        scores = torch.einsum("tkgd,ktld->tkgl", q, keys[:, indices]) * params.scale
        if params.softcap is not None:
            scores = torch.tanh(scores / params.softcap) * params.softcap
        scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
        if params.sinks is not None:
            sinks = params.sinks.view(1, -1, groups, 1).expand(len(slots), -1, -1, 1)
            scores = torch.cat([scores, sinks], -1)
        shares = scores.softmax(-1)[..., : len(at)]
        read = values[:, indices].masked_fill(hidden[..., None], 0)
        return torch.einsum("tkgl,ktld->tkgd", shares, read).flatten(1, 2)


def _tokens(tiles: Tiles) -> tuple[Tensor, Tensor]:
    """The table row and the position of each query token."""
    slots, _, positions, counts = tiles.numbers.long()
    if tiles.longest == 1:
        return slots, positions
    every = [
        (slot, position + at)
        for slot, position, count in zip(slots.tolist(), positions.tolist(), counts.tolist(), strict=True)
        for at in range(count)
    ]
    found = torch.tensor(every, device=tiles.numbers.device)
    return found[:, 0], found[:, 1]
