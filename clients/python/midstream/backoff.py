"""Exponential backoff with full jitter: when to try again.

Pure: it has no clock and does not wait; it is told the time, and a random number.
"""

from __future__ import annotations

BASE_S = 0.1
CAP_S = 5.0
_DOUBLINGS = 16  # of the base, after which the cap has long been reached


class Backoff:
    """Tries until a deadline. `now` and `deadline` are seconds of any one clock."""

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self._tries = 0
        self._span_s = 0.0  # of the last wait

    def begin_anew(self, deadline: float, lasted_s: float) -> None:
        """What was tried had worked, for so long. Where that is less than was waited for it, waits go on to
        grow: a server that answers, and dies of it, is not asked again and again at once."""
        self.deadline = deadline
        if lasted_s >= self._span_s:
            self._tries = 0

    def wait_s(self, now: float, jitter: float, retry_after_s: float = 0.0) -> float | None:
        """How long to wait before the next try; None where the time does not reach for one.

        `jitter` is the part to take of a span that doubles with every try ("full jitter"), so that clients
        who lost the same server do not come back all at once. A server that says when is asked no sooner; a
        time that is past is none.
        """
        retry_after_s = max(retry_after_s, 0.0)
        left = self.deadline - now
        if left <= 0 or retry_after_s > left:
            return None
        self._span_s = min(CAP_S, BASE_S * 2.0 ** min(self._tries, _DOUBLINGS))
        self._tries += 1
        return min(retry_after_s + jitter * self._span_s, left)
