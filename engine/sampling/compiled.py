"""Compiled functions: how we ask numba to compile, and where what it made is kept.

A function of known types is compiled when its module is imported, which takes seconds, or comes from a folder
in which an earlier process left it. The folder is named by our sources: numba itself looks at the file of a
function and at nothing that it calls, and what was made of other noise would be other noise.

It knows sources and numba, and nothing that is computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numba

Function = Callable[..., Any]


def compiled(*signatures: str, fastmath: set[str] | None = None) -> Callable[[Function], Any]:
    """A function of these types, or without any one that is part of those which call it. Each operation is
    rounded by itself unless `fastmath` says otherwise, and nobody holds the interpreter's lock."""

    def compile_it(function: Function) -> Any:
        options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath or False}
        make = numba.njit(list(signatures) or None, **options)
        folder = _folder() if signatures else None
        if folder is None:
            return make(function)
        settings: Any = numba.config
        elsewhere, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
        try:
            return numba.njit(list(signatures), cache=True, **options)(function)
        except (OSError, EOFError, UnpicklingError):  # no room, or what is there was never finished
            return make(function)
        finally:
            settings.CACHE_DIR = elsewhere

    return compile_it


def _folder() -> Path | None:
    """None where nothing can be kept."""
    sources = blake2b(digest_size=8)
    for path in sorted(Path(__file__).parent.glob("*.py")):
        sources.update(path.read_bytes())
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        folder = caches.expanduser() / "midstream" / "compiled" / sources.hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # nowhere to write, or nobody's home
        return None
    return folder if os.access(folder, os.W_OK) else None
