"""A model's name becomes the folder that holds it.

It knows folders, GGUF files, the default model and the hub, and nothing of what a folder holds.
"""

from __future__ import annotations

import re
from pathlib import Path

from engine.model import default_model, gguf_folder
from engine.model.default_model import DEFAULT_MODEL
from engine.model.preflight import ModelError, expand_home, one_line

HUB_ID = r"[\w-][\w.-]*/[\w-][\w.-]*"
HUB_FILE = rf"({HUB_ID})/(.+\.gguf)"
HUB_FILES = ["*.safetensors", "*.json", "*.jinja"]


def resolve(name: str = DEFAULT_MODEL) -> Path:
    """The folder of a model: the default one by its name, a local folder or GGUF file, or a hub id
    (`owner/name`, and `owner/name/file.gguf` for one of its GGUF files)."""
    check_name(name)
    if name == DEFAULT_MODEL:
        return default_model.ensure()
    if (here := _here(name)) is not None:
        return here if here.is_dir() else gguf_folder.ensure(here)
    if found := re.fullmatch(HUB_FILE, name):
        return gguf_folder.ensure(_file_from_hub(*found.groups()))
    return _from_hub(name)


def check_name(name: str) -> None:
    """Raises ModelError where nothing can be had by it, as it says itself, or a look at the disk: before
    libraries are loaded, and the hub is asked, for what cannot be."""
    if not (name == DEFAULT_MODEL or _here(name) or re.fullmatch(f"{HUB_FILE}|{HUB_ID}", name)):
        raise ModelError(
            f"no model {name}: it is no folder or GGUF file here, no hub id (owner/name), and not"
            f" {DEFAULT_MODEL}"
        )


def _here(name: str) -> Path | None:
    """The folder or GGUF file on this machine that it is, if it is one."""
    path = expand_home(name)
    try:
        is_one = path.is_dir() if name else False
        return path if is_one or (name.endswith(".gguf") and path.is_file()) else None
    except OSError as error:  # a folder above it that is closed to us, a name that is too long
        raise ModelError(f"{name} cannot be looked at: {error.strerror}") from None


def _from_hub(name: str) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(name, allow_patterns=HUB_FILES))
    except Exception as error:  # its client raises whatever its transport raises
        raise ModelError(
            f"{name} is no folder here, and not to be had from the hub: {one_line(error)}"
        ) from error


def _file_from_hub(name: str, file: str) -> Path:
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(name, file))
    except Exception as error:  # as above
        raise ModelError(
            f"{name}/{file} is no file here, and not to be had from the hub: {one_line(error)}"
        ) from error
