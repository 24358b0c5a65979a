"""The layers of Llama's family, as ggml's operators: what is computed before a layer's attention, and behind.

It knows the configuration of these models and the names of their weights. What is optional in the family,
biases and norms of queries and keys, is computed where there is a weight for it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from engine.forward.kv_pool import KvPool
from engine.ggml import attention, panels
from engine.ggml.graph import Graph, Memory, Place
from engine.ggml.reading import Reading
from engine.ggml.weights import Weights
from engine.model.facts import ModelFacts, describe
from engine.schedule.windows import UNLIMITED

NEIGHBOURS, HALVES = 0, 2  # what is rotated together, as ggml numbers it
REAL = 4  # bytes
EMBEDDING = "token_embd.weight"
TENSORS = 48  # of a layer at most


class Layers:
    def __init__(self, config: PreTrainedConfig, weights: Weights) -> None:
        self.facts: ModelFacts = describe(config)
        self.count = self.facts.layers
        self._weights = weights.by_name
        self._memories = {name: Memory(weight.data) for name, weight in weights.by_name.items()}
        self._epsilon = config.rms_norm_eps
        self._neighbours = weights.rotates_neighbours
        facts = self.facts
        self.heads = (facts.heads, facts.kv_heads, facts.kv_heads)  # of queries, keys and values
        self.inner: int = config.intermediate_size
        rotary: Any = LlamaRotaryEmbedding  # of all of the family, and of every way to stretch positions
        rotation = rotary(config)
        self._theta: float = rotation.config.rope_parameters["rope_theta"]
        self._rotation_scale: float = rotation.attention_scaling
        self._rotated: int = 2 * len(rotation.inv_freq)
        self._divisors = Memory(_divisors(self._theta, rotation.inv_freq))
        each = max(panels.SCRATCH, attention.scratch_bytes(facts.head_dim, facts.heads // facts.kv_heads))
        self._scratch = torch.empty(torch.get_num_threads(), each, dtype=torch.uint8)  # of each thread
        self._step = torch.zeros(self.count, attention.LAYER, dtype=torch.int64)

    def read(self, pool: KvPool, reading: Reading) -> None:
        """From now on layers attend to what is to be read of this pool."""
        read = [numbers.data_ptr() for numbers in reading.of_groups]
        self._step.copy_(
            torch.tensor(
                [
                    (keys.data_ptr(), values.data_ptr(), keys.stride(0), read[group])
                    for keys, values, group in zip(pool.keys, pool.values, pool.group_of, strict=True)
                ]
            )
        )

    # -- a batch of `rows`, in a graph -----------------------------------------------------------------

    def embedded(self, graph: Graph, tokens: int, rows: int, into: Place) -> int:
        if self._weights[EMBEDDING].in_panels:
            table = self._panels(graph, EMBEDDING)
            size = (rows, self.facts.hidden)
            kind = self._weights[EMBEDDING].kind
            return graph.custom(panels.look_up, size, [table, tokens], kind, *size, into=into)
        return int(graph.get_rows(self._weight(graph, EMBEDDING), tokens, into=into))

    def compute(self, graph: Graph, layer: int, x: int, positions: int, rows: int) -> int:
        """What the next layer begins with, in the place of `x`."""
        name = f"blk.{layer}"
        attended = self._attended(graph, layer, self._normed(graph, x, f"{name}.attn_norm"), positions, rows)
        x = graph.add_inplace(x, self._product(graph, f"{name}.attn_output", attended, rows))
        normed = self._normed(graph, x, f"{name}.ffn_norm")
        gate = self._product(graph, f"{name}.ffn_gate", normed, rows)
        if f"{name}.ffn_up.weight" in self._weights:
            inner = graph.swiglu_split(gate, self._product(graph, f"{name}.ffn_up", normed, rows))
        else:
            inner = graph.swiglu(gate)
        x = graph.add_inplace(x, self._product(graph, f"{name}.ffn_down", inner, rows))
        graph.finish(x)
        return x

    def _attended(self, graph: Graph, layer: int, normed: int, positions: int, rows: int) -> int:
        facts, size = self.facts, self.facts.head_dim
        names = [f"blk.{layer}.attn_{name}" for name in "qkv"]
        if f"{names[1]}.weight" in self._weights:
            made = [self._product(graph, name, normed, rows) for name in names]
            widths, firsts = list(self.heads), [0, 0, 0]
        else:  # one product, in which they lie side by side
            made = [self._product(graph, names[0], normed, rows)] * 3
            widths, firsts = [sum(self.heads)] * 3, [0, self.heads[0], self.heads[0] + self.heads[1]]
        pitches = [width * size * REAL for width in widths]
        query, key, value = (
            graph.view_3d(one, size, heads, rows, size * REAL, pitch, first * size * REAL)
            for one, heads, pitch, first in zip(made, self.heads, pitches, firsts, strict=True)
        )
        query = self._rotated_heads(graph, f"{names[0]}_norm", query, positions)
        key = self._rotated_heads(graph, f"{names[1]}_norm", key, positions)
        step = self._step.data_ptr()
        kept = graph.custom(
            attention.keep, (1, 1), [key, value], step, layer, *pitches[1:], facts.kv_heads, size
        )
        return graph.custom(
            attention.attend,
            (rows, facts.heads * size),
            [query, kept],
            *(step, layer, pitches[0], facts.heads, facts.kv_heads, size, facts.windows[layer] or UNLIMITED),
            *(self._scratch.data_ptr(), self._scratch.shape[1]),
        )

    def _rotated_heads(self, graph: Graph, norm: str, of_heads: int, positions: int) -> int:
        if f"{norm}.weight" in self._weights:
            of_heads = graph.rms_norm_inplace(of_heads, self._epsilon)
            of_heads = graph.mul_inplace(of_heads, self._weight(graph, f"{norm}.weight"))
        return self._rotate(graph, of_heads, positions)

    def logits(self, graph: Graph, x: int, wanted: int, rows: int, into: Place) -> None:
        normed = self._normed(graph, graph.get_rows(x, wanted), "output_norm")
        head = "output" if "output.weight" in self._weights else "token_embd"
        graph.finish(self._product(graph, head, normed, rows, into))

    def _normed(self, graph: Graph, x: int, name: str) -> int:
        weight = self._weight(graph, f"{name}.weight")
        return int(graph.mul_inplace(graph.rms_norm(x, self._epsilon), weight))

    def _product(self, graph: Graph, name: str, x: int, rows: int, into: Place | None = None) -> int:
        weight = self._weights[f"{name}.weight"]
        if weight.in_panels:
            matrix, own = self._panels(graph, f"{name}.weight"), self._scratch
            size, ins = (rows, weight.rows), weight.columns
            numbers = (weight.kind, rows, ins, weight.rows, own.data_ptr(), own.shape[1])
            product = graph.custom(panels.multiply, size, [matrix, x], *numbers, into=into)
        else:
            product = graph.mul_mat(self._weight(graph, f"{name}.weight"), x, into=into)
        if f"{name}.bias" in self._weights:
            return int(graph.add_inplace(product, self._weight(graph, f"{name}.bias")))
        return product

    def _rotate(self, graph: Graph, of_heads: int, positions: int) -> int:
        divisors = graph.over(self._divisors, 1, self._rotated // 2)
        mode = NEIGHBOURS if self._neighbours else HALVES
        stretched = (1.0, 0.0, self._rotation_scale, 0.0, 0.0)
        return int(
            graph.rope_ext_inplace(
                of_heads, positions, divisors, self._rotated, mode, 0, self._theta, *stretched
            )
        )

    def _panels(self, graph: Graph, name: str) -> int:
        """A matrix that lies otherwise than ggml knows: its first numbers stand for it."""
        return graph.over(self._memories[name], 1, 1)

    def _weight(self, graph: Graph, name: str) -> int:
        weight = self._weights[name]
        return graph.over(self._memories[name], weight.rows, weight.columns, weight.kind)


def _divisors(theta: float, frequencies: Tensor) -> Tensor:
    """By what ggml is to divide the frequencies that it makes of theta, to have these."""
    exponents = torch.arange(len(frequencies), dtype=torch.float64) / len(frequencies)
    return (theta**-exponents / frequencies.double()).float()
