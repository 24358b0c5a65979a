"""Model loading: a folder becomes a model ready to run.

It knows transformers, and nothing of how a model is run. Whatever is wrong with a model is found before its
weights are read where that can be, and is a `ModelError` in any case.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from importlib.util import find_spec
from logging import getLogger
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from engine.model.devices import check_memory, device_named, dtype_of, lacks_memory
from engine.model.gguf_file import GgufFile
from engine.model.preflight import GGUF_FILE, SUPPORTED, ModelError, check_folder, one_line, parameter_count

log = getLogger(__name__)


def load(
    folder: Path, *, dtype: str = "auto", device: str = "cpu", attention: str = "sdpa", devices: int = 1
) -> PreTrainedModel:
    """The model of a folder, in eval mode on `device`; or what this process holds of it, where it is one of
    several that share a model among `devices`.

    `attention` names an attention function known to transformers, registered by us or its own.
    """
    config = check_folder(folder)
    place = device_named(device)
    number = dtype_of(dtype, config, place)
    size = parameter_count(folder) * number.itemsize
    _check_not_distributed()
    check_memory(size if place.type == "cpu" else size // devices, place)
    log.info("reading %.2f GB of weights to %s in %s", size / 1e9, place, str(number).removeprefix("torch."))
    began = time.perf_counter()
    try:
        with _progress_bar_on_terminals_only():
            model, report = _read(folder, number, attention, _load_options(place, devices))
        _freeze(model, place)
    except Exception as error:  # a broken folder may make transformers raise anything
        raise ModelError(why_not_loaded(folder, place, error)) from error
    _check_complete(folder, report)
    log.info("the weights were read in %.1f s", time.perf_counter() - began)
    return model


def _load_options(place: torch.device, devices: int) -> dict[str, Any]:
    if devices == 1:
        return direct_to_device(place)
    from engine.model import tensor_parallel  # brings torch's distributed tensors with it

    return tensor_parallel.load_options(devices)


def direct_to_device(place: torch.device) -> dict[str, Any]:
    """The arguments by which transformers puts each weight where it belongs as it is read: with the package
    accelerate it can; without it, all of them pass through the host's memory first."""
    if place.type == "cpu":
        return {}
    if find_spec("accelerate") is None:
        log.info("the weights pass through the host's memory: with the package accelerate they would not")
        return {}
    return {"device_map": {"": place}}


def _read(
    folder: Path, number: torch.dtype, attention: str, options: dict[str, Any]
) -> tuple[PreTrainedModel, dict[str, Any]]:
    experts = (
        {"experts_implementation": "eager"} if number is torch.float64 else {}
    )  # grouped ones know no float64
    reader: Any = AutoModelForCausalLM  # its annotations do not know `output_loading_info`
    source: dict[str, Any] = {"pretrained_model_name_or_path": folder}
    if (file := folder / GGUF_FILE).is_file():
        config = AutoConfig.from_pretrained(folder)
        weights = GgufFile(file).state_dict(config)
        source = {"pretrained_model_name_or_path": None, "config": config, "state_dict": weights}
        reader = getattr(transformers, SUPPORTED[config.model_type])
    model, report = reader.from_pretrained(
        **source,
        dtype=number,
        attn_implementation=attention,
        use_safetensors=True,
        trust_remote_code=False,
        local_files_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # in the report, and refused there
        **options,
        **experts,
    )
    return model, report


@contextlib.contextmanager
def _progress_bar_on_terminals_only() -> Iterator[None]:
    """transformers draws its progress bar into log files too."""
    silence = logging.is_progress_bar_enabled() and not sys.stderr.isatty()
    if silence:
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        if silence:
            logging.enable_progress_bar()  # type: ignore[no-untyped-call]


def _freeze(model: PreTrainedModel, place: torch.device) -> None:
    model.requires_grad_(False)
    model.train(False)
    model.to(place)  # type: ignore[arg-type]
    for module in model.modules():
        if hasattr(module, "rope_type"):
            module.rope_type = _static_rope(module.rope_type)


def _static_rope(rope: Any) -> Any:
    """The same rope without reading positions, for which the host would wait in every step: no sequence
    becomes as long as those for which frequencies change (`facts`)."""
    if isinstance(rope, dict):
        return {layers: _static_rope(kind) for layers, kind in rope.items()}
    return "default" if rope in ("dynamic", "longrope") else rope


def why_not_loaded(folder: Path, place: torch.device, error: Exception) -> str:
    if lacks_memory(error):
        return f"there is not enough memory on {place} for the weights in {folder}"
    return f"the model in {folder} cannot be loaded: {one_line(error)}"


def _check_not_distributed() -> None:
    """transformers would read the environment of a launcher as an order to share the weights out."""
    if (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise ModelError(
            f"this process is one of {ranks} (WORLD_SIZE), and an engine starts its processes itself: start "
            "it without torchrun, and with --devices where a model needs several"
        )


def _check_complete(folder: Path, report: dict[str, Any]) -> None:
    """transformers fills what the file lacks with random numbers: refuse that."""
    if missing := sorted(report["missing_keys"]):
        raise ModelError(
            f"the weights in {folder} are incomplete: {missing[0]} is missing ({len(missing)} in all)"
        )
    if mismatched := sorted(report["mismatched_keys"]):
        raise ModelError(
            f"the weights in {folder} do not fit its config.json: {mismatched[0][0]} has another shape"
        )
