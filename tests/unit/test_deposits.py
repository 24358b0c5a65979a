"""What gateways leave for each other: had once and soon, by whoever asks first, wherever it lies."""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import count

import pytest

from engine import api
from engine import deposits as own
from engine.deposits import MOST, MOST_BYTES, MOST_OF_A_TENANT, MOST_S, Deposits
from realtime.hub import deposits as shared
from realtime.hub.serving_engine import ServingEngine
from realtime.refusal import Refusal
from tests.fakes.lone_stream import MODEL
from tests.fakes.simulated_server import Clock


def test_it_is_had_once() -> None:
    deposits = Deposits()
    assert deposits.leave(b"name", b"what", 10, now=0)
    assert deposits.collect(b"other", now=1) is None
    assert deposits.collect(b"name", now=1) == b"what"
    assert deposits.collect(b"name", now=1) is None


def test_it_is_had_soon() -> None:
    deposits = Deposits()
    assert deposits.leave(b"name", b"what", 10, now=0)
    assert deposits.leave(b"long", b"what", 1e9, now=0)
    assert deposits.collect(b"name", now=10) is None
    assert deposits.collect(b"long", now=MOST_S) is None


def test_what_is_too_much_is_not_kept_and_of_too_many_the_first_goes() -> None:
    deposits = Deposits()
    assert not deposits.leave(b"name", bytes(MOST_BYTES), 10, now=0)
    for number in range(MOST + 1):
        assert deposits.leave(b"%d" % number, b"", 10, now=0, tenant=number % 11)
    assert deposits.collect(b"0", now=0) is None
    assert deposits.collect(b"1", now=0) == b""


def test_one_tenant_has_so_many_until_they_are_used_or_old_and_others_keep_theirs() -> None:
    deposits = Deposits()
    assert deposits.leave(b"other's", b"what", 10, now=0, tenant=2)
    for number in range(MOST_OF_A_TENANT):
        assert deposits.leave(b"%d" % number, b"", 10, now=1, tenant=1)
    assert not deposits.leave(b"more", b"", 10, now=1, tenant=1)
    assert deposits.collect(b"other's", now=1) == b"what"
    assert deposits.collect(b"0", now=1) == b""
    assert deposits.leave(b"more", b"", 10, now=1, tenant=1)
    assert not deposits.leave(b"again", b"", 10, now=1, tenant=1)
    assert deposits.leave(b"later", b"", 10, now=11, tenant=1)


def test_of_very_many_that_are_old_a_few_are_taken_away_at_once_and_none_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own, "OLD_AT_ONCE", 2)
    monkeypatch.setattr(own, "MOST_OF_A_TENANT", 3)
    deposits, taken = Deposits(), list[bytes]()
    for tenant in (1, 2):
        for name in (b"a", b"b", b"c"):
            assert deposits.leave(b"%d%b" % (tenant, name), b"what", 10, now=0, tenant=tenant)
    take = deposits._take

    def count(name: bytes) -> own.Deposit | None:
        taken.append(name)
        return take(name)

    monkeypatch.setattr(deposits, "_take", count)
    assert deposits.leave(b"new", b"what", 10, now=10, tenant=3)
    assert taken == [b"1a", b"1b", b"new"]
    assert deposits.collect(b"2c", now=10) is None
    assert deposits.leave(b"newer", b"what", 10, now=10, tenant=2), "two of its own are old, too"


# -- of gateways, with engines ----------------------------------------------------------------------


class Engines:
    """Some that keep, as gateways reach them, and one that does not; `deaf` hear nothing."""

    def __init__(self, keepers: int) -> None:
        self.deposits = [Deposits() for _ in range(keepers)]
        self.deaf: set[int] = set()
        self.asked: list[int] = []

    def gateway(self) -> Gateway:
        return Gateway(self)


