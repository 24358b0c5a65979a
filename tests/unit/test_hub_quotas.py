"""What the engine computes for a tenant is counted, whichever frame asks for it, and paid for before more."""

from __future__ import annotations

import itertools
from dataclasses import replace as replace_size
from typing import Literal

import pytest
from msgspec.structs import replace

from engine.schedule.serving_order import AGING_STEPS
from midstream import protocol
from midstream.protocol import Params
from realtime.stream.outbox import OutgoingEvent
from realtime.tenants.allowance import Allowance
from realtime.tenants.quota import Quotas
from tests.fakes.computed_tokens import ComputedTokens
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import SIZE, TENANT, rest, start
from tests.fakes.simulated_server import Clock, SimulatedServer

TEXT = 200 * "x"  # as many tokens
STILL = Params(ignore_eos=True)


class Tenant:
    """A client of a tenant that may have so many tokens a minute, with a stream `a` that waits for credit."""

    def __init__(self, tokens_per_minute: int) -> None:
        clock, allowance = Clock(), Allowance(tokens_per_minute=tokens_per_minute)
        self.server = SimulatedServer(SIZE, clock=clock, quotas=Quotas(lambda tenant: allowance, clock))
        self.listener = RecordingListener(self.server)
        self._names = map(str, itertools.count())
        self.send(start(credit=protocol.Credit(limit=2), params=STILL))

    def send(self, frame: protocol.StreamFrame) -> str | None:
        """The code of its refusal, if it was refused; what was not has taken effect."""
        self.listener.send(frame)
        rest(self.server)
        return self.listener.errors.pop().code if self.listener.errors else None

    def last(self) -> OutgoingEvent:
        return self.listener.heard[-1]

    def limit_reached(self) -> bool:
        probe = start(next(self._names), prompt=[1], params=Params(max_tokens=1))
        return self.send(probe) == "rate_limited"


def inject(text: str = TEXT, at: int | None = None) -> protocol.Inject:
    return protocol.Inject(request_id="a", text=text, at=at)


def test_what_is_injected_counts() -> None:
    tenant = Tenant(300)
    assert tenant.send(inject()) is None
    assert not tenant.limit_reached()
    assert tenant.send(inject()) is None
    assert tenant.limit_reached()


def test_a_fork_counts_with_all_that_it_begins_with() -> None:
    """As a start with a past does: what was injected is computed for it, too, where it is not found."""
    tenant = Tenant(1000)
    assert tenant.send(inject()) is None
    for name in "bcd":
        assert tenant.send(protocol.Start(request_id=name, fork=protocol.Fork(request_id="a"))) is None
        assert tenant.send(protocol.Cancel(request_id=name)) is None
    assert tenant.send(inject()) is None
    assert tenant.limit_reached()


def test_what_is_injected_again_and_again_at_one_token_counts_each_time() -> None:
    tenant = Tenant(1000)
    injected = 0
    while tenant.send(inject(at=0)) is None:
        injected += len(TEXT)
        assert injected <= 1000
    assert injected >= 800


def test_an_inject_beyond_the_limit_is_refused_and_harms_nothing() -> None:
    tenant = Tenant(300)
    tenant.send(inject())
    tenant.send(inject())
    before = list(tenant.listener.heard)
    assert tenant.send(inject("y")) == "rate_limited"
    assert tenant.send(protocol.Inject(request_id="a", tokens=[1])) == "rate_limited"
    assert tenant.listener.heard == before
    tenant.server.clock.advance(60)
    assert tenant.send(inject("y")) is None
    assert isinstance(tenant.last(), protocol.Injected)


def test_an_inject_that_is_refused_is_charged_for_its_text_alone() -> None:
    tenant = Tenant(300)
    for _ in range(3):
        assert tenant.send(protocol.Inject(request_id="a", tokens=200 * [1], at=9)) == "invalid_params"
    assert not tenant.limit_reached()
    for _ in range(2):
        assert tenant.send(inject(at=9)) == "invalid_params"
    assert tenant.limit_reached()


def test_a_text_that_its_engine_refuses_counts() -> None:
    tenant = Tenant(4000)
    tenant.listener.send(protocol.Inject(request_id="a", tokens=3950 * [1]))
    tenant.send(inject())
    assert isinstance(error := tenant.last(), protocol.Error)
    assert error.code == "context_too_long"
    assert tenant.limit_reached()


