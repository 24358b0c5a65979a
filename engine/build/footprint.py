"""What a model takes of its machine's memory, as its options and files say: whoever finds machines for
engines asks before any of it is loaded.

It is the least with which it serves: its weights, and room for one stream of full length, or for as many
tokens as were asked for. A KV cache takes more as it is used.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from pathlib import Path

import torch

from engine import api
from engine.build.budgets import step_tokens
from engine.build.products import ggml_width
from engine.model.devices import dtype_of
from engine.model.facts import ModelFacts
from engine.model.layer_groups import LayerGroup, group_layers
from engine.model.preflight import check_folder, parameter_count
from engine.schedule.windows import Windows

CPU = torch.device("cpu")


def least_bytes(options: api.EngineOptions, folder: Path, facts: ModelFacts) -> int:
    """On a CPU."""
    width = ggml_width(options, folder, CPU.type)
    dtype = torch.float32 if width else dtype_of(options.dtype, check_folder(folder), CPU)
    context = min(options.context or facts.context, facts.context)
    groups = group_layers(facts.windows, context)
    kept = Windows(
        tuple(group.window for group in groups),
        options.block_size,
        step_tokens(options.step_tokens, CPU.type),
    )
    tokens = options.kv_tokens or tokens_of_longest(kept, context)
    return _weights_bytes(folder, width, dtype) + tokens * bytes_per_token(facts, groups, dtype)


def bytes_per_token(facts: ModelFacts, groups: Several[LayerGroup], dtype: torch.dtype) -> int:
    """That all layers keep, places included that no layer of a group has."""
    places = max(len(group.layers) for group in groups)
    return 2 * places * len(groups) * facts.kv_heads * facts.head_dim * dtype.itemsize


def tokens_of_longest(kept: Windows, context: int) -> int:
    """Of a cache that has room for one sequence of full length."""
    return -(-kept.blocks(context) * kept.block_size // len(kept.sizes))


def _weights_bytes(folder: Path, width: str | None, dtype: torch.dtype) -> int:
    if width is None:
        return parameter_count(folder) * dtype.itemsize
    from engine.ggml.weights import weights_bytes  # brings the library

    return weights_bytes(folder, width)
