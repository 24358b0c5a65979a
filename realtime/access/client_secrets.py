"""One-time client secrets, with which a web page connects once: a key is too much to give to a page.

Whoever holds a key asks for one and hands it on; it works once, soon, for pages of one origin, as the
holder, at whichever gateway the page connects: where there is a shelf that all of them reach, it lies there.
It knows no HTTP and no key: holders and origins go in, and come out again.
"""

from __future__ import annotations

import re
from typing import Protocol

from msgspec import Struct, msgpack

from realtime.access.key_file import digest, random_text
from realtime.refusal import Refusal
from realtime.tenants.allowance import Holder

LIFE_S = 30
LENGTH = 32  # 190 bits
LONGEST_ORIGIN = 300  # characters: of a name 253, and what is longer had no room where secrets lie


class Shelf(Protocol):
    """That all gateways reach, who have things from it by their names, once and soon."""

    async def leave(self, name: bytes, what: bytes, for_s: float, tenant: str) -> bool:
        """Whether there is room for one more of this tenant's. Raises Refusal."""

    async def collect(self, name: bytes) -> bytes | None: ...


class IssuedSecret(Struct, frozen=True):
    holder: Holder
    origin: str | None  # None: pages of this server itself


class ClientSecrets:
    def __init__(self, shelf: Shelf) -> None:
        self._shelf = shelf

    async def issue(self, holder: Holder, origin: str | None) -> str:
        """Raises Refusal."""
        if origin is not None and len(origin) > LONGEST_ORIGIN:
            raise Refusal("invalid_params", f"`origin` may have {LONGEST_ORIGIN} characters at most.")
        secret = "mss_" + random_text(LENGTH)
        what = msgpack.encode(IssuedSecret(holder, origin))
        if not await self._shelf.leave(_name(secret), what, LIFE_S, holder.tenant):
            raise Refusal(
                "rate_limited",
                "Too many client secrets of yours are unused: use them, or wait until they expire.",
                retry_after_ms=LIFE_S * 1000,
            )
        return secret

    async def redeem(self, secret: str) -> IssuedSecret | None:
        """What stands behind a secret, which is worth nothing from now on, whatever comes of this."""
        if not re.fullmatch(f"mss_[A-Za-z0-9]{{{LENGTH}}}", secret):
            return None
        found = await self._shelf.collect(_name(secret))
        return None if found is None else msgpack.decode(found, type=IssuedSecret)


def _name(secret: str) -> bytes:
    """By its digest, so that the time of a look-up tells nothing of a secret, nor where it lies."""
    return b"secret/" + bytes.fromhex(digest(secret))
