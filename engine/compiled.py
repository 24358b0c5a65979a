"""Compiled functions: how we ask numba to compile, and where what it made is kept.

A function of known types is compiled when its module is imported, which takes seconds, or comes from a folder
in which an earlier process left it. The folder is named by the sources of the function's room: numba itself
looks at the file of a function and at nothing that it calls, and what was made of other noise would be other
noise.

It knows sources and numba, and nothing that is computed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from hashlib import blake2b
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import numba

Function = Callable[..., Any]


def compiled(*signatures: str, fastmath: set[str] | None = None) -> Callable[[Function], Any]:
    """A function of these types, or without any one that is part of those which call it. Each operation is
    rounded by itself unless `fastmath` says otherwise, and nobody holds the interpreter's lock."""
    options: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": fastmath or False}

    def compile_it(function: Function) -> Any:
        if not signatures:
            return numba.njit(**options)(function)
        return _kept(function, lambda cache: numba.njit(list(signatures), cache=cache, **options)(function))

    return compile_it


def callback(signature: str) -> Callable[[Function], int]:
    """A function that is called from C, by this address."""

    def compile_it(function: Function) -> int:
        make = partial(numba.cfunc, signature, error_model="numpy")
        made: Any = _kept(function, lambda cache: make(cache=cache)(function))
        address: int = made.address
        _alive.append(made)
        return address

    return compile_it


_alive: list[Any] = []  # what C may call


def _kept(function: Function, make: Callable[[bool], Any]) -> Any:
    folder = _folder(Path(function.__code__.co_filename).parent)
    if folder is None:
        return make(False)
    settings: Any = numba.config
    elsewhere, settings.CACHE_DIR = settings.CACHE_DIR, str(folder)
    try:
        return make(True)
    except (OSError, EOFError, UnpicklingError):  # no room, or what is there was never finished
        return make(False)
    finally:
        settings.CACHE_DIR = elsewhere


def _folder(room: Path) -> Path | None:
    """None where nothing can be kept."""
    sources = blake2b(digest_size=8)
    for path in sorted(room.glob("*.py")):
        sources.update(path.read_bytes())
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        folder = caches.expanduser() / "midstream" / "compiled" / sources.hexdigest()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # nowhere to write, or nobody's home
        return None
    return folder if os.access(folder, os.W_OK) else None
