"""The heap of this process, gateway or engine: it knows the allocator, and nothing else, so that both may
import it."""

from __future__ import annotations

import ctypes


def trim_heap() -> None:
    """Have the allocator return what is free. It would keep it for the next that takes as much, but nothing
    takes as much as a start does."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc's
        libc.malloc_trim(0)
