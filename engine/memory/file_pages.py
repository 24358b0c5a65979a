"""File pages: what files have in this process's memory without need, and how it lets go of that.

Weights that were read and packed are still there as pages of their file, and so is what libraries needed
once, to be loaded. It knows calls of the system, where it has them, and nothing of models.
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


def let_go_of_file_pages(smaps: Path = SMAPS) -> None:
    """Have pages of files, weights and libraries, come again as they are needed. A mapping that was written
    to stays as it is: the file does not know what was written."""
    if not smaps.exists():
        return
    madvise = ctypes.CDLL(None).madvise
    for found in MAPPING.finditer(smaps.read_text()):
        if not int(found["written"]):
            start, end = int(found["start"], 16), int(found["end"], 16)
            madvise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), mmap.MADV_DONTNEED)
