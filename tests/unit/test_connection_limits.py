"""How many connections may be open, and who is counted together."""

from __future__ import annotations

import pytest

from realtime.access.connection_limits import OpenConnections
from realtime.refusal import Refusal
from realtime.tenants.allowance import Allowance, Holder
from realtime.tenants.quota import Quotas


def full(connections: OpenConnections, host: str, tenant: str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        connections.open(host, Holder(tenant))
    return caught.value


def test_connections_are_bounded_by_address_tenant_and_in_all() -> None:
    allowances = {"a": Allowance(max_connections=2)}
    connections = OpenConnections(4, 3, Quotas(lambda tenant: allowances.get(tenant, Allowance())))
    first, _ = (connections.open("1.1.1.1", Holder("a")) for _ in range(2))
    assert "your key's tenant" in full(connections, "2.2.2.2", "a").message
    connections.open("1.1.1.1", Holder("b"))
    refusal = full(connections, "1.1.1.1", "c")
    assert (refusal.status, refusal.code, refusal.retry_after_ms) == (429, "rate_limited", 1000)
    assert "your address" in refusal.message
    was_full = connections.full
    connections.open("2.2.2.2", Holder("b"))
    assert (was_full, connections.full) == (False, True)
    refusal = full(connections, "3.3.3.3", "c")
    assert (refusal.status, refusal.code) == (503, "overloaded")
    connections.close(first)
    connections.close(first)
    connections.open("2.2.2.2", Holder("a"))


def test_all_addresses_that_one_subscriber_has_are_counted_together() -> None:
    connections = OpenConnections(100, 2)
    for host in ("2001:db8:1:2::1", "2001:db8:1:2:ffff::", "::ffff:192.0.2.1", "192.0.2.1"):
        connections.open(host, Holder())
    for host in ("2001:db8:1:2::3", "192.0.2.1"):
        assert "your address" in full(connections, host, "local").message
    connections.open("2001:db8:1:3::1", Holder())


@pytest.mark.parametrize("host", ["", "unknown", "a:b", "[::1]:80"])
def test_what_a_proxy_may_call_an_address_is_counted_as_it_stands(host: str) -> None:
    connections = OpenConnections(100, 1)
    connections.open(host, Holder())
    assert "your address" in full(connections, host, "local").message
