"""What stands where a file was to be, and is none: a pipe, into which nobody may ever write, or a device.
Whoever opened it would wait, and everybody with him. And what is far too large to be what was meant.
"""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from stat import S_ISDIR, S_ISREG

log = logging.getLogger(__name__)

MOST_BYTES = 16 << 20  # of a file that people write: a hundred thousand keys have as many


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


def content_of(path: Path) -> bytes:
    """Of a file that people write. Raises OSError, also for what would fill the memory."""
    with path.open("rb") as file:
        too_large = os.fstat(file.fileno()).st_size > MOST_BYTES
        content = b"" if too_large else file.read(MOST_BYTES + 1)
    if too_large or len(content) > MOST_BYTES:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return content
