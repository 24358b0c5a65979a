"""Failed attempts: what has to be done before something that failed on the device is tried again, or left."""

from __future__ import annotations

import traceback

from engine.nonblocking_transfer import synchronize


def clean_up(error: Exception) -> Exception:
    """Make it safe to go on: what the failed attempt computed is let go of, since the next may need its
    memory, and nothing of it is under way any more. Raises where the device itself broke."""
    synchronize()
    at: BaseException | None = error
    while at is not None:
        traceback.clear_frames(at.__traceback__)
        at = at.__cause__ or at.__context__
    return error
