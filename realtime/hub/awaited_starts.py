"""The starts that were found to be in order, and whose text is being tokenized: each has its place among its
tenant's streams and all others, so that no more wait than can begin.

Pure. It knows streams by their keys, and no limit.
"""

from __future__ import annotations

from collections import Counter

from realtime.hub.stream_key import StreamKey


class AwaitedStarts:
    def __init__(self) -> None:
        self._keys = set[StreamKey]()
        self._of_tenant = Counter[str]()

    def add(self, key: StreamKey) -> None:
        if key not in self._keys:
            self._keys.add(key)
            self._of_tenant[key.tenant] += 1

    def discard(self, key: StreamKey) -> None:
        """It has begun, or will not."""
        if key in self._keys:
            self._keys.remove(key)
            self._of_tenant[key.tenant] -= 1
            if not self._of_tenant[key.tenant]:
                del self._of_tenant[key.tenant]

    def count(self, besides: StreamKey | None = None) -> int:
        return len(self._keys) - (besides in self._keys)

    def of_tenant(self, besides: StreamKey) -> int:
        """Of the same tenant."""
        return self._of_tenant[besides.tenant] - (besides in self._keys)