class Gateway:
    """It hears answers as they would come, later."""

    def __init__(self, fleet: Engines) -> None:
        self._fleet = fleet
        keepers = [b"engine %d" % number for number in range(len(fleet.deposits))]
        self.engines = {
            number: ServingEngine(number, MODEL, 16, self._send, keeper=keeper)
            for number, keeper in enumerate([*keepers, b""])
        }
        self.deposits = shared.Deposits(self, partial(next, count()), Clock())  # type: ignore[arg-type]

    def flush(self) -> None:
        for engine in self.engines.values():
            engine.flush()

    def _send(self, number: int, commands: list[api.AnyCommand]) -> None:
        self._fleet.asked.append(number)
        if number not in self._fleet.deaf:
            for command in commands:
                asyncio.get_running_loop().call_soon(self._answer, number, command)

    def _answer(self, number: int, command: api.AnyCommand) -> None:
        kept = self._fleet.deposits[number]
        match command:
            case api.Deposit(stream=stream, name=name, what=what, for_s=for_s, tenant=tenant):
                kept_there = kept.leave(name, what, for_s, 0, tenant)
                answer: shared.DepositAnswer = api.Deposited(stream, kept_there)
            case api.Collect(stream=stream, name=name):
                answer = api.Collected(stream, kept.collect(name, 0))
        self.deposits.receive(self.engines[number], answer)


async def test_another_gateway_has_it_once_from_the_engine_that_all_would_choose() -> None:
    fleet = Engines(3)
    first, second, third = fleet.gateway(), fleet.gateway(), fleet.gateway()
    assert await first.deposits.leave(b"name", b"what", 10, "alice")
    assert len(fleet.asked) == 1
    assert 3 not in fleet.asked, "which keeps nothing"
    both = list(await asyncio.gather(second.deposits.collect(b"name"), third.deposits.collect(b"name")))
    assert both in ([None, b"what"], [b"what", None])
    assert await first.deposits.collect(b"name") is None


async def test_without_engines_that_keep_it_is_ones_own() -> None:
    alone = Engines(0).gateway()
    assert await alone.deposits.leave(b"name", b"what", 10, "alice")
    assert await alone.deposits.collect(b"name") == b"what"
    assert await alone.deposits.collect(b"name") is None


async def test_what_an_engine_does_not_take_is_not_there_and_where_it_says_nothing_nobody_knows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shared, "ANSWER_S", 0.01)
    fleet = Engines(1)
    gateway = fleet.gateway()
    assert not await gateway.deposits.leave(b"name", bytes(MOST_BYTES), 10, "alice")
    fleet.deaf = {0}
    with pytest.raises(Refusal, match="has not said that it does"):
        await gateway.deposits.leave(b"name", b"what", 10, "alice")


async def test_however_many_gateways_a_tenant_comes_to_its_engine_keeps_no_more_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(own, "MOST_OF_A_TENANT", 2)
    fleet = Engines(1)
    gateways = [fleet.gateway() for _ in range(3)]
    assert await gateways[0].deposits.leave(b"bob's", b"what", 10, "bob")
    left = [
        await gateway.deposits.leave(b"%d" % at, b"what", 10, "alice") for at, gateway in enumerate(gateways)
    ]
    assert left == [True, True, False]
    assert await gateways[2].deposits.collect(b"bob's") == b"what"


async def test_one_that_does_not_answer_is_waited_for_in_vain_and_one_that_is_lost_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fleet = Engines(2)
    gateway = fleet.gateway()
    await gateway.deposits.leave(b"name", b"what", 10, "alice")
    (holds,) = fleet.asked
    fleet.deaf = {1 - holds}
    assert await gateway.deposits.collect(b"name") == b"what"
    collecting = asyncio.create_task(gateway.deposits.collect(b"name"))
    await asyncio.sleep(0)
    gateway.deposits.engine_lost(gateway.engines[1 - holds])
    assert await collecting is None
    monkeypatch.setattr(shared, "ANSWER_S", 0.01)
    assert await gateway.deposits.collect(b"name") is None
