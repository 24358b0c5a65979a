"""The bytes of messages that each payer has the server hold: of such as are not whole yet, and of such as
wait for the app. A connection bounds its own, and knows nothing of how many others its payer has.

It knows payers by some name, and sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable

SMALL = 64 << 10  # bytes of a connection's, which are not counted: frames that steer are shorter by far


class HeldMessages:
    """Of all connections. `held` is what each counts as now."""

    def __init__(self) -> None:
        self._bytes = Counter[Hashable]()  # by payer

    def count(self, payer: Hashable, counted: int, size: int) -> int:
        """A connection that was counted as so many bytes has so many now; returns as what that counts."""
        counts = size if size > SMALL else 0
        if counts != counted:
            self._bytes[payer] += counts - counted
            if not self._bytes[payer]:
                del self._bytes[payer]
        return counts

    def of(self, payer: Hashable) -> int:
        return self._bytes[payer]
