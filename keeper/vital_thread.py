"""What a process is there for, in a thread: where that dies, so does the process, and whoever keeps it starts
another. By itself a thread dies alone, and what it did is done by nobody."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

log = logging.getLogger(__name__)


def vital(what: str, work: Callable[[], None]) -> None:
    """For the thread to run. `what` it does, as the log is to say it, with its article."""
    try:
        work()
    except Exception:
        log.exception("%s has died, and its process ends; another is to take its place", what)
        os._exit(1)
