"""A model of Llama's family, computed by ggml: one graph from the tokens to the last layer, with attention in
it, and another for the logits that are wanted.

It is called as transformers' models are, and keeps keys and values in the same pool: whoever plans, pages and
steers sees no difference. It knows neither rows nor streams.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutput

from engine.forward.kv_pool import KvPool
from engine.ggml.graph import Backend, Graph, Memory, aligned
from engine.ggml.kinds import INT32
from engine.ggml.layers import TENSORS, Layers
from engine.ggml.library import library
from engine.ggml.reading import Reading
from engine.ggml.weights import Weights

MOST_SIZES = 64  # of batches, whose graphs are kept


class GgmlModel(nn.Module):
    def __init__(
        self, config: PreTrainedConfig, generation: GenerationConfig | None, weights: Weights
    ) -> None:
        super().__init__()
        self.config, self.generation_config = config, generation
        self.device, self.dtype = torch.device("cpu"), torch.float32  # of activations, keys and values
        self.library, self.width = library().description, weights.width
        for name, weight in weights.by_name.items():
            told = f"{name} {weight.kind_name}".replace(".", "_")
            self.register_parameter(told, nn.Parameter(weight.data, requires_grad=False))
        self._layers = Layers(config, weights)
        self._backend = Backend()
        self._arena = Memory(torch.empty(0, dtype=torch.uint8))
        self._most_rows = 0
        self._batches: OrderedDict[int, Batch] = OrderedDict()

    @property
    def description(self) -> str:
        size = sum(weight.nbytes for weight in self.parameters())
        return f"{self.width} weights ({size / 1e6:.0f} MB) multiplied by {self.library}"

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        logits_to_keep: Tensor,
        *,
        pool: KvPool,
        plans: Reading,
        **_: Any,
    ) -> CausalLMOutput:
        least, most = input_ids.aminmax()
        if least < 0 or most >= self._layers.facts.vocab:  # ggml would end the process
            raise IndexError(f"a token is none of the {self._layers.facts.vocab} that the model knows")
        batch = self._batch(input_ids.shape[1])
        batch.tokens.copy_(input_ids[0])
        batch.positions.copy_(position_ids[0])
        self._layers.read(pool, plans)
        self._backend.compute(batch.graph)
        logits = torch.empty(len(logits_to_keep), self._layers.facts.vocab)  # whoever asked keeps them
        self._backend.compute(batch.head(logits_to_keep, logits))
        return CausalLMOutput(logits=logits[None])

    def _batch(self, rows: int) -> Batch:
        if rows > self._most_rows:
            self._batches.clear()
            self._most_rows = rows
            self._arena = Memory(torch.empty(Batch.bytes(self._layers, rows), dtype=torch.uint8))
        if rows not in self._batches:
            self._batches[rows] = Batch(self._layers, self._arena, rows)
        self._batches.move_to_end(rows)
        if len(self._batches) > MOST_SIZES:
            self._batches.popitem(last=False)
        return self._batches[rows]


class Batch:
    """The graph of so many rows, and what goes in and comes out of it."""

    def __init__(self, layers: Layers, arena: Memory, rows: int) -> None:
        self._layers, self._arena, self._rows = layers, arena, rows
        self._end = 0
        self._tokens, self.tokens = self._held(1, rows, torch.int32)
        self._positions, self.positions = self._held(1, rows, torch.int32)
        self._wanted, self._chosen = self._held(1, rows, torch.int32)
        self._x, _ = self._held(rows, layers.facts.hidden)
        self.graph = self._made()

    @staticmethod
    def bytes(layers: Layers, rows: int) -> int:
        facts, heads = layers.facts, layers.heads
        kept = facts.hidden + 3
        scratch = 4 * facts.hidden + (heads[0] + sum(heads)) * facts.head_dim + 3 * layers.inner
        return aligned(4 * rows * (kept + scratch)) + 64 * 64

    def _held(self, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> tuple[int, Tensor]:
        offset, size = self._end, 4 * rows * columns
        self._end = aligned(offset + size)
        numbers = self._arena.held[offset : offset + size].view(dtype).view(rows, columns)
        return offset, numbers[0] if rows == 1 and dtype == torch.int32 else numbers

    def _made(self) -> Graph:
        layers, arena, rows = self._layers, self._arena, self._rows
        graph = Graph(arena, self._end, TENSORS * (1 + layers.count))
        tokens = graph.over(arena, 1, rows, INT32, offset=self._tokens)
        positions = graph.over(arena, 1, rows, INT32, offset=self._positions)
        x = layers.embedded(graph, tokens, rows, (arena, self._x))
        for layer in range(layers.count):
            x = layers.compute(graph, layer, x, positions, rows)
            graph.reuse_scratch()
        return graph

    def head(self, wanted: Tensor, logits: Tensor) -> Graph:
        """From what the last graph gave to the logits of those rows."""
        layers, arena, count = self._layers, self._arena, len(wanted)
        self._chosen[:count].copy_(wanted)
        graph = Graph(arena, self._end, TENSORS)
        chosen = graph.over(arena, 1, count, INT32, offset=self._wanted)
        x = graph.over(arena, self._rows, layers.facts.hidden, offset=self._x)
        layers.logits(graph, x, chosen, count, (Memory(logits), 0))
        return graph
