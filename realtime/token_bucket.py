"""How much may come from one peer in how short a time.

It knows amounts and instants that it is told. It has no clock, and does not know what is counted.
"""

from __future__ import annotations


class Pace:
    """A bucket of `burst`, that refills at `rate` a second. It may be overdrawn: what has come has come."""

    def __init__(self, *, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._left = burst
        self._at = now

    def spend(self, amount: float, now: float) -> float:
        """Take so much; the seconds until nothing is overdrawn any more, which may be 0."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate) - amount
        self._at = now
        return max(0.0, -self._left / self._rate)
