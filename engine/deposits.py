"""Deposits: what a gateway leaves for whichever gateway asks for it first, by its name, once and soon.

They lie with an engine that gateways share, or with a gateway that shares none: so it is here, where all come
together, that a tenant has no more of them than leaves others theirs. Pure: it is told the time.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from typing import NamedTuple

MOST_BYTES, MOST_S = 1024, 60.0  # of one
MOST, MOST_OF_A_TENANT = 100_000, 10_000
OLD_AT_ONCE = 100  # that are taken away: very many may be old by now, and the engine waits meanwhile


class Deposit(NamedTuple):
    what: bytes
    until: float
    tenant: int


class Deposits:
    def __init__(self) -> None:
        # The first that came stands first: a dict would look for it among all that have gone.
        self._by_name = OrderedDict[bytes, Deposit]()
        self._of_tenant = Counter[int]()

    def leave(self, name: bytes, what: bytes, for_s: float, now: float, tenant: int = 0) -> bool:
        """Whether it is kept: too many of one tenant's are not. Where all are too many, the first that came
        goes."""
        self._expire(now, tenant)
        if len(name) + len(what) > MOST_BYTES or for_s <= 0:
            return False
        self._take(name)
        if self._of_tenant[tenant] >= MOST_OF_A_TENANT:
            return False
        self._by_name[name] = Deposit(what, now + min(for_s, MOST_S), tenant)
        self._of_tenant[tenant] += 1
        if len(self._by_name) > MOST:
            self._take(next(iter(self._by_name)))
        return True

    def collect(self, name: bytes, now: float) -> bytes | None:
        """It is nobody else's from now on."""
        deposit = self._take(name)
        return None if deposit is None or deposit.until <= now else deposit.what

    def _take(self, name: bytes) -> Deposit | None:
        deposit = self._by_name.pop(name, None)
        if deposit is not None:
            self._of_tenant[deposit.tenant] -= 1
            if not self._of_tenant[deposit.tenant]:
                del self._of_tenant[deposit.tenant]
        return deposit

    def _expire(self, now: float, tenant: int) -> None:
        """Some of those that are old; and for a tenant that seems to have too many, as many as it takes."""
        for _ in range(OLD_AT_ONCE):
            if not self._take_old(now):
                return
        while self._of_tenant[tenant] >= MOST_OF_A_TENANT and self._take_old(now):
            pass

    def _take_old(self, now: float) -> bool:
        """The first, if it is."""
        first = next(iter(self._by_name), None)
        if first is None or self._by_name[first].until > now:
            return False
        self._take(first)
        return True