@pytest.mark.parametrize("at", [None, 0])
def test_a_text_that_a_cancel_overtakes_counts(at: int | None) -> None:
    """As where there is no engine that would have taken it before."""
    tenant = Tenant(300)
    for name in ("b", "c"):
        assert tenant.send(start(name, credit=protocol.Credit(limit=2), params=STILL)) is None
    tenant.server.kill_engine()
    for name in ("b", "c"):
        tenant.listener.send(replace(inject(at=at), request_id=name))
        tenant.listener.send(protocol.Cancel(request_id=name))
        errors = [event for event in tenant.listener.heard if isinstance(event, protocol.Error)]
        assert [(error.request_id, error.code) for error in errors][-1] == (name, "request_finished")
        assert isinstance(tenant.last(), protocol.Final)
    tenant.server.revive_engine()
    assert tenant.limit_reached()


def released(tenant: Tenant) -> None:
    assert tenant.send(protocol.Pause(request_id="a", kv="release")) is None


def resumed(tenant: Tenant) -> str | None:
    return tenant.send(protocol.Resume(request_id="a"))


def forget_cache(tenant: Tenant) -> None:
    """Another tenant's stream takes all memory, for nothing, and finds nothing there of those before."""
    cache = tenant.server.engine.cache
    number = tenant.server.counts.steps
    params = Params(max_tokens=1, ignore_eos=True)
    everything = start("large", prompt=[60 + number] * 4090, params=params)
    other = RecordingListener(tenant.server, f"other {number}")
    other.send(everything)
    rest(tenant.server)
    assert not other.errors
    assert cache.used == 0


def test_what_is_computed_again_because_it_was_released_counts() -> None:
    tenant = Tenant(1000)
    tenant.send(inject())
    recomputed = 0
    while not tenant.limit_reached():
        released(tenant)
        forget_cache(tenant)
        assert resumed(tenant) is None
        event = tenant.last()
        assert isinstance(event, protocol.Resumed)
        assert event.recomputed_tokens > 200
        recomputed += event.recomputed_tokens
        assert recomputed <= 1300
        assert tenant.send(protocol.Grant(request_id="a", limit=event.index + 1)) is None  # it is computed


def test_what_is_put_in_while_memory_is_released_counts_once() -> None:
    """It was never computed before."""
    tenant = Tenant(300)
    released(tenant)
    forget_cache(tenant)
    assert tenant.send(inject()) is None
    assert resumed(tenant) is None
    event = tenant.last()
    assert isinstance(event, protocol.Resumed)
    assert event.recomputed_tokens < len(TEXT)
    assert not tenant.limit_reached()


def takes_turns(tenants: tuple[str, str]) -> tuple[int, int]:
    """Two streams that take each other's memory whenever one has credit: what both have computed once they
    stand, and what that was counted as."""
    size, clock = replace_size(SIZE, kv_tokens=256), Clock()
    quotas = Quotas(lambda tenant: Allowance(tokens_per_minute=10**6), clock)
    server = SimulatedServer(size, clock=clock, quotas=quotas)
    listeners = [RecordingListener(server, tenant) for tenant in tenants]
    computed = ComputedTokens(server)

    def go_on(limit: int) -> None:
        for name, listener in zip("ab", listeners, strict=True):
            listener.send(protocol.Grant(request_id=name, limit=limit))
            for _ in range(2 * AGING_STEPS):  # after which who waits for credit may lose its memory
                server.tick()

    for name, listener in zip("ab", listeners, strict=True):
        prompt = [60 + ord(name)] * 150
        listener.send(start(name, prompt=prompt, credit=protocol.Credit(limit=0), params=STILL))
    go_on(1)
    before = computed.total, sum(taken.tokens for taken in quotas.taken().values())
    for limit in range(2, 7):
        go_on(limit)
    after = computed.total, sum(taken.tokens for taken in quotas.taken().values())
    return after[0] - before[0], after[1] - before[1]


def test_what_a_tenants_streams_take_of_each_others_memory_counts() -> None:
    """Else whoever gave many a token each, in turns, had the engine compute all of them each time."""
    computed, counted = takes_turns(("one", "one"))
    assert computed > 500
    assert counted == computed


