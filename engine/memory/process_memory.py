"""Process memory: what this process holds of the host's memory without need, and how it lets go of it.

Weights that were read from a file and packed are still there, as pages of the file; what packing took on the
way is still the allocator's. It knows calls of the system, where it has them, and nothing of models.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from pathlib import Path

SMAPS = Path("/proc/self/smaps")
MAPPING = re.compile(
    r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) \S+ \S+ \S+ \S+ +(?P<file>/.*)\n"
    r"(?:\w+: .*\n)*?Anonymous: +(?P<written>\d+) kB$",
    re.MULTILINE,
)


def let_go_of_file_pages(suffix: str, smaps: Path = SMAPS) -> None:
    """Have pages of files that are named so read again when they are needed. A mapping that was written to
    stays as it is: the file does not know what was written."""
    if not smaps.exists():
        return
    madvise = ctypes.CDLL(None).madvise
    for found in MAPPING.finditer(smaps.read_text()):
        if found["file"].endswith(suffix) and not int(found["written"]):
            start, end = int(found["start"], 16), int(found["end"], 16)
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)


def trim_heap() -> None:
    """Have the allocator return what is free: it would keep that for later, but nothing takes as much as a
    start does."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "malloc_trim"):  # glibc's
        libc.malloc_trim(0)
