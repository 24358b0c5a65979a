"""Tiny random models, one of each architecture that is served, to be compared with `generate` in a blink.

Where an architecture mixes sliding and full layers, shares KV heads, caps its logits, has sinks or experts,
its tiny instance does too. Weights are drawn large, and heads not tied to embeddings, so that greedy output
wanders instead of repeating one token.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from engine import toy_model
from tests.fakes.paper_model import SHAPE

WINDOW = 8
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
EXPERTS = {"num_experts_per_tok": 2, "intermediate_size": 48}
PECULIAR: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": WINDOW, "head_dim": 24},
    "qwen2": {
        "use_sliding_window": True,
        "sliding_window": WINDOW,
        "max_window_layers": 2,
        "num_hidden_layers": 4,
    },
    "qwen3": {"head_dim": 32, "use_sliding_window": True, "sliding_window": WINDOW, "max_window_layers": 1},
    "qwen3_moe": {
        **EXPERTS,
        "num_experts": 4,
        "moe_intermediate_size": 48,
        "head_dim": 32,
        "mlp_only_layers": [1],
    },
    "gemma2": {
        "head_dim": 32,
        "num_hidden_layers": 4,
        "layer_types": MIXED,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 24,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 3.0,
    },
    "gemma3_text": {
        "head_dim": 32,
        "num_hidden_layers": 4,
        "layer_types": MIXED,
        "sliding_window": WINDOW,
        "query_pre_attn_scalar": 24,
    },
    "phi3": {"sliding_window": WINDOW + 3},
    "olmo2": {},
    "gpt_oss": {
        **EXPERTS,
        "num_local_experts": 4,
        "head_dim": 32,
        "num_hidden_layers": 4,
        "layer_types": MIXED,
        "sliding_window": WINDOW,
        "rope_parameters": {
            "rope_type": "yarn",
            "rope_theta": 10_000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    },
}
ARCHITECTURES = list(PECULIAR)


def tiny_model(
    architecture: str, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any
) -> PreTrainedModel:
    """A model in eval mode. `overrides` are fields of its configuration; `attn_implementation` may be one."""
    config = AutoConfig.for_model(architecture, **{**SHAPE, **PECULIAR[architecture], **overrides})
    # Grouped matrix products of experts know no float64.
    experts = {"experts_implementation": "eager"} if dtype is torch.float64 else {}
    auto: Any = AutoModelForCausalLM
    model: PreTrainedModel = auto.from_config(config, **experts)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for name, weight in model.named_parameters():
            weight.copy_(_drawn(name, weight, generator))
    return model.to(dtype).eval()  # type: ignore[arg-type,no-any-return]


def tiny_folder(
    parent: Path, architecture: str, seed: int = 0, dtype: torch.dtype = torch.float32, **overrides: Any
) -> Path:
    """The same model as a folder below `parent`, with the toy's tokenizer and chat template."""
    folder = parent / f"tiny-{architecture}"
    tiny_model(architecture, seed, dtype, **overrides).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(toy_model.FOLDER / name, folder / name)
    return folder


def _drawn(name: str, weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    noise = torch.randn(weight.shape, generator=generator)
    if "norm" in name:  # what a norm's weight means differs by architecture: stay near what it is
        return weight + 0.1 * noise
    if weight.dim() == 1:
        return 0.5 * noise
    scale = 1.0 if "embed" in name else 1.5 / weight.shape[-1] ** 0.5
    return scale * noise
