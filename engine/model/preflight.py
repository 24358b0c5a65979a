"""Preflight checks of a model folder by its headers: is it whole, is it one that we serve, how large is it.

It knows files and JSON, never a tensor's values and no torch, so that a refusal costs milliseconds. Every
refusal is a `ModelError`: one sentence for whoever starts the server.
"""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from engine.model.config_check import end_token_flaws, flaw

CONFIG, GENERATION = "config.json", "generation_config.json"
GGUF_FILE = "model.gguf"  # which may stand in a model folder in place of safetensors


class ModelError(Exception):
    """Why a model cannot be served, in one sentence."""


def one_line(error: Exception) -> str:
    """What a library said, on one line and no longer than one reads."""
    return " ".join(str(error).split())[:300] or type(error).__name__


def expand_home(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # neither HOME nor an entry in the list of users, as in many a container
        raise ModelError(
            f"there is no home folder to find {name} in: set HOME (for the default model XDG_CACHE_HOME will "
            "do), or say another folder by --model"
        ) from None


SUPPORTED = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "qwen3_moe": "Qwen3MoeForCausalLM",
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "phi3": "Phi3ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
    "gpt_oss": "GptOssForCausalLM",
}


def check_folder(folder: Path) -> dict[str, Any]:
    """The folder's config, once it is known to hold a whole model that we serve."""
    if not folder.is_dir():
        raise ModelError(f"the model folder {folder} does not exist")
    config = _read_json(folder / CONFIG)
    _check_supported(folder, config)
    if wrong := flaw(config):
        raise ModelError(f"{folder / CONFIG} is broken: {wrong}")
    if (generation := folder / GENERATION).is_file() and (
        wrong := next(end_token_flaws(_read_json(generation)), None)
    ):
        raise ModelError(f"{generation} is broken: {wrong}")
    if not (folder / "tokenizer.json").is_file():
        raise ModelError(f"the model folder {folder} holds no tokenizer.json")
    if not (folder / GGUF_FILE).is_file():
        for file in weight_files(folder):
            _shapes(file)
    return config


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that make up the weights, in the order that their index names them."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ModelError(f"the model folder {folder} holds no weights, as safetensors or {GGUF_FILE}")
    names = _read_json(index).get("weight_map")
    if not isinstance(names, dict) or not names or not all(isinstance(name, str) for name in names.values()):
        raise ModelError(f"{index} is broken: it maps no weights to files")
    return [folder / name for name in dict.fromkeys(names.values())]


def parameter_count(folder: Path) -> int:
    """As the headers of the weights say."""
    if (file := folder / GGUF_FILE).is_file():
        from engine.model.gguf_file import GgufFile  # brings torch with it

        return GgufFile(file).parameter_count
    return sum(prod(shape) for file in weight_files(folder) for shape in _shapes(file))


def _check_supported(folder: Path, config: dict[str, Any]) -> None:
    kind = config.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(f"{folder / CONFIG} is broken: it names no model_type")
    if kind not in SUPPORTED:
        raise ModelError(f"the architecture {kind} is not supported; supported are {', '.join(SUPPORTED)}")
    named = config.get("architectures") or [SUPPORTED[kind]]
    if not isinstance(named, list):
        raise ModelError(f"{folder / CONFIG} is broken: architectures is {named!r:.80}, and must be a list")
    if named != [SUPPORTED[kind]]:
        raise ModelError(f"{named[0]} is not supported; of {kind} models, {SUPPORTED[kind]} is")
    if quantization := config.get("quantization_config"):
        method = (
            quantization.get("quant_method", "unknown") if isinstance(quantization, dict) else quantization
        )
        raise ModelError(f"the weights in {folder} are quantized ({method}), which is not supported")
    if config.get("use_bidirectional_attention"):
        raise ModelError(
            f"the model in {folder} attends in both directions, so it cannot generate token by token"
        )


def _read_json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except FileNotFoundError:
        raise ModelError(f"the model folder {file.parent} holds no {file.name}") from None
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"{file} is broken: {error}") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} is broken: it is no JSON object")
    return value


def _shapes(file: Path) -> list[list[int]]:
    try:
        file.open("rb").close()  # safetensors says of whatever it cannot open that it is missing
    except FileNotFoundError:
        raise ModelError(f"the weights are incomplete: {file} is missing") from None
    except OSError as error:
        raise ModelError(f"{file} cannot be read: {error.strerror}") from error
    try:
        with safe_open(file, framework="numpy") as tensors:
            return [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise ModelError(f"the weights in {file} are truncated or corrupt ({error})") from error
