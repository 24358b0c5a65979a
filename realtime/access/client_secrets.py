"""One-time client secrets, with which a web page connects once: a key is too much to give to a page.

Whoever holds a key asks for one and hands it on; it works once, soon, for pages of one origin, as the
holder, at whichever gateway the page connects: where there is a shelf that all of them reach, it lies there.
It knows no HTTP and no key: holders and origins go in, and come out again.
"""

from __future__ import annotations

import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Protocol

from msgspec import Struct, msgpack

from realtime.access.key_file import digest, random_text
from realtime.refusal import Refusal
from realtime.tenants.allowance import Holder

LIFE_S = 30
UNUSED_LIMIT = 10_000  # of a tenant: as many pages as may come at once when a gateway has died
LENGTH = 32  # 190 bits
LONGEST_ORIGIN = 300  # characters: of a name 253, and what is longer had no room where secrets lie


class Shelf(Protocol):
    """That all gateways reach, who have things from it by their names, once and soon."""

    async def leave(self, name: bytes, what: bytes, for_s: float) -> None:
        """Raises Refusal."""

    async def collect(self, name: bytes) -> bytes | None: ...


class IssuedSecret(Struct, frozen=True):
    holder: Holder
    origin: str | None  # None: pages of this server itself


class ClientSecrets:
    def __init__(self, shelf: Shelf, clock: Callable[[], float] = time.monotonic) -> None:
        self._shelf = shelf
        self._clock = clock
        # Those that were issued here, and not used here, as they lie on the shelf; the oldest stand first.
        self._issued: OrderedDict[bytes, tuple[float, str]] = OrderedDict()  # until when, and whose
        self._unused: Counter[str] = Counter()  # by tenant

    async def issue(self, holder: Holder, origin: str | None) -> str:
        """Raises Refusal."""
        self._forget_old()
        if self._unused[holder.tenant] >= UNUSED_LIMIT:
            raise Refusal(
                "rate_limited",
                f"{UNUSED_LIMIT} client secrets of yours are unused: use them, or wait until they expire.",
                retry_after_ms=LIFE_S * 1000,
            )
        if origin is not None and len(origin) > LONGEST_ORIGIN:
            raise Refusal("invalid_params", f"`origin` may have {LONGEST_ORIGIN} characters at most.")
        secret = "mss_" + random_text(LENGTH)
        name = _name(secret)
        # Before it lies there: many may be asked for at once.
        self._issued[name] = self._clock() + LIFE_S, holder.tenant
        self._unused[holder.tenant] += 1
        try:
            await self._shelf.leave(name, msgpack.encode(IssuedSecret(holder, origin)), LIFE_S)
        except Refusal:
            self._forget(name)
            raise
        return secret

    async def redeem(self, secret: str) -> IssuedSecret | None:
        """What stands behind a secret, which is worth nothing from now on, whatever comes of this."""
        if not re.fullmatch(f"mss_[A-Za-z0-9]{{{LENGTH}}}", secret):
            return None
        self._forget_old()
        name = _name(secret)
        self._forget(name)
        found = await self._shelf.collect(name)
        return None if found is None else msgpack.decode(found, type=IssuedSecret)

    def _forget_old(self) -> None:
        while self._issued and next(iter(self._issued.values()))[0] <= self._clock():
            self._forget(next(iter(self._issued)))

    def _forget(self, name: bytes) -> None:
        if (issued := self._issued.pop(name, None)) is not None:
            self._unused[issued[1]] -= 1


def _name(secret: str) -> bytes:
    """By its digest, so that the time of a look-up tells nothing of a secret, nor where it lies."""
    return b"secret/" + bytes.fromhex(digest(secret))
