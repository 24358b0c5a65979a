"""A pipe that nobody reads, as a log or a terminal may be."""

from __future__ import annotations

import os
from contextlib import suppress


def filled(descriptor: int) -> int:
    """It has room for nothing more: how much it holds."""
    os.set_blocking(descriptor, False)
    count = 0
    with suppress(BlockingIOError):
        while True:
            count += os.write(descriptor, b"." * 1000)
    with suppress(BlockingIOError):
        while True:
            count += os.write(descriptor, b".")
    os.set_blocking(descriptor, True)
    return count
