"""What tenants take at other gateways, as each of those tells: counted as if they took it here, until it is
known that the gateway is gone.

It knows gateways by some name. Pure.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from msgspec.structs import replace

from realtime.tenants.quota import Quotas, Taken

NOTHING = Taken()


class Elsewhere:
    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas
        self._told: dict[Hashable, dict[str, Taken]] = {}  # by gateway and tenant

    def hear(self, gateway: Hashable, taken: Mapping[str, Taken], *, whole: bool) -> None:
        """`whole`: it is all that is taken there, and what that is in all was taken in times of which we know
        nothing; else what has changed."""
        before = self._told.setdefault(gateway, {})
        if whole:
            for tenant in before.keys() - taken.keys():
                self._tell(before, tenant, _in_all_as(before[tenant], NOTHING))
        for tenant, now in taken.items():
            known = before.get(tenant)
            if whole and known is None:
                before[tenant] = _in_all_as(now, NOTHING)
            self._tell(before, tenant, now)

    def forget(self, gateway: Hashable) -> None:
        """Nothing is taken there any more."""
        for tenant, taken in self._told.pop(gateway, {}).items():
            self._quotas.take_elsewhere(tenant, taken, _in_all_as(taken, NOTHING))

    def _tell(self, before: dict[str, Taken], tenant: str, now: Taken) -> None:
        self._quotas.take_elsewhere(tenant, before.get(tenant, NOTHING), now)
        before[tenant] = now


def _in_all_as(in_all: Taken, present: Taken) -> Taken:
    """As much in all as here, and at present as there."""
    return replace(present, tokens=in_all.tokens, loads=in_all.loads)
