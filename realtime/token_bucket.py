"""The token bucket: how much may be spent in how short a time.

It knows amounts and instants that it is told. It has no clock, and does not know what is counted.
"""

from __future__ import annotations


class TokenBucket:
    """A bucket of `burst`, that refills at `rate` a second. It may be overdrawn: what has come has come."""

    def __init__(self, *, rate: float, burst: float, now: float) -> None:
        self.rate = rate
        self.burst = burst
        self._spent = 0.0  # and not refilled yet
        self._at = now

    def spend(self, amount: float, now: float) -> float:
        """Take so much; the seconds until nothing is overdrawn any more, which may be 0."""
        self._spent = self._still_spent(now) + amount
        self._at = now
        return self.wait_s(0, now)

    def wait_s(self, amount: float, now: float) -> float:
        """The seconds until so much can be spent without overdrawing, which may be 0."""
        return max(0.0, self._still_spent(now) + amount - self.burst) / self.rate

    def _still_spent(self, now: float) -> float:
        return max(0.0, self._spent - (now - self._at) * self.rate)
