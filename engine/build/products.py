"""By which library a model's products are computed, and from weights of which width.

ggml's graphs compute it, on one CPU, where the package that carries ggml is installed and the architecture is
one that they know; all else is torch's, in float32 or what a device computes in. It knows the options and a
folder's headers.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

from engine.api import EngineOptions
from engine.model.preflight import GGUF_FILE, ModelError

log = logging.getLogger(__name__)

WIDE = "f32"
EIGHT_BITS = "q8"
SMALL = 2**30  # bytes in eight bits
WEIGHTS = ("auto", WIDE, "bf16", EIGHT_BITS, "q4")


def ggml_width(options: EngineOptions, folder: Path, device: str) -> str | None:
    """In which width ggml is to have the weights, auto for that of the file; None where torch computes.

    Raises `ModelError` where what was asked for is not to be had.
    """
    if options.weights not in WEIGHTS:
        raise ModelError(f"no weights {options.weights}: {', '.join(WEIGHTS)} are known")
    is_narrow = (folder / GGUF_FILE).is_file()
    if is_narrow and options.devices > 1:
        raise ModelError("a GGUF file cannot be shared among devices: --devices 1 serves it")
    is_wide = options.weights == WIDE or (options.weights == "auto" and not is_narrow)
    if why := _why_not(options, folder, device):
        if not is_wide and options.weights != "auto":
            raise ModelError(f"--weights {options.weights} cannot be had: {why}; f32 can")
        if not is_wide:
            log.info("the weights are made as wide as torch computes: %s", why)
        return None
    if is_wide:
        return WIDE
    if options.weights == "auto" and _is_better_in_eight_bits(folder):
        return EIGHT_BITS
    return options.weights


def check_mergeable(options: EngineOptions, folder: Path) -> None:
    """Raises `ModelError` where the weights cannot be those of an adapter merged into a model's."""
    if (folder / GGUF_FILE).is_file():
        raise ModelError(
            "an adapter is merged into float weights: a model in safetensors has them, with --weights auto or"
            " f32"
        )
    if options.devices > 1:
        raise ModelError("an adapter cannot be merged into a model that devices share: --devices 1 can")


def _is_better_in_eight_bits(folder: Path) -> bool:
    """Fewer bits are multiplied more slowly, by several rows and by prompts, and one row gains little where
    the weights are few: then their size is no reason either."""
    from engine.ggml.weights import weights_bytes

    narrow = weights_bytes(folder, "auto")  # without reading a header, which takes longer
    return narrow < SMALL and narrow < weights_bytes(folder, EIGHT_BITS) <= SMALL


def _why_not(options: EngineOptions, folder: Path, device: str) -> str | None:
    if device != "cpu" or options.devices > 1:
        return f"ggml computes on one CPU, and the model is on {device}"
    if options.adapter:
        return "adapters are merged by torch"
    if options.attention != "auto":
        return f"ggml attends in its own graphs, and --attention is {options.attention}"
    if options.dtype not in ("auto", "float32"):
        return f"ggml computes in float32, and --dtype is {options.dtype}"
    from engine.ggml import family, library

    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return None  # who loads it says what is wrong
    return family.why_not(config) or library.why_not()
