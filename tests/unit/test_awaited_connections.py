"""Who goes when too many wait, and when."""

from __future__ import annotations

import asyncio

import pytest

from realtime.transport.awaited_connections import AwaitedConnections, network_of


class Knocking:
    def __init__(self, address: str, gone: list[Knocking]) -> None:
        self.address = address
        self._gone = gone

    def give_up(self) -> None:
        self._gone.append(self)


async def test_the_oldest_of_an_address_goes_for_another_of_it() -> None:
    gone: list[Knocking] = []
    arrivals = AwaitedConnections(timeout_s=3600, limit=100, limit_per_address=2)
    other, first, second, third = (Knocking(address, gone) for address in "baaa")
    for knocking in (other, first, second, third):
        arrivals.add(knocking)
    assert gone == [first]
    assert [knocking in arrivals for knocking in (other, first, second, third)] == [True, False, True, True]


async def test_the_oldest_of_all_goes_where_all_are_too_many() -> None:
    gone: list[Knocking] = []
    arrivals = AwaitedConnections(timeout_s=3600, limit=2, limit_per_address=2)
    connections = [Knocking(address, gone) for address in "abcd"]
    for knocking in connections:
        arrivals.add(knocking)
    assert gone == connections[:2]
    assert len(arrivals) == 2


async def test_who_has_left_is_not_counted_and_may_come_again() -> None:
    gone: list[Knocking] = []
    arrivals = AwaitedConnections(timeout_s=3600, limit=2, limit_per_address=1)
    one, another = Knocking("a", gone), Knocking("a", gone)
    for _ in range(3):
        arrivals.add(one)
        arrivals.remove(one)
        arrivals.remove(one)
        arrivals.add(another)
        arrivals.remove(another)
    assert not gone
    assert not arrivals


async def test_all_go_when_their_time_is_over_and_in_their_order() -> None:
    all_gone = asyncio.Event()

    class Gone(list[Knocking]):
        def append(self, knocking: Knocking) -> None:
            super().append(knocking)
            if len(self) == 3:
                all_gone.set()

    gone = Gone()
    arrivals = AwaitedConnections(timeout_s=0.01, limit=10, limit_per_address=10)
    connections = [Knocking("a", gone) for _ in range(3)]
    for knocking in connections:
        arrivals.add(knocking)
        await asyncio.sleep(0)
    await asyncio.wait_for(all_gone.wait(), 10)
    assert gone == connections
    assert not arrivals


@pytest.mark.parametrize(
    ("host", "counted_as"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("2001:db8:1:2:ffff::", "2001:db8:1:2::"),
        ("::1", "::"),
    ],
)
def test_an_address_is_counted_with_all_that_one_subscriber_has(host: str, counted_as: str) -> None:
    assert network_of(host) == counted_as
