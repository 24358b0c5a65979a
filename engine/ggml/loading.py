"""Loading a model for ggml: a folder, safetensors or GGUF, becomes one that computes.

ggml ends the process where shapes do not fit, so that they are compared before, with those that transformers
has for the same configuration.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import replace
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig, PreTrainedConfig

from engine.ggml.decoder import GgmlModel
from engine.ggml.panels import in_panels
from engine.ggml.weights import Weights, read_weights, weights_bytes
from engine.model.devices import check_memory
from engine.model.gguf_file import gguf_name
from engine.model.loading import why_not_loaded
from engine.model.preflight import ModelError, check_folder

log = getLogger(__name__)

CPU = torch.device("cpu")


def load(folder: Path, width: str) -> GgmlModel:
    """`width`: auto for the file's own, or f32, bf16, q8 or q4."""
    check_folder(folder)
    check_memory(weights_bytes(folder, width), CPU)
    began = time.perf_counter()
    generation = None
    try:
        with contextlib.suppress(OSError):  # not every folder has one
            generation = GenerationConfig.from_pretrained(folder)
        config = AutoConfig.from_pretrained(folder)
        weights = read_weights(folder, width)
        _check(folder, weights, config)
        weights.join_siblings()
        _lay_in_panels(weights)
        model = GgmlModel(config, generation, weights)
    except ModelError:
        raise
    except Exception as error:  # a broken folder may make transformers raise anything
        raise ModelError(why_not_loaded(folder, CPU, error)) from error
    log.info("the weights were read in %.1f s", time.perf_counter() - began)
    return model


def _lay_in_panels(weights: Weights) -> None:
    """Those matrices that products of ours multiply."""
    for name, weight in weights.by_name.items():
        if weight.in_panels:
            data = in_panels(weight.kind, weight.data, weight.rows, weight.columns)
            weights.by_name[name] = replace(weight, data=data)


def _check(folder: Path, weights: Weights, config: PreTrainedConfig) -> None:
    expected, found = _shapes(config), weights.by_name
    if missing := sorted(expected.keys() - found.keys()):
        raise ModelError(
            f"the weights in {folder} are incomplete: {missing[0]} is missing ({len(missing)} in all)"
        )
    for name, shape in expected.items():
        if (found[name].rows, found[name].columns) != shape:
            raise ModelError(f"the weights in {folder} do not fit its config.json: {name} has another shape")
    for name in found.keys() - expected.keys():
        del found[name]


def _shapes(config: PreTrainedConfig) -> dict[str, tuple[int, int]]:
    """Rows and columns of each weight, by its name in GGUF files."""
    auto: Any = AutoModelForCausalLM
    with torch.device("meta"):
        model = auto.from_config(config)
    named = {gguf_name(name): tuple(weight.shape) for name, weight in model.named_parameters()}
    return {name: shape if len(shape) == 2 else (1, *shape) for name, shape in named.items() if name}
