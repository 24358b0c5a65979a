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

from engine.ggml.graph import Graph, Memory, Place
from engine.ggml.weights import Weights
from engine.model.facts import ModelFacts, describe

NEIGHBOURS, HALVES = 0, 2  # what is rotated together, as ggml numbers it
REAL = 4  # bytes
FAMILY = ("llama", "mistral", "qwen2", "qwen3")  # by transformers' names


def why_not(config: dict[str, Any]) -> str | None:
    """Why a model of this configuration is not computed here, if so."""
    if config.get("model_type") not in FAMILY:
        return f"ggml computes {', '.join(FAMILY)} here, and the architecture is {config.get('model_type')}"
    if (activation := config.get("hidden_act", "silu")) != "silu":
        return f"ggml computes silu here, and the activation is {activation}"
    return None


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

    # -- a batch of `rows`, in a graph -----------------------------------------------------------------

    def embedded(self, graph: Graph, tokens: int, into: Place) -> int:
        table = self._weight(graph, "token_embd.weight")
        return int(graph.get_rows(table, tokens, into=into))

    def is_joined(self, layer: int) -> bool:
        """Whether queries, keys and values are one product, and lie side by side."""
        return f"blk.{layer}.attn_k.weight" not in self._weights

    def before_attention(
        self, graph: Graph, layer: int, x: int, positions: int, rows: int, into: list[Place]
    ) -> None:
        """Queries, keys and values; in one place where they are one product."""
        normed = self._normed(graph, x, f"blk.{layer}.attn_norm")
        names = [f"blk.{layer}.attn_{name}" for name in "qkv"]
        if self.is_joined(layer):
            made = [self._product(graph, names[0], normed, into[0])] * 3
            widths, firsts = [sum(self.heads)] * 3, [0, self.heads[0], self.heads[0] + self.heads[1]]
        else:
            made = [
                self._product(graph, name, normed, place) for name, place in zip(names, into, strict=True)
            ]
            widths, firsts = list(self.heads), [0, 0, 0]
        graph.finish(made[2])
        for at in (0, 1):  # queries and keys
            head, row = self.facts.head_dim * REAL, widths[at] * self.facts.head_dim * REAL
            of_heads = graph.view_3d(
                made[at], self.facts.head_dim, self.heads[at], rows, head, row, firsts[at] * head
            )
            if f"{names[at]}_norm.weight" in self._weights:
                of_heads = graph.rms_norm_inplace(of_heads, self._epsilon)
                of_heads = graph.mul_inplace(of_heads, self._weight(graph, f"{names[at]}_norm.weight"))
            graph.finish(self._rotate(graph, of_heads, positions))

    def after_attention(self, graph: Graph, layer: int, x: int, attended: int) -> int:
        """What the next layer begins with, in the place of `x`."""
        name = f"blk.{layer}"
        x = graph.add_inplace(x, self._product(graph, f"{name}.attn_output", attended))
        normed = self._normed(graph, x, f"{name}.ffn_norm")
        gate = self._product(graph, f"{name}.ffn_gate", normed)
        if f"{name}.ffn_up.weight" in self._weights:
            inner = graph.swiglu_split(gate, self._product(graph, f"{name}.ffn_up", normed))
        else:
            inner = graph.swiglu(gate)
        x = graph.add_inplace(x, self._product(graph, f"{name}.ffn_down", inner))
        graph.finish(x)
        return x

    def logits(self, graph: Graph, x: int, wanted: int, into: Place) -> None:
        normed = self._normed(graph, graph.get_rows(x, wanted), "output_norm")
        head = "output" if "output.weight" in self._weights else "token_embd"
        graph.finish(self._product(graph, head, normed, into))

    def _normed(self, graph: Graph, x: int, name: str) -> int:
        weight = self._weight(graph, f"{name}.weight")
        return int(graph.mul_inplace(graph.rms_norm(x, self._epsilon), weight))

    def _product(self, graph: Graph, name: str, x: int, into: Place | None = None) -> int:
        product: int = graph.mul_mat(self._weight(graph, f"{name}.weight"), x, into=into)
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

    def _weight(self, graph: Graph, name: str) -> int:
        weight = self._weights[name]
        return graph.over(self._memories[name], weight.rows, weight.columns, weight.kind)


def _divisors(theta: float, frequencies: Tensor) -> Tensor:
    """By what ggml is to divide the frequencies that it makes of theta, to have these."""
    exponents = torch.arange(len(frequencies), dtype=torch.float64) / len(frequencies)
    return (theta**-exponents / frequencies.double()).float()
