"""A model of Llama's family, computed by ggml: between two layers' attention one graph, and no Python in it.

It is called as transformers' models are, and attends as they do, by torch and over the same pool: whoever
plans, pages and steers sees no difference. It knows neither rows nor streams.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Rows
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig, PreTrainedConfig
from transformers.modeling_outputs import CausalLMOutput

from engine.forward.attention import AttentionParams, AttentionPlan, attend
from engine.forward.kv_pool import KvPool
from engine.ggml.graph import INT32, Backend, Graph, Memory, aligned
from engine.ggml.layers import Layers
from engine.ggml.library import library
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
        self._layers = layers = Layers(config, weights)
        self._params = [
            AttentionParams(layers.facts.head_dim**-0.5, window) for window in layers.facts.windows
        ]
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
        plans: Rows[AttentionPlan],
        **_: Any,
    ) -> CausalLMOutput:
        least, most = input_ids.aminmax()
        if least < 0 or most >= self._layers.facts.vocab:  # ggml would end the process
            raise IndexError(f"a token is none of the {self._layers.facts.vocab} that the model knows")
        batch = self._batch(input_ids.shape[1])
        batch.tokens.copy_(input_ids[0])
        batch.positions.copy_(position_ids[0])
        for layer, graph in enumerate(batch.graphs[:-1]):
            self._backend.compute(graph)
            query, key, value = batch.heads[layer]
            out = attend(layer, query, (key, value), self._params[layer], pool, plans)
            batch.attended[: out.shape[0]].copy_(out)
        self._backend.compute(batch.graphs[-1])
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
    """The graphs of so many rows, and what goes in and comes out of them. In front of each layer's attention
    there is one, and one behind the last."""

    def __init__(self, layers: Layers, arena: Memory, rows: int) -> None:
        self._layers, self._arena, self._rows = layers, arena, rows
        self._end = 0
        head, hidden = layers.facts.head_dim, layers.facts.hidden
        self._tokens, self.tokens = self._held(1, rows, torch.int32)
        self._positions, self.positions = self._held(1, rows, torch.int32)
        self._wanted, self._chosen = self._held(1, rows, torch.int32)
        self._x, _ = self._held(rows, hidden)
        self._attended, attended = self._held(rows, layers.heads[0] * head)
        self.attended = attended.view(rows, layers.heads[0], head)
        places = [self._held(rows, heads * head) for heads in layers.heads]
        # Side by side they take no more than one behind the other.
        together = self._held(rows, sum(layers.heads) * head)
        self._apart, self._joined = [place for place, _ in places], together[0]
        apart = [view.view(rows, -1, head).transpose(0, 1) for _, view in places]
        joined = together[1].view(rows, -1, head).transpose(0, 1).split_with_sizes(list(layers.heads))
        self.heads = [joined if layers.is_joined(layer) else apart for layer in range(layers.count)]
        self.graphs = [self._graph(layer) for layer in range(layers.count + 1)]

    @staticmethod
    def bytes(layers: Layers, rows: int) -> int:
        head, hidden = layers.facts.head_dim, layers.facts.hidden
        kept = hidden + (layers.heads[0] + 2 * sum(layers.heads)) * head
        scratch = 6 * hidden + 3 * layers.inner
        return aligned(4 * rows * (kept + scratch + 3)) + 64 * 64

    def _held(self, rows: int, columns: int, dtype: torch.dtype = torch.float32) -> tuple[int, Tensor]:
        offset, size = self._end, 4 * rows * columns
        self._end = aligned(offset + size)
        numbers = self._arena.held[offset : offset + size].view(dtype).view(rows, columns)
        return offset, numbers[0] if rows == 1 and dtype == torch.int32 else numbers

    def _graph(self, layer: int) -> Graph:
        """Behind the attention of the layer before, and in front of this one's."""
        layers, arena, rows = self._layers, self._arena, self._rows
        graph = Graph(arena, self._end)
        if layer == 0:
            tokens = graph.over(arena, 1, rows, INT32, offset=self._tokens)
            x = layers.embedded(graph, tokens, (arena, self._x))
        else:
            x = graph.over(arena, rows, layers.facts.hidden, offset=self._x)
            wide = layers.heads[0] * layers.facts.head_dim
            attended = graph.over(arena, rows, wide, offset=self._attended)
            x = layers.after_attention(graph, layer - 1, x, attended)
        if layer < layers.count:
            positions = graph.over(arena, 1, rows, INT32, offset=self._positions)
            offsets = [self._joined] if layers.is_joined(layer) else self._apart
            places = [(arena, offset) for offset in offsets]
            layers.before_attention(graph, layer, x, positions, rows, places)
        return graph

    def head(self, wanted: Tensor, logits: Tensor) -> Graph:
        """From what the last graph gave to the logits of those rows."""
        layers, arena, count = self._layers, self._arena, len(wanted)
        self._chosen[:count].copy_(wanted)
        graph = Graph(arena, self._end)
        chosen = graph.over(arena, 1, count, INT32, offset=self._wanted)
        x = graph.over(arena, self._rows, layers.facts.hidden, offset=self._x)
        layers.logits(graph, x, chosen, (Memory(logits), 0))
        return graph
