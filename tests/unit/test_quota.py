"""What each tenant may take: only a start is ever refused, and what was taken is never forgotten."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream.protocol import Start
from realtime.refusal import Refusal
from realtime.tenants.allowance import Allowance
from realtime.tenants.quota import Quotas, StreamQuota, Taken


class Hours:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def start(**fields: Any) -> Start:
    return Start(request_id="r", prompt="Once", **fields)


def gate_of(hours: Hours | None = None, **tenants: Allowance) -> Quotas:
    return Quotas(lambda tenant: tenants.get(tenant, Allowance()), hours or Hours())


def refused(gate: Quotas, tenant: str = "a", prompt_tokens: int = 1, **fields: Any) -> Refusal:
    with pytest.raises(Refusal) as caught:
        gate.admit(tenant, start(**fields), prompt_tokens)
    return caught.value


def admitted(gate: Quotas, tenant: str = "a", prompt_tokens: int = 1, **fields: Any) -> StreamQuota:
    return gate.admit(tenant, start(**fields), prompt_tokens)


def test_without_keys_anything_goes_through_the_same_gate() -> None:
    gate = Quotas()
    for _ in range(100):
        admitted(gate, prompt_tokens=10**6, priority=8).count(10**6)


def test_loads_of_models_are_of_an_hour_and_of_a_tenant() -> None:
    hours = Hours()
    gate = gate_of(hours, a=Allowance(loads_per_hour=2))
    for _ in range(2):
        gate.check_loads("a")
        gate.count_load("a")
    with pytest.raises(Refusal, match="2 loads of models an hour") as caught:
        gate.check_loads("a")
    assert caught.value.retry_after_ms == 1_800_000
    gate.check_loads("b")
    admitted(gate)
    hours.now += 1_800
    gate.check_loads("a")


# -- streams ---------------------------------------------------------------------------------------


def test_the_most_streams_are_of_a_tenant_and_an_end_makes_room() -> None:
    gate = gate_of(a=Allowance(max_streams=2))
    first, _ = admitted(gate), admitted(gate)
    refusal = refused(gate)
    assert (refusal.code, refusal.status, refusal.retry_after_ms) == ("too_many_streams", 429, 1000)
    admitted(gate, "b")
    first.end()
    admitted(gate)
    first.end()  # once more: it frees nothing that is not its own
    assert refused(gate).code == "too_many_streams"


def test_what_is_refused_takes_nothing() -> None:
    gate = gate_of(a=Allowance(max_streams=1, tokens_per_minute=1000, prefill_tokens=100))
    for _ in range(5):
        assert refused(gate, priority=1).code == "forbidden"
    admitted(gate, prompt_tokens=90).prefill_begun()
    for _ in range(5):
        assert refused(gate, prompt_tokens=900).code == "too_many_streams"
    assert gate.taken()["a"] == Taken(streams=1, tokens=90)


# -- tokens ----------------------------------------------------------------------------------------


def test_tokens_of_prompt_and_output_count_and_come_back_with_time() -> None:
    hours = Hours()
    gate = gate_of(hours, a=Allowance(tokens_per_minute=60))
    share = admitted(gate, prompt_tokens=20)
    share.count(40)
    refusal = refused(gate)
    assert (refusal.code, refusal.status, refusal.retry_after_ms) == ("rate_limited", 429, 1000)
    hours.now = 1.0
    admitted(gate)


def test_what_runs_goes_on_beyond_the_rate_and_is_paid_for_by_the_next_start() -> None:
    hours = Hours()
    gate = gate_of(hours, a=Allowance(tokens_per_minute=60))
    admitted(gate).count(600)
    refusal = refused(gate)
    assert refusal.retry_after_ms == 542_000
    hours.now = 541.9
    assert refused(gate).code == "rate_limited"
    hours.now = 542.0
    admitted(gate)


@given(st.integers(1, 10**6), st.integers(0, 10**7), st.floats(0, 10**6))
def test_after_the_time_that_a_refusal_names_a_start_is_let_in(rate: int, taken: int, begun: float) -> None:
    hours = Hours()
    hours.now = begun
    gate = gate_of(hours, a=Allowance(tokens_per_minute=rate))
    admitted(gate, prompt_tokens=0).count(taken)
    try:
        admitted(gate)
    except Refusal as refusal:
        hours.now += (
            (refusal.retry_after_ms or 0) + 1
        ) / 1000  # a float's last digits are worth less than that
        admitted(gate)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 200)), max_size=60))
def test_no_more_starts_than_the_rate_and_one_prompt_whatever_the_pace(
    visits: list[tuple[float, int]],
) -> None:
    hours = Hours()
    gate = gate_of(hours, a=Allowance(tokens_per_minute=600))
    taken = 0
    for later, tokens in visits:
        hours.now += later
        try:
            admitted(gate, prompt_tokens=tokens)
        except Refusal:
            continue
        taken += tokens
    assert taken <= 600 + hours.now * 10 + 200 + 1e-6


def test_nobody_pays_for_another() -> None:
    gate = gate_of(a=Allowance(tokens_per_minute=60), b=Allowance(tokens_per_minute=60))
    admitted(gate, "a").count(10**6)
    admitted(gate, "b")
    assert refused(gate, "a").code == "rate_limited"


def test_an_allowance_that_was_changed_holds_at_once() -> None:
    tenants = {"a": Allowance(max_streams=1)}
    gate = Quotas(lambda tenant: tenants[tenant], Hours())
    admitted(gate)
    tenants["a"] = Allowance(max_streams=2)
    admitted(gate)
    tenants["a"] = Allowance(max_streams=1)
    assert refused(gate).code == "too_many_streams"


# -- prompts that wait -----------------------------------------------------------------------------


def test_prompts_that_wait_are_bounded_until_the_engine_has_begun_with_them() -> None:
    gate = gate_of(a=Allowance(prefill_tokens=100))
    first = admitted(gate, prompt_tokens=60)
    refusal = refused(gate, prompt_tokens=41)
    assert (refusal.code, refusal.retry_after_ms) == ("rate_limited", 1000)
    admitted(gate, prompt_tokens=40)
    first.prefill_begun()
    first.prefill_begun()
    admitted(gate, prompt_tokens=60)
    assert refused(gate, prompt_tokens=1).code == "rate_limited"


def test_a_prompt_waits_for_the_engine_as_long_as_not_for_its_client() -> None:
    gate = gate_of(a=Allowance(prefill_tokens=100))
    first = admitted(gate, prompt_tokens=60)
    first.prefill_rests()
    admitted(gate, prompt_tokens=90)
    first.prefill_waits()
    first.prefill_waits()
    assert gate.taken()["a"].waiting == 150
    first.prefill_begun()
    first.prefill_waits()
    assert gate.taken()["a"].waiting == 90


def test_a_stream_that_ends_in_the_queue_waits_no_more() -> None:
    gate = gate_of(a=Allowance(prefill_tokens=100))
    admitted(gate, prompt_tokens=100).end()
    admitted(gate, prompt_tokens=100)


def test_a_prompt_longer_than_all_that_may_wait_waits_alone() -> None:
    gate = gate_of(a=Allowance(prefill_tokens=100))
    admitted(gate, prompt_tokens=1)
    assert refused(gate, prompt_tokens=500).code == "rate_limited"
    alone = gate_of(a=Allowance(prefill_tokens=100))
    admitted(alone, prompt_tokens=500)


# -- priorities ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("allowed", "asked"), [((-8, 0), 1), ((-2, 2), -3), ((-2, 2), 3)])
def test_a_priority_beyond_what_is_allowed_is_forbidden(allowed: tuple[int, int], asked: int) -> None:
    refusal = refused(gate_of(a=Allowance(priority=allowed)), priority=asked)
    assert (refusal.code, refusal.status) == ("forbidden", 403)
    assert f"{asked}; your key may ask for {allowed[0]} to {allowed[1]}" in refusal.message


def test_nobody_outranks_others_unless_that_was_allowed() -> None:
    gate = gate_of(b=Allowance(priority=(-8, 8)))
    admitted(gate, "a", priority=0)
    assert refused(gate, "a", priority=1).code == "forbidden"
    admitted(gate, "b", priority=8)
