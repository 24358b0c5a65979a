"""The streams that nobody listens to, and how many a tenant may have of them: they wait for somebody to come
back, and hold their places meanwhile. Where there are too many, the oldest goes of the connection that left
most of them.

Pure. It knows streams by their numbers, and neither when their time is over nor what becomes of them.
"""

from __future__ import annotations

from realtime.hub.fair_cache import FairCache


class DetachedStreams:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._of_tenant: dict[str, FairCache[int, int, None]] = {}

    def add(self, tenant: str, left_by: int, number: int) -> list[int]:
        """One that a connection of this number leaves behind; returns which are too many, now that it is
        there."""
        waiting = self._of_tenant.setdefault(tenant, FairCache(self._limit))
        gone = waiting.put(left_by, number, None)
        self._forget_if_empty(tenant)
        return gone

    def remove(self, tenant: str, number: int) -> None:
        """Somebody listens to it, or it has ended."""
        if tenant in self._of_tenant:
            self._of_tenant[tenant].pop(number)
            self._forget_if_empty(tenant)

    def _forget_if_empty(self, tenant: str) -> None:
        if not self._of_tenant[tenant]:
            del self._of_tenant[tenant]