def test_what_is_under_way_as_memory_is_released_counts() -> None:
    """A piece of a prompt that nobody would ever have."""
    size = replace_size(SIZE, step_tokens=64, overlap=True)
    quotas = Quotas(lambda tenant: Allowance(tokens_per_minute=10**6), clock := Clock())
    server = SimulatedServer(size, clock=clock, quotas=quotas)
    listener, computed = RecordingListener(server), ComputedTokens(server)
    listener.send(start(prompt=1000 * [61], params=STILL, credit=protocol.Credit(limit=1)))
    for _ in range(100):
        server.tick()
        listener.send(protocol.Pause(request_id="a", kv="release"))
        listener.send(protocol.Resume(request_id="a"))
    rest(server)
    assert computed.total > 5000
    assert computed.total <= quotas.taken()[TENANT].tokens + 100


def test_what_others_take_of_its_memory_counts_for_nobody() -> None:
    computed, counted = takes_turns(("one", "two"))
    assert computed > 500
    assert counted == 10, "its own tokens"


def test_a_resume_of_what_was_released_is_refused_beyond_the_limit_and_loses_nothing() -> None:
    tenant = Tenant(300)
    tenant.send(inject())
    released(tenant)
    assert tenant.send(inject()) is None, "it is paused, and takes what it is given"
    assert resumed(tenant) == "rate_limited"
    assert tenant.send(protocol.Pause(request_id="a")) is None, "which does not take its memory back"
    assert resumed(tenant) == "rate_limited"
    tenant.server.clock.advance(60)
    assert resumed(tenant) is None
    assert isinstance(tenant.last(), protocol.Resumed)


def test_what_goes_on_behind_an_injection_is_released_no_more() -> None:
    tenant = Tenant(300)
    released(tenant)
    assert tenant.send(replace(inject(), resume=True)) is None
    assert isinstance(tenant.last(), protocol.Resumed)
    assert tenant.send(inject()) is None
    assert tenant.limit_reached()
    assert tenant.send(protocol.Pause(request_id="a")) is None
    assert resumed(tenant) is None, "nothing of it is computed again"


def test_a_resume_of_what_was_kept_is_never_refused() -> None:
    tenant = Tenant(300)
    tenant.send(inject())
    tenant.send(inject())
    assert tenant.send(protocol.Pause(request_id="a")) is None
    assert resumed(tenant) is None
    tenant.server.clock.advance(120)
    released(tenant)
    assert resumed(tenant) is None
    tenant.send(inject())
    tenant.send(inject())
    assert tenant.send(protocol.Pause(request_id="a")) is None, "it has been computed since"
    assert resumed(tenant) is None


def test_what_was_released_is_known_to_be_where_its_stream_is_adopted() -> None:
    server = SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(server)
    listener.send(start(on_disconnect="pause", credit=protocol.Credit(limit=2), params=STILL))
    kinds: tuple[Literal["release", "hold"], ...] = ("release", "hold")
    for kv in kinds:
        listener.send(protocol.Pause(request_id="a", kv=kv))
        rest(server)
        assert server.hub.streams[0].released
        server.check_kept()
    listener.send(protocol.Resume(request_id="a"))
    rest(server)
    assert not server.hub.streams[0].released
    server.check_kept()
    assert server.adoptions == 3


def test_a_start_that_fails_by_a_mistake_of_ours_takes_no_place_of_its_tenants(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = Allowance(max_streams=1)
    server = SimulatedServer(SIZE, quotas=Quotas(lambda tenant: one))
    listener = RecordingListener(server)
    with monkeypatch.context() as patch:
        patch.setattr("realtime.hub.starting.start_digest", lambda frame: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            listener.send(start("a"))
    listener.send(start("b"))
    assert not listener.errors
    rest(server)


def test_a_prompt_that_its_client_has_paused_does_not_wait_for_the_engine() -> None:
    """It shut its own tenant out until it went on, and nothing of it is computed before."""
    server = SimulatedServer(SIZE, quotas=Quotas(lambda tenant: Allowance(prefill_tokens=150)))
    listener = RecordingListener(server)
    listener.send(start(prompt="x" * 100))
    listener.send(protocol.Pause(request_id="a"))
    server.tick()
    assert server.hub.streams[0].paused == "client"
    listener.send(start("b", prompt="x" * 100))
    assert not listener.errors
