"""The heap of this process, gateway or engine: it knows the allocator, and nothing else, so that both may
import it."""

from __future__ import annotations

import ctypes
import gc


def trim_heap() -> None:
    """Have the allocator return what is free. It would keep it for the next that takes as much, but nothing
    takes as much as a start does."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc's
        libc.malloc_trim(0)


def settle_heap() -> None:
    """Have the collector look no more at what is there: it is there to stay, as modules are. Each look at all
    of it, as comes when a crowd of streams has come, would hold up whoever waits for a token."""
    gc.collect()
    gc.freeze()
