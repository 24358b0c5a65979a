"""What our kernels do, in PyTorch: each query token gathers all that its table names. For tests of what is
above the kernels; they themselves are tested against a dense softmax."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.forward.attention import Look
from engine.forward.by_triton import Paged, PagedKernels, Tiles


class GatheredKernels(PagedKernels):
    def batch(self, places: Tensor, parts: list[Tiles]) -> Paged:
        return Gathered(places, parts, self.tables, self.launch)


@dataclass(slots=True)
class Gathered(Paged):
    def attend(
        self, keys: Tensor, values: Tensor, query: Tensor, own: tuple[Tensor, Tensor], look: Look
    ) -> Tensor:
        slots, positions = (torch.cat(column) for column in zip(*map(_tokens, self.parts), strict=True))
        groups = query.shape[0] // keys.shape[0]
        block, width = self.tables.block, self.tables.numbers.shape[1]
        at = torch.arange(width * block)
        places = self.tables.numbers[slots].long()[:, at // block] * block + at % block  # [T, L]
        q = query.transpose(0, 1).reshape(len(slots), -1, groups, query.shape[2])  # [T, KV, G, D]
        scores = torch.einsum("tkgd,ktld->tkgl", q, keys[:, places]) * look.scale
        if look.softcap is not None:
            scores = torch.tanh(scores / look.softcap) * look.softcap
        distance = positions[:, None] - at
        hidden = (distance < 0) | (distance >= (look.window or len(at)))
        scores = scores.masked_fill(hidden[:, None, None], -torch.inf)
        if look.sinks is not None:
            sinks = look.sinks.view(1, -1, groups, 1).expand(len(slots), -1, -1, 1)
            scores = torch.cat([scores, sinks], -1)
        shares = scores.softmax(-1)[..., : len(at)]
        read = values[:, places].masked_fill(hidden[..., None], 0)
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
    found = torch.tensor(every)
    return found[:, 0], found[:, 1]
