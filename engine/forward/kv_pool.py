"""The KV pool: keys and values of every layer, in one tensor, addressed by token.

It knows numbers and where they lie; who owns which block is the block cache's business.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KvPool:
    """Keys and values of every layer, [KV heads, tokens, head size] each, so that a run of one head is one
    slice."""

    def __init__(
        self, layers: int, heads: int, size: int, *, tokens: int, dtype: torch.dtype, device: str
    ) -> None:
        # In one piece, so that a block's share of all layers can be moved at once.
        self._all = torch.zeros(2 * layers, heads, tokens, size, dtype=dtype, device=device)
        self.keys, self.values = list(self._all[:layers]), list(self._all[layers:])
        self.tokens = tokens
        self.dtype = dtype

    def blocks(self, block_size: int) -> Tensor:
        """The same numbers as [blocks, layers and heads, numbers of a block]."""
        _, _, tokens, size = self._all.shape
        return self._all.view(-1, tokens // block_size, block_size * size).transpose(0, 1)

    def write(self, layer: int, indices: Tensor, keys: Tensor, values: Tensor) -> None:
        self.keys[layer].index_copy_(1, indices, keys)
        self.values[layer].index_copy_(1, indices, values)

    def copy(self, source: slice, target: slice) -> None:
        self._all[:, :, target] = self._all[:, :, source]

    def zero(self, tokens: slice) -> None:
        self._all[:, :, tokens] = 0
