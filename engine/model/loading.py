"""Model loading: a name becomes a folder, a folder becomes a model ready to run.

It knows transformers and the memory of this machine, and nothing of how a model is run. Whatever is wrong
with a model is found before its weights are read where that can be, and is a `ModelError` in any case.
"""

from __future__ import annotations

import contextlib
import os
import re
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

from engine.model import default_model, gguf_folder
from engine.model.default_model import DEFAULT_MODEL
from engine.model.facts import ModelFacts, describe
from engine.model.gguf_file import GgufFile
from engine.model.preflight import (
    GGUF_FILE,
    SUPPORTED,
    ModelError,
    check_folder,
    expand_home,
    parameter_count,
)

log = getLogger(__name__)

__all__ = ["DEFAULT_MODEL", "SUPPORTED", "ModelError", "ModelFacts", "describe", "load", "resolve"]

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
HUB_ID = r"[\w-][\w.-]*/[\w-][\w.-]*"
HUB_FILES = ["*.safetensors", "*.json", "*.jinja"]
GIB = 2**30


def resolve(name: str = DEFAULT_MODEL) -> Path:
    """The folder of a model: the default one by its name, a local folder or GGUF file, or a hub id
    (`owner/name`, and `owner/name/file.gguf` for one of its GGUF files)."""
    folder = expand_home(name)
    if name == DEFAULT_MODEL:
        return default_model.ensure()
    if name and folder.is_dir():
        return folder
    if name.endswith(".gguf") and folder.is_file():
        return gguf_folder.ensure(folder)
    if found := re.fullmatch(rf"({HUB_ID})/(.+\.gguf)", name):
        return gguf_folder.ensure(_file_from_hub(*found.groups()))
    if re.fullmatch(HUB_ID, name):
        return _from_hub(name)
    raise ModelError(
        f"no model {name}: it is no folder or GGUF file here, no hub id (owner/name), and not {DEFAULT_MODEL}"
    )


def load(
    folder: Path, *, dtype: str = "auto", device: str = "cpu", attention: str = "sdpa", devices: int = 1
) -> PreTrainedModel:
    """The model of a folder, in eval mode on `device`; or what this process holds of it, where it is one of
    several that share a model among `devices`.

    `attention` names an attention function known to transformers, registered by us or its own.
    """
    config = check_folder(folder)
    place = _device(device)
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
        raise ModelError(_why_not(folder, place, error)) from error
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


def _why_not(folder: Path, place: torch.device, error: Exception) -> str:
    starved = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate" in str(error)
    if starved:  # torch's allocator for the CPU and a failed mmap say so only in their words
        return f"there is not enough memory on {place} for the weights in {folder}"
    return f"the model in {folder} cannot be loaded: {_sentence(error)}"


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # its client raises whatever its transport raises
        raise ModelError(
            f"{name} is no folder here, and not to be had from the hub: {_sentence(error)}"
        ) from error


def _file_from_hub(name: str, file: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, file))
    except Exception as error:  # as above
        raise ModelError(
            f"{name}/{file} is no file here, and not to be had from the hub: {_sentence(error)}"
        ) from error


def _device(name: str) -> torch.device:
    try:
        place = torch.device(name)
    except RuntimeError:
        raise ModelError(f"no device {name}: cpu, cuda and cuda:N are known") from None
    if place.type not in ("cpu", "cuda"):
        raise ModelError(f"the device {name} is not supported; cpu and cuda are")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"the device {name} is not there: torch sees {torch.cuda.device_count()} CUDA devices"
        )
    return place


def dtype_of(name: str, config: dict[str, Any], place: torch.device) -> torch.dtype:
    """`auto` is float32 on a CPU, where it is fastest, and what the weights were saved as on a GPU."""
    if name == "auto":
        saved = config.get("dtype") or config.get("torch_dtype")
        name = "float32" if place.type == "cpu" else str(saved or "bfloat16")
    if name not in DTYPES:
        raise ModelError(f"the dtype {name} is not supported; {', '.join(DTYPES)} are")
    return DTYPES[name]


def _check_not_distributed() -> None:
    """transformers would read the environment of a launcher as an order to share the weights out."""
    if (ranks := os.environ.get("WORLD_SIZE", "1")) != "1":
        raise ModelError(
            f"this process is one of {ranks} (WORLD_SIZE), and an engine starts its processes itself: start "
            "it without torchrun, and with --devices where a model needs several"
        )


def check_memory(needed: int, place: torch.device) -> None:
    free = torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else available_memory()
    if free is not None and needed > free:
        sizes = f"the weights take {needed / GIB:.1f} GiB, {free / GIB:.1f} are free"
        more = "; --devices shares a model among more" if place.type == "cuda" else ""
        raise ModelError(f"there is not enough memory on {place}: {sizes}{more}")


def available_memory(
    meminfo: Path = Path("/proc/meminfo"), limit: Path = Path("/sys/fs/cgroup/memory.max")
) -> int | None:
    """Bytes that this process may still take, or None where the system does not say."""
    known = []
    with contextlib.suppress(OSError):
        known += [int(kib) * 1024 for kib in re.findall(r"MemAvailable:\s+(\d+)", meminfo.read_text())]
    with contextlib.suppress(OSError, ValueError):  # "max" is no limit
        known.append(int(limit.read_text()))
    return min(known, default=None)


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


def _sentence(error: Exception) -> str:
    """What a library said, on one line and no longer than one reads."""
    return " ".join(str(error).split())[:300] or type(error).__name__
