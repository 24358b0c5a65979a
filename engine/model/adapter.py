"""Adapters: low-rank changes of a model's weights (LoRA), as PEFT writes them, merged into the weights as
these are loaded.

A merged model is computed as any other, at no cost a token, and is a model of its own. It knows PEFT's files.
What cannot be merged exactly is a `ModelError`: one sentence for whoever starts the server.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from math import sqrt
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, convert
from safetensors import SafetensorError, safe_open
from torch import Tensor
from transformers import PreTrainedModel

from engine.model.config_check import LAST
from engine.model.preflight import ModelError

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."
Rank = Annotated[int, Meta(gt=0, le=LAST)]
A, B = ".lora_A.weight", ".lora_B.weight"
# What changes more than weights by a product, and by what value it does not.
_NOT_MERGED = {
    "use_dora": False,
    "modules_to_save": None,
    "bias": "none",
    "fan_in_fan_out": False,
    "lora_bias": False,
    "trainable_token_indices": None,
    "target_parameters": None,
}


class _Config(Struct):
    """As far as the sum hangs on it."""

    r: Rank
    lora_alpha: Annotated[float, Meta(gt=0)]
    peft_type: str = "LORA"
    use_rslora: bool = False
    rank_pattern: dict[str, Rank] | None = None
    alpha_pattern: dict[str, float] | None = None

    def rank(self, module: str) -> int:
        return int(_of(self.rank_pattern, module, self.r))

    def scale(self, module: str) -> float:
        rank = self.rank(module)
        alpha = _of(self.alpha_pattern, module, self.lora_alpha)
        return alpha / (sqrt(rank) if self.use_rslora else rank)


def check(folder: Path) -> None:
    """That it is an adapter which can be merged, as far as its configuration says."""
    _config(folder)


def merge(model: PreTrainedModel, folder: Path) -> None:
    """Each weight that the adapter changes becomes W + scale * B @ A, rounded once."""
    config, found = _config(folder), _tensors(folder)
    embeddings = model.get_input_embeddings().weight
    for name in sorted(found):
        if name.endswith(A):
            module = name.removesuffix(A)
            weight = _weight(model, folder, module)
            if weight is embeddings:
                raise ModelError(f"the adapter in {folder} changes {module}, whose weights are shared")
            down, up = found[name].to(weight.device).float(), found[module + B].to(weight.device).float()
            if up.shape != weight.shape[:1] + down.shape[:1] or down.shape[1:] != weight.shape[1:]:
                raise ModelError(f"the adapter in {folder} is another model's: {module} has another shape")
            if len(down) != (rank := config.rank(module)):  # nor would it be scaled as it was trained
                raise ModelError(
                    f"the adapter in {folder} is not as it says: {module} has rank {len(down)} there, and "
                    f"{rank} in its {CONFIG}"
                )
            change = config.scale(module) * (up @ down)
            weight.copy_((weight.float() + change).to(weight.dtype))
            if not weight.isfinite().all():  # nor would any token of it be a number
                raise ModelError(f"the adapter in {folder} makes weights of {module} that are no numbers")


def _weight(model: PreTrainedModel, folder: Path, module: str) -> Tensor:
    try:
        weight = model.get_submodule(module).weight
    except AttributeError:
        weight = None
    if not isinstance(weight, Tensor) or weight.dim() != 2:
        raise ModelError(f"the adapter in {folder} changes {module}, which the model does not have so")
    return weight


def _tensors(folder: Path) -> dict[str, Tensor]:
    """By the names that the model has for them. Each A has its B, and there is nothing else."""
    try:
        with safe_open(folder / WEIGHTS, framework="pt") as file:
            found = {name.removeprefix(PREFIX): file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ModelError(f"the adapter folder {folder} holds no {WEIGHTS}") from None
    except (SafetensorError, OSError) as error:
        raise ModelError(f"the weights in {folder / WEIGHTS} are truncated or corrupt ({error})") from error
    modules = {name.removesuffix(A).removesuffix(B) for name in found}
    if not modules or found.keys() != {module + part for module in modules for part in (A, B)}:
        raise ModelError(f"the adapter in {folder} has weights that are no pairs of lora_A and lora_B")
    return found


def _config(folder: Path) -> _Config:
    file = folder / CONFIG
    try:
        said: dict[str, Any] = json.loads(file.read_bytes())
        config = convert(said, _Config)
    except FileNotFoundError:
        raise ModelError(f"the adapter folder {folder} holds no {CONFIG}") from None
    except (OSError, ValueError, RecursionError) as error:  # msgspec's ValidationError is the second
        raise ModelError(f"{file} is broken: {error}") from error
    if config.peft_type != "LORA":
        raise ModelError(f"the adapter in {folder} is {config.peft_type}; LORA alone can be merged")
    _check_patterns(file, config)
    for key, usual in _NOT_MERGED.items():
        value = said.get(key)
        if value and value != usual:
            raise ModelError(f"the adapter in {folder} has {key} = {value!r}, which cannot be merged")
    return config


def _check_patterns(file: Path, config: _Config) -> None:
    for field in ("rank_pattern", "alpha_pattern"):
        for key in getattr(config, field) or {}:
            try:
                re.compile(_ending(key))
            except (re.error, OverflowError, RecursionError) as error:
                raise ModelError(
                    f"{file} is broken: {key[:80]!r} in {field} is no regular expression ({error})"
                ) from error


def _of(pattern: Mapping[str, float] | None, module: str, usual: float) -> float:
    """As PEFT looks a module up: by the end of its name."""
    for key, value in (pattern or {}).items():
        if re.match(_ending(key), module):
            return float(value)
    return usual


def _ending(key: str) -> str:
    return rf"(.*\.)?({key})$"
