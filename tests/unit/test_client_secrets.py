"""Secrets for pages: each works once, soon, and there are not many."""

from __future__ import annotations

import re

import pytest

from realtime.access.client_secrets import LIFE_S, UNUSED_LIMIT
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
    first, *_ = [await secrets.issue(ALICE, None) for _ in range(UNUSED_LIMIT)]
    with pytest.raises(Refusal) as caught:
        await secrets.issue(ALICE, None)
    assert (caught.value.code, caught.value.retry_after_ms) == ("rate_limited", LIFE_S * 1000)
    await secrets.issue(BOB, None)
    await secrets.redeem(first)
    await secrets.issue(ALICE, None)
    with pytest.raises(Refusal):
        await secrets.issue(ALICE, None)
    clock.advance(LIFE_S)
    for _ in range(UNUSED_LIMIT):
        await secrets.issue(ALICE, None)
