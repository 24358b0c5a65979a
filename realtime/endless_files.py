"""What stands where a file was to be, and is none: a pipe, into which nobody may ever write, or a device.
Whoever opened it would wait, and everybody with him.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG

log = logging.getLogger(__name__)


def is_endless(path: Path) -> bool:
    """What cannot be read at all is not: to read it says why."""
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116 - `Path.is_file` raises where it may not look
    except OSError:
        return False
    return not S_ISREG(mode) and not S_ISDIR(mode)


def tell_if_endless(path: Path) -> None:
    """As what another program says, which is enough for a start."""
    if is_endless(path):
        log.warning("%s is no file: it is read to its end now, and never again", path)
