"""The work budget: what somebody makes the event loop do is paid for by them, in time.

It knows seconds of work, and of a clock that it is told. It does not know what the work is for, nor who else
there is.
"""

from __future__ import annotations

from realtime.token_bucket import TokenBucket

SHARE, BURST_S = 0.3, 0.08  # of the event loop's time in the long run, and at once
TURN_S = 0.004  # never so much in one go that others wait for it
ENGINE_S = 0.0003  # what a frame costs that the engine has to act on, in another process
READ_S = 20e-6  # what it costs to look at a socket, beside what is found there
ANSWER_S = 250e-6  # and to answer a request, beside what is done for it
CHARACTER_S = 40e-9  # a character of a text that a thread works at, which has the interpreter meanwhile


def steering_s(text_characters: int) -> float:
    """What a frame that steers costs beside the event loop's own time."""
    return ENGINE_S + CHARACTER_S * text_characters


class WorkBudget:
    def __init__(self, now: float, share: float = SHARE) -> None:
        self._bucket = TokenBucket(rate=share, burst=BURST_S, now=now)
        self._turn_s = 0.0  # of work since others had their turn

    def pay(self, work_s: float, now: float) -> float | None:
        """How long nothing more may be done for them, if others are to have their turn now."""
        wait_s = self._bucket.spend(work_s, now)
        self._turn_s += work_s
        if not wait_s and self._turn_s < TURN_S:
            return None
        self._turn_s = 0.0
        return wait_s

    def debt_s(self, now: float) -> float:
        """How long until all that was done for them is paid for, which may be 0."""
        return self._bucket.wait_s(0, now)

    def is_unspent(self, now: float) -> bool:
        """Whether it is like a new one."""
        return not self._bucket.wait_s(BURST_S, now)
