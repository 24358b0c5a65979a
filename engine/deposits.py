"""Deposits: what a gateway leaves for whichever gateway asks for it first, by its name, once and soon.

They lie with an engine that gateways share, or with a gateway that shares none. Pure: it is told the time.
"""

from __future__ import annotations

from typing import NamedTuple

MOST_BYTES, MOST_S = 1024, 60.0  # of one
MOST = 100_000


class Deposit(NamedTuple):
    what: bytes
    until: float


class Deposits:
    def __init__(self) -> None:
        self._by_name: dict[bytes, Deposit] = {}  # the first that came stands first

    def leave(self, name: bytes, what: bytes, for_s: float, now: float) -> bool:
        """Whether it is kept. Where there are too many, the first that came goes."""
        if len(name) + len(what) > MOST_BYTES or for_s <= 0:
            return False
        self._by_name.pop(name, None)
        self._by_name[name] = Deposit(what, now + min(for_s, MOST_S))
        while len(self._by_name) > MOST or self._first().until <= now:
            del self._by_name[next(iter(self._by_name))]
        return True

    def collect(self, name: bytes, now: float) -> bytes | None:
        """It is nobody else's from now on."""
        deposit = self._by_name.pop(name, None)
        return None if deposit is None or deposit.until <= now else deposit.what

    def _first(self) -> Deposit:
        return next(iter(self._by_name.values()))
