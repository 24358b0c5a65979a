"""The memory of matchers: how much each may take, and how much all of a tenant's may.

It is counted in states of their lexers, of some 1.5 KB. What a lexer keeps beside those is counted in bytes,
by what it has done. What a parser keeps is a row for each byte that it followed, at most, of as many items as
it may have: for those it is counted as if all rows were as wide as the widest may be.

Most grammars need a few dozen states, and a dozen items in a row. So every matcher has the first for nothing,
and one that needs more is given twice as many, while there is room: for a tenant a half of it, however many
streams it has. It knows tenants and numbers, and no grammar; it is asked from several threads.
"""

from __future__ import annotations

from threading import Lock
from weakref import WeakSet

FIRST_STATES = 512
MOST_STATES = 20_000  # states of one matcher: some 30 MB
FIRST_WIDTH = 64
MOST_WIDTH = 1280  # items in a row: as many as a choice may have, and tools beside it
STATE_BYTES = 1500
ITEMS_A_STATE = 150
TEXT_BYTES = 256  # more of a text that there are to be rows for, each time that it has come so far
FIRST_LEXER_BYTES = FIRST_STATES * STATE_BYTES  # beside those
ROOM = 16 * MOST_STATES  # of all together, beside their first


class MemoryShare:
    """Of one matcher, for as long as that is held."""

    def __init__(self, memory: MatcherMemory, tenant: int) -> None:
        self._memory = memory
        self.tenant = tenant
        self.states = FIRST_STATES
        self.width = FIRST_WIDTH
        self.text_bytes = 0  # that there may be rows for, where they may be wider than the first
        self.lexer_bytes = 0  # beside states, of lexers that are still there

    @property
    def beyond_first(self) -> int:
        rows = (self.width - FIRST_WIDTH) * self.text_bytes // ITEMS_A_STATE
        kept = max(0, self.lexer_bytes - FIRST_LEXER_BYTES) // STATE_BYTES
        return self.states - FIRST_STATES + rows + kept

    def add_states(self) -> bool:
        """Have twice as many states; False where there is no room."""
        return self._memory.give(self, states=min(2 * self.states, MOST_STATES))

    def widen(self) -> bool:
        """Have rows twice as wide; False where there is no room."""
        return self._memory.give(self, width=min(2 * self.width, MOST_WIDTH))

    def follow(self, text_bytes: int) -> bool:
        """Have rows for so much text; False where there is no room."""
        if self.width == FIRST_WIDTH or text_bytes <= self.text_bytes:
            return True
        return self._memory.give(self, text_bytes=text_bytes - text_bytes % TEXT_BYTES + TEXT_BYTES)

    def keep(self, lexer_bytes: int) -> bool:
        """Keep so much of lexers; False where there is no room."""
        return lexer_bytes <= self.lexer_bytes or self._memory.give(self, lexer_bytes=lexer_bytes)


class MatcherMemory:
    def __init__(self, room: int = ROOM) -> None:
        self._room = room
        self._shares = WeakSet[MemoryShare]()  # of those that have more than their first
        self._lock = Lock()

    def share(self, tenant: int = 0) -> MemoryShare:
        return MemoryShare(self, tenant)

    def taken(self, tenant: int | None = None) -> int:
        """By a tenant, or by all, beyond the first of each."""
        with self._lock:
            return self._taken(tenant)

    def _taken(self, tenant: int | None = None) -> int:
        return sum(share.beyond_first for share in self._shares if tenant in (None, share.tenant))

    def give(self, share: MemoryShare, **wanted: int) -> bool:
        """Of these as many as are wanted, which is nothing where there is no room."""
        with self._lock:
            had = {name: getattr(share, name) for name in wanted}
            self._shares.add(share)
            self._set(share, wanted)
            if self._taken(share.tenant) <= self._room // 2 and self._taken() <= self._room:
                return wanted != had
            self._set(share, had)
            return False

    def _set(self, share: MemoryShare, numbers: dict[str, int]) -> None:
        for name, number in numbers.items():
            setattr(share, name, number)
