"""One-time client secrets, with which a web page connects once: a key is too much to give to a page.

Whoever holds a key asks for one and hands it on; it works once, soon, for pages of one origin, as the
holder. It knows no HTTP and no key: holders and origins go in, and come out again.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from msgspec import Struct

from realtime.access.key_file import digest, random_text
from realtime.refusal import Refusal
from realtime.tenants.allowance import Holder

LIFE_S = 30
UNUSED_LIMIT = 1000  # unused ones of a tenant
LENGTH = 32  # 190 bits


class IssuedSecret(Struct, frozen=True):
    holder: Holder
    origin: str | None  # None: pages of this server itself
    until: float


class ClientSecrets:
    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # By digest, so that the time of a look-up tells nothing of a secret; the oldest stand first.
        self._issued: OrderedDict[str, IssuedSecret] = OrderedDict()
        self._unused: Counter[str] = Counter()  # by tenant

    def issue(self, holder: Holder, origin: str | None) -> str:
        self._forget_old()
        if self._unused[holder.tenant] >= UNUSED_LIMIT:
            raise Refusal(
                "rate_limited",
                f"{UNUSED_LIMIT} client secrets of yours are unused: use them, or wait until they expire.",
                retry_after_ms=LIFE_S * 1000,
            )
        secret = "mss_" + random_text(LENGTH)
        self._issued[digest(secret)] = IssuedSecret(holder, origin, self._clock() + LIFE_S)
        self._unused[holder.tenant] += 1
        return secret

    def redeem(self, secret: str) -> IssuedSecret | None:
        """What stands behind a secret, which is worth nothing from now on, whatever comes of this."""
        self._forget_old()
        issued = self._issued.pop(digest(secret), None)
        if issued is not None:
            self._unused[issued.holder.tenant] -= 1
        return issued

    def _forget_old(self) -> None:
        while self._issued and next(iter(self._issued.values())).until <= self._clock():
            _, issued = self._issued.popitem(last=False)
            self._unused[issued.holder.tenant] -= 1
