"""A backoff: how long to wait before the next attempt, twice as long each time. It has no clock, and does not
know what is attempted."""

from __future__ import annotations


class Backoff:
    def __init__(self, *, first_s: float, longest_s: float) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._wait_s = 0.0

    def next_s(self) -> float:
        """The seconds to wait now."""
        self._wait_s = min(max(self._first_s, 2 * self._wait_s), self._longest_s)
        return self._wait_s

    def reset(self) -> None:
        """It went well: should it fail again, that begins anew."""
        self._wait_s = 0.0
