"""A GGUF file as a model folder: the file under the name that a folder has for it, and beside it what it says
of configuration and tokenizer, or what lies beside the file itself.

The folder is kept in the user's cache, by the file's path and age: a file that changes is another folder.
"""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

from engine.model.cache_folder import cache_folder, make_whole
from engine.model.preflight import GGUF_FILE

CONFIG, TOKENIZER = "config.json", "tokenizer.json"
LONGEST_STEM = 48  # characters, of a name that has more behind it here than the file's own
BESIDE = (  # what makes a model folder of the file's own
    CONFIG,
    TOKENIZER,
    "generation_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
)


def ensure(file: Path) -> Path:
    """The folder of a file, made first if need be."""
    whole = file.resolve()
    told = f"{whole} {whole.stat().st_size} {whole.stat().st_mtime_ns}"
    digest = hashlib.sha256(told.encode()).hexdigest()[:12]
    folder = cache_folder() / "gguf" / f"{file.stem[:LONGEST_STEM]}-{digest}"
    return folder if folder.is_dir() else make_whole(folder, lambda model: _fill(whole, model))


def _fill(file: Path, folder: Path) -> None:
    if all((file.parent / name).is_file() for name in (CONFIG, TOKENIZER)):
        for name in BESIDE:
            if (file.parent / name).is_file():
                shutil.copyfile(file.parent / name, folder / name)
    else:
        from engine.model.gguf_to_huggingface import convert  # brings transformers with it

        convert(file, folder)
    (folder / GGUF_FILE).symlink_to(file)
