"""Work as it is counted where nothing is to be timed: by the lines of Python that are run, once for each turn
of a loop. Whatever runs in C counts as the line that calls it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any


class Work:
    lines = 0


@contextmanager
def counted() -> Iterator[Work]:
    """In this thread."""
    work, before = Work(), sys.gettrace()

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            work.lines += 1
        return trace

    sys.settrace(trace)
    try:
        yield work
    finally:
        sys.settrace(before)
