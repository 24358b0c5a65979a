"""Secrets for pages: each works once, soon, and there are not many."""

from __future__ import annotations

import re

import pytest

from engine.deposits import MOST_OF_A_TENANT
from realtime.access.client_secrets import LIFE_S, LONGEST_ORIGIN, ClientSecrets
from realtime.refusal import Refusal
from realtime.tenants.allowance import Holder
from tests.fakes.credentials import own_secrets
from tests.fakes.simulated_server import Clock

ALICE, BOB = Holder("alice", "1"), Holder("bob", "2")
APP = "https://app.example"


async def test_a_secret_works_once() -> None:
    secrets = own_secrets()
    secret = await secrets.issue(ALICE, APP)
    assert re.fullmatch(r"mss_[A-Za-z0-9]{32}", secret)
    assert await secrets.issue(ALICE, APP) != secret
    issued = await secrets.redeem(secret)
    assert issued is not None
    assert (issued.holder, issued.origin) == (ALICE, APP)
    assert await secrets.redeem(secret) is None
    assert await secrets.redeem("mss_never") is None


async def test_a_secret_is_worth_nothing_after_its_time() -> None:
    clock = Clock()
    secrets = own_secrets(clock)
    secret, other = await secrets.issue(ALICE, None), await secrets.issue(ALICE, None)
    clock.advance(LIFE_S - 0.001)
    assert await secrets.redeem(other) is not None
    clock.advance(0.001)
    assert await secrets.redeem(secret) is None


async def test_unused_secrets_are_bounded_by_tenant_and_time_or_use_makes_room() -> None:
    clock = Clock()
    secrets = own_secrets(clock)
    first, *_ = [await secrets.issue(ALICE, None) for _ in range(MOST_OF_A_TENANT)]
    with pytest.raises(Refusal) as caught:
        await secrets.issue(ALICE, None)
    assert (caught.value.code, caught.value.retry_after_ms) == ("rate_limited", LIFE_S * 1000)
    await secrets.issue(BOB, None)
    await secrets.redeem(first)
    await secrets.issue(ALICE, None)
    with pytest.raises(Refusal):
        await secrets.issue(ALICE, None)
    clock.advance(LIFE_S)
    for _ in range(MOST_OF_A_TENANT):
        await secrets.issue(ALICE, None)


class FullShelf:
    async def leave(self, name: bytes, what: bytes, for_s: float, tenant: str) -> bool:
        raise Refusal("overloaded", "Nobody keeps this.", retry_after_ms=1000)

    async def collect(self, name: bytes) -> bytes | None:
        return None


async def test_a_secret_that_nobody_keeps_is_none() -> None:
    secrets = ClientSecrets(FullShelf())
    with pytest.raises(Refusal, match="Nobody keeps this"):
        await secrets.issue(ALICE, APP)


async def test_an_origin_that_no_page_has_is_refused_and_not_to_be_sent_again() -> None:
    secrets = own_secrets()
    await secrets.issue(ALICE, "o" * LONGEST_ORIGIN)
    with pytest.raises(Refusal) as caught:
        await secrets.issue(ALICE, "o" * (LONGEST_ORIGIN + 1))
    assert caught.value.code == "invalid_params"


async def test_where_an_origin_is_as_long_as_it_may_be_it_has_room_with_any_holder() -> None:
    """As long as their names and digests may be; a header is of bytes, each of which may be two of UTF-8."""
    secrets = own_secrets()
    longest = Holder("t" * 64, "d" * 64, admin=True, metrics=True, name="n" * 64)
    secret = await secrets.issue(longest, "é" * LONGEST_ORIGIN)
    issued = await secrets.redeem(secret)
    assert issued is not None
    assert issued.holder == longest
