"""A stranger has a machine of their own. Where theirs and the server are one, they have only that time of the
processors which nobody else wants: else it would be they who take it from others, and not the server."""

from __future__ import annotations

import os


def keep_to_idle_processors() -> None:
    """This process. A processor that is busy with nothing else counts as idle, for whoever wakes up."""
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    else:
        os.nice(19)
