"""The accounts of streams' memory: of each listener, of a tenant's streams that nobody reads, of all of a
tenant's, and of all.

A tenant may have half of what the server has. It knows tenants by name, and no stream.
"""

from __future__ import annotations

from collections import defaultdict

from realtime.stream.memory import MemoryAccount


class StreamAccounts:
    def __init__(self, *, each: int, total: int) -> None:
        """In bytes: for the streams of one listener, and for all that the server has."""
        self.each = each
        self.total = MemoryAccount(total)
        self.of_tenant = defaultdict[str, MemoryAccount](
            lambda: MemoryAccount(total // 2, self.total, "your key's tenant")
        )
        self._unread: dict[str, MemoryAccount] = {}  # by tenant

    def of_listener(self, tenant: str, whose: str = "this connection") -> MemoryAccount:
        """A new one: a part of its tenant's."""
        return MemoryAccount(self.each, self.of_tenant[tenant], whose)

    def unread(self, tenant: str) -> MemoryAccount:
        """Of its streams that nobody reads."""
        account = self._unread.get(tenant)
        if account is None:
            account = self._unread[tenant] = self.of_listener(tenant, "your tenant that nobody reads")
        return account
