"""Mapped memory: zeros of the host, which take memory page by page as they are written, and give it back.

It knows the system's pages, and nothing of what is kept in them.
"""

from __future__ import annotations

import mmap
from math import gcd

import torch
from torch import Tensor


def items_in_whole_pages(item_bytes: int) -> int:
    """The fewest items, one behind the other, that fill pages without a rest."""
    return mmap.PAGESIZE // gcd(mmap.PAGESIZE, item_bytes)


class MappedMemory:
    def __init__(self, size: int) -> None:
        try:
            # Not shared, as Python would have it: what is shared is no process's own to give back.
            self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise MemoryError(f"{size} bytes cannot be had: {error.strerror}") from error
        # A token of the KV cache is written to hundreds of places far apart: a huge page for each would take
        # at once what thousands of tokens need.
        self._advise("MADV_NOHUGEPAGE", 0, size)

    def tensor(self, dtype: torch.dtype) -> Tensor:
        """All of it as numbers, which hold the memory for as long as they are there."""
        return torch.frombuffer(self._map, dtype=dtype)

    def give_back(self, start: int, size: int) -> None:
        """Whole pages, whose numbers nobody needs any more: on Linux they are zeros again; elsewhere the
        system may leave them as they are."""
        self._advise("MADV_DONTNEED", start, size)

    def _advise(self, advice: str, start: int, size: int) -> None:
        if hasattr(mmap, advice):  # not every system knows all of them
            self._map.madvise(getattr(mmap, advice), start, size)
