"""The KV pool: keys and values of every layer, in one tensor, addressed by token.

A token's place has room for the layers of one group: where a model has several, each group keeps its share of
the same tokens in blocks of its own, and a block is as good for any of them.

It knows numbers and where they lie; who owns which block is the block cache's business. On the CPU a token
takes memory only once it is written, and gives it back when it is told to; a number never moves.
"""

from __future__ import annotations

from collections.abc import Sequence as Several

import torch
from torch import Tensor

from engine.forward.mapped_memory import MappedMemory, items_in_whole_pages
from engine.model.layer_groups import LayerGroup


class KvPool:
    """Keys and values of every layer, [KV heads, tokens, head size] each, so that a run of one head is one
    slice. Without `groups` all layers are in one, which keeps everything."""

    def __init__(
        self,
        layers: int,
        heads: int,
        size: int,
        *,
        tokens: int,
        dtype: torch.dtype,
        device: str,
        groups: Several[LayerGroup] = (),
    ) -> None:
        self.groups = groups or [LayerGroup(None, list(range(layers)))]
        places = max(len(group.layers) for group in self.groups)
        # In one piece, so that a block's share of all layers can be moved at once.
        self._mapped: MappedMemory | None = None
        if torch.device(device).type == "cpu":
            self._all = self._map(2 * places, heads, tokens, size, dtype)
        else:
            self._all = torch.zeros(2 * places, heads, tokens, size, dtype=dtype, device=device)
        place = {layer: at for group in self.groups for at, layer in enumerate(group.layers)}
        self.keys = [self._all[place[layer]] for layer in range(layers)]
        self.values = [self._all[places + place[layer]] for layer in range(layers)]
        groups_of = {layer: at for at, group in enumerate(self.groups) for layer in group.layers}
        self.group_of = [groups_of[layer] for layer in range(layers)]
        self.tokens = tokens
        self.dtype = dtype

    def _map(self, parts: int, heads: int, tokens: int, size: int, dtype: torch.dtype) -> Tensor:
        """Each head's tokens begin with a page."""
        whole = items_in_whole_pages(size * dtype.itemsize)
        pitch = -(-tokens // whole) * whole
        self._mapped = MappedMemory(parts * heads * pitch * size * dtype.itemsize)
        return self._mapped.tensor(dtype).view(parts, heads, pitch, size)[:, :, :tokens]

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

    @property
    def tokens_in_pages(self) -> int:
        """How many tokens fill whole pages: memory is given back by multiples of that, from one on."""
        return items_in_whole_pages(self._all.shape[-1] * self.dtype.itemsize)

    def give_back(self, tokens: slice) -> None:
        """Let go of the memory of tokens that nobody reads, unless masked. It is taken again when they are
        written; the last pages may hold no token at all."""
        if self._mapped is None:
            return
        part, token = (self._all.stride(at) * self.dtype.itemsize for at in (1, 2))
        begin, end = tokens.start * token, min(tokens.stop * token, part)
        for start in range(0, len(self._all) * self._all.shape[1] * part, part):
            self._mapped.give_back(start + begin, end - begin)
