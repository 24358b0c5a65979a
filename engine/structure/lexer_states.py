"""The lexer states of matchers: how many each may have, which is what a matcher takes of memory, and how many
all of a tenant's may.

Most grammars need a few dozen. So every matcher has the first for nothing, and one that needs more is given
twice as many, while there is room: for a tenant a half of it, however many streams it has. It knows tenants
and numbers, and no grammar; it is asked from several threads.
"""

from __future__ import annotations

from threading import Lock
from weakref import WeakSet

FIRST = 512
MOST = 20_000  # of one matcher: some 30 MB
ROOM = 16 * MOST  # of all together, beside their first


class StateShare:
    """Of one matcher, for as long as that is held."""

    def __init__(self, states: LexerStates, tenant: int) -> None:
        self._states = states
        self.tenant = tenant
        self.limit = FIRST

    @property
    def beyond_first(self) -> int:
        return self.limit - FIRST

    def grow(self) -> bool:
        """Have twice as many; False where there is no room."""
        return self._states.grow(self)


class LexerStates:
    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._shares = WeakSet[StateShare]()  # of those that have more than their first
        self._lock = Lock()

    def share(self, tenant: int = 0) -> StateShare:
        return StateShare(self, tenant)

    def taken(self, tenant: int | None = None) -> int:
        """By a tenant, or by all, beyond the first of each."""
        with self._lock:
            return self._taken(tenant)

    def _taken(self, tenant: int | None = None) -> int:
        return sum(share.beyond_first for share in self._shares if tenant in (None, share.tenant))

    def grow(self, share: StateShare) -> bool:
        with self._lock:
            more = min(share.limit, MOST - share.limit)
            if self._taken(share.tenant) + more > self._room // 2 or self._taken() + more > self._room:
                return False
            share.limit += more
            self._shares.add(share)
            return more > 0
