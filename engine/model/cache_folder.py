"""Folders in the user's cache that appear whole or not at all: everything is made beside one and moved into
place last, by one process at a time.

It knows where they are kept, and not what is in them.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout

from engine.model.preflight import ModelError, expand_home, one_line

Say = Callable[[str], None]


def cache_folder() -> Path:
    cache = expand_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    return cache / "midstream" / "models"


def make_whole(folder: Path, fill: Callable[[Path], None], say: Say | None = None) -> Path:
    """Have `fill` fill an empty folder, and only then let it be seen as `folder`. Beside it, in the folder
    above, may lie what is not to stay."""
    say = say or to_stderr
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with _locked(folder, say):
            if not folder.is_dir():
                _make_beside(folder, fill)
    except ModelError:
        raise
    except Exception as error:  # of a full disk, libraries of another language tell in exceptions of no kind
        raise ModelError(f"the model cannot be kept in {folder.parent}: {one_line(error)}") from error
    return folder


def _locked(folder: Path, say: Say) -> AbstractContextManager[BaseFileLock]:
    lock = FileLock(folder.with_name(f".{folder.name}.lock"))
    try:
        return lock.acquire(timeout=0)
    except Timeout:
        say(f"Another process is making {folder}: waiting for it")
        return lock.acquire()


def _make_beside(folder: Path, fill: Callable[[Path], None]) -> None:
    part = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(
        part, ignore_errors=True
    )  # of a process that was killed: we hold the lock, so it is nobody's
    try:
        model = part / "model"
        model.mkdir(parents=True)
        fill(model)
        _let_everybody_read(model)
        model.replace(folder)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _let_everybody_read(folder: Path) -> None:
    """It is no secret, and who serves it may be another than who made it, as in a container's image. Files of
    weights are written for their owner alone."""
    for path in (folder, *folder.rglob("*")):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() else 0o644)


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
