"""The allowance of a tenant, its fixed limits, and the holder of a key: plain values, as the key file has
them.

A tenant is whose streams are whose: keys of one tenant see the same streams and share one allowance. It knows
neither files nor sockets nor streams.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

LOCAL = "local"  # everybody, while the server has no keys
LOWEST, HIGHEST = -8, 8  # of a start's `priority`

MOST = 10**12  # of anything, which is as good as no limit; what has hundreds of digits is no number of ours
Count = Annotated[int, Meta(ge=1, le=MOST)]
Priority = Annotated[int, Meta(ge=LOWEST, le=HIGHEST)]


class Allowance(Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What one tenant may take, all its keys together, at all gateways that share engines; None is what each
    server leaves to each tenant, or else without bounds.

    Nobody outranks other tenants unless that was allowed: priorities above 0 are not, by default.
    """

    max_streams: Count | None = None
    max_connections: Count | None = None
    tokens_per_minute: Count | None = None
    loads_per_hour: Count | None = None
    prefill_tokens: Count | None = None
    priority: tuple[Priority, Priority] = (LOWEST, 0)

    @property
    def has_limits(self) -> bool:
        """Of its own, of what can be taken."""
        rates = self.tokens_per_minute, self.loads_per_hour
        return (self.max_streams, self.max_connections, self.prefill_tokens, *rates) != (None,) * 5

    def __post_init__(self) -> None:
        if self.priority[0] > self.priority[1]:
            raise ValueError("`priority` is its lowest value and then its highest")


def default_share(limit: int) -> int:
    """What one tenant may take of what all share, if nobody says how much: it must not shut others out."""
    return max(1, limit // 2)


UNSAID = Allowance()
EVERYTHING = Allowance(priority=(LOWEST, HIGHEST))


class Holder(Struct, frozen=True):
    """Whoever showed a key. `key` is its digest, None where the server has no keys."""

    tenant: str = LOCAL
    key: str | None = None
    admin: bool = False
    metrics: bool = False  # it opens the metrics alone
    name: str | None = None  # of the key, in the key file
