"""What stands where a file was to be, and is none: a pipe, into which nobody may ever write, or a device.
Whoever opened it would wait, and everybody with him.
"""

from __future__ import annotations

import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG


def is_endless(path: Path) -> bool:
    """What cannot be read at all is not: to read it says why."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - `Path.is_file` raises where it may not look
    except OSError:
        return False
    return not S_ISREG(mode) and not S_ISDIR(mode)
