"""LoRA adapters of random numbers for tiny models, in PEFT's format."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from engine.model import adapter
from engine.model.loading import load

RANK, ALPHA = 4, 6.0
MODULES = [
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.mlp.down_proj",
    "model.layers.2.self_attn.v_proj",
]


def lora(base: Path, folder: Path, modules: Sequence[str] = MODULES, **config: Any) -> dict[str, Tensor]:
    """An adapter of random numbers; returns the changes of weights, unscaled."""
    folder.mkdir(exist_ok=True)
    model = load(base, dtype="float32")
    torch.manual_seed(1)
    tensors, changes = {}, {}
    for module in modules:
        rows, columns = model.state_dict()[f"{module}.weight"].shape
        patterns = config.get("rank_pattern", {}).items()
        rank = next((rank for end, rank in patterns if module.endswith(f".{end}")), RANK)
        down, up = torch.randn(rank, columns), torch.randn(rows, rank)
        tensors[f"base_model.model.{module}.lora_A.weight"] = down
        tensors[f"base_model.model.{module}.lora_B.weight"] = up
        changes[module] = up @ down
    save_file(tensors, folder / adapter.WEIGHTS)
    usual = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": ALPHA,
        "bias": "none",
        "target_modules": ["q_proj"],
    }
    (folder / adapter.CONFIG).write_text(json.dumps(usual | config))
    return changes
