"""Tensor parallelism, by transformers: whether a model can be divided among devices, and what each holds.

It knows transformers' plans, which say of each layer how it is divided, and how many devices there are; it
knows no process.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoConfig, PreTrainedConfig
from transformers.distributed.configuration_utils import DistributedConfig

from engine.model.facts import ModelFacts
from engine.model.preflight import ModelError, check_folder

DIVIDED = ("num_attention_heads", "num_key_value_heads", "intermediate_size", "moe_intermediate_size")


def check(folder: Path, device: str, devices: int) -> None:
    """Raise `ModelError` unless so many devices of this kind are there, and can share the model."""
    check_folder(folder)
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # a broken file may make transformers raise anything
        raise ModelError(f"{folder / 'config.json'} cannot be read: {type(error).__name__}") from error
    _check_plan(config, devices)
    _check_devices(device, devices)


def load_options(devices: int) -> dict[str, Any]:
    """The arguments by which transformers reads only what this process is to hold, right to its device."""
    return {"distributed_config": DistributedConfig(tp_size=devices)}


def rank_facts(facts: ModelFacts, config: PreTrainedConfig, devices: int) -> ModelFacts:
    """The facts of what one device attends with: its share of the heads, or all where their products are
    gathered before attention."""
    plan = config.base_model_tp_plan or {}
    if plan.get("layers.*.self_attn.k_proj") != "colwise":
        return facts
    return msgspec.structs.replace(facts, heads=facts.heads // devices, kv_heads=facts.kv_heads // devices)


def _check_plan(config: PreTrainedConfig, devices: int) -> None:
    if not config.base_model_tp_plan:
        raise ModelError(
            f"the architecture {config.model_type} cannot be shared among {devices} devices: transformers "
            "has no plan for it; --devices 1 serves it on one"
        )
    for name in DIVIDED:
        number = getattr(config, name, None)
        if number and number % devices:
            raise ModelError(
                f"the model cannot be shared among {devices} devices: its {name} is {number}; "
                f"--devices must divide it"
            )


def _check_devices(device: str, devices: int) -> None:
    if device == "cuda":
        if (there := torch.cuda.device_count()) < devices:
            raise ModelError(f"--devices is {devices}, and torch sees {there} CUDA devices")
    elif device != "cpu":
        raise ModelError(
            f"--devices {devices} takes the first {devices} devices: --device must be cuda, not {device}"
        )
    elif torch.accelerator.current_accelerator() is not None:
        raise ModelError(
            f"--devices {devices} on the CPU needs a build of torch for the CPU alone; --device cuda or "
            "--devices 1 would do"
        )
