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
HUB_FILES = ["*.safetensors", "*.json", "*.jinja"]


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
