"""Who holds a key, and what a tenant may take: plain values, read from the key file and asked of by the gate.

A tenant is whose streams are whose: keys of one tenant see the same streams and share one allowance. It
knows neither files nor sockets nor streams.
"""

from __future__ import annotations

from msgspec import Struct

LOCAL = "local"  # everybody, while the server has no keys
LOWEST, HIGHEST = -8, 8  # of a start's `priority`


class Allowance(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one tenant may take, all its keys together; None is without bounds.

    Nobody outranks other tenants unless that was allowed: priorities above 0 are not, by default.
    """

    max_streams: int | None = None
    max_connections: int | None = None
    tokens_per_minute: int | None = None
    prefill_tokens: int | None = None
    priority: tuple[int, int] = (LOWEST, 0)


EVERYTHING = Allowance(priority=(LOWEST, HIGHEST))


class Holder(Struct, frozen=True):
    """Whoever showed a key. `key` is its digest, None where the server has no keys."""

    tenant: str = LOCAL
    key: str | None = None
    admin: bool = False
