"""What a tenant takes at one gateway counts at the others, for as long as that gateway is there."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import pytest

from engine import api
from engine.listening.announcements import Announcements
from midstream.protocol import Start
from realtime.hub.serving_engine import ServingEngine
from realtime.hub.shares import SPENT_S, Shares
from realtime.refusal import Refusal
from realtime.tenants.allowance import Allowance
from realtime.tenants.quota import Quotas, StreamQuota
from tests.fakes.lone_stream import MODEL
from tests.fakes.simulated_server import Clock


class Relay:
    """An engine that listens, as far as it passes on what gateways announce."""

    def __init__(self) -> None:
        self._announcements = Announcements[Gateway]()
        self.announced = 0

    def take(self, gateway: Gateway, engine: int, command: api.Announce) -> None:
        self.announced += 1
        for other, told in self._announcements.make(gateway, command.what):
            other.receive(engine, told)

    def leave(self, gateway: Gateway, engine: int) -> None:
        for other, told in self._announcements.leave(gateway):
            other.receive(engine, told)


class Gateway:
    def __init__(self, clock: Clock, relays: list[Relay], allowance: Allowance, share: Allowance) -> None:
        self.allowance = allowance
        self.quotas = Quotas(lambda tenant: self.allowance, clock, share=share)
        self._relays = relays
        self.engines: dict[int, ServingEngine] = {}
        serving = SimpleNamespace(engines=self.engines, flush=self._flush)
        self.shares = Shares(serving, self.quotas, clock.call_later)  # type: ignore[arg-type]
        for number in range(len(relays)):
            self.meet(number)

    def meet(self, number: int) -> None:
        keeper = b"engine %d" % number
        self.engines[number] = engine = ServingEngine(number, MODEL, 16, self._send, keeper=keeper)
        self.shares.engine_ready(engine)

    def read_keys(self, allowance: Allowance) -> None:
        """The key file says something else now."""
        self.allowance = allowance
        self.quotas.allowances_changed()

    def lose(self, number: int) -> None:
        engine = self.engines.pop(number)
        engine.lose()
        self.shares.engine_lost(engine)

    def receive(self, number: int, announced: api.Announced) -> None:
        self.shares.receive(self.engines[number], announced)

    def start(self, prompt_tokens: int = 1) -> StreamQuota:
        return self.quotas.admit("ann", Start(request_id="r", prompt="Once"), prompt_tokens)

    def refuses(self, prompt_tokens: int = 1) -> bool:
        try:
            self.start(prompt_tokens).end()
        except Refusal:
            return True
        return False

    def _flush(self) -> None:
        for engine in self.engines.values():
            engine.flush()

    def _send(self, number: int, commands: list[api.AnyCommand]) -> None:
        for command in commands:
            assert isinstance(command, api.Announce)
            self._relays[number].take(self, number, command)


class Gateways:
    def __init__(self, allowance: Allowance, *, relays: int = 1, share: Allowance | None = None) -> None:
        self.clock = Clock()
        self.relays = [Relay() for _ in range(relays)]
        self._new = partial(Gateway, self.clock, self.relays, allowance, share or Allowance())
        self.first, self.second = self._new(), self._new()
        self.settle()

    def another(self) -> Gateway:
        return self._new()

    def settle(self) -> None:
        for _ in range(3):
            self.clock.advance(SPENT_S)


def test_streams_count_at_both_until_they_end() -> None:
    them = Gateways(Allowance(max_streams=2))
    one, _ = them.first.start(), them.second.start()
    them.settle()
    assert them.first.refuses()
    assert them.second.refuses()
    one.end()
    them.settle()
    assert not them.second.refuses()


@pytest.mark.parametrize("what", [b"hello", b"\xc1", b"\x91" * 10_000, b"\x92\x80\xa1\xff"])
def test_a_program_that_announces_something_else_is_passed_over(what: bytes) -> None:
    them = Gateways(Allowance(max_streams=1))
    them.first.receive(0, api.Announced(9, what))
    them.first.start()
    them.settle()
    assert them.second.refuses(), "the others are heard"


def test_prompts_that_wait_count_at_both() -> None:
    them = Gateways(Allowance(prefill_tokens=100))
    waiting = them.first.start(90)
    them.settle()
    assert them.second.refuses(20)
    waiting.prefill_begun()
    them.settle()
    assert not them.second.refuses(20)


def test_connections_count_at_both() -> None:
    them = Gateways(Allowance(max_connections=2))
    for gateway in (them.first, them.second):
        gateway.quotas.check_connections("ann")
        gateway.quotas.take("ann", connections=1)
    them.settle()
    with pytest.raises(Refusal, match="2 connections"):
        them.second.quotas.check_connections("ann")
    them.first.quotas.take("ann", connections=-1)
    them.settle()
    them.second.quotas.check_connections("ann")


def test_a_minutes_tokens_are_those_of_both_and_come_back_at_both() -> None:
    them = Gateways(Allowance(tokens_per_minute=60))
    them.first.quotas.count("ann", 40)
    them.second.quotas.count("ann", 40)
    them.settle()
    assert them.first.refuses()
    assert them.second.refuses()
    them.clock.advance(30)
    assert not them.first.refuses()


def test_loads_are_those_of_both() -> None:
    them = Gateways(Allowance(loads_per_hour=1))
    them.first.quotas.count_load("ann")
    them.settle()
    with pytest.raises(Refusal, match="1 loads"):
        them.second.quotas.check_loads("ann")


def test_one_that_comes_later_hears_of_all_and_pays_for_nothing_before() -> None:
    them = Gateways(Allowance(max_streams=2, tokens_per_minute=60))
    them.first.start()
    them.second.start()
    them.first.quotas.count("ann", 50)
    them.settle()
    them.clock.advance(60)
    third = them.another()
    them.settle()
    assert third.refuses()
    third.quotas.check_rate("ann")


@pytest.mark.parametrize("relays", [1, 2])
def test_what_was_taken_at_one_that_is_gone_is_taken_no_more(relays: int) -> None:
    them = Gateways(Allowance(max_streams=2), relays=relays)
    them.first.start()
    them.first.start()
    them.settle()
    assert them.second.refuses()
    for number, relay in enumerate(them.relays):
        relay.leave(them.first, number)
    assert not them.second.refuses()


def test_one_that_hands_over_is_in_nobodys_way() -> None:
    them = Gateways(Allowance(max_streams=1))
    stream = them.first.start()
    them.settle()
    assert them.second.refuses()
    them.first.shares.withdraw()
    assert not them.second.refuses()
    them.settle()
    announced = them.relays[0].announced
    them.first.shares.withdraw()
    assert them.relays[0].announced == announced, "each time that it looks who else may go"
    stream.end()
    them.settle()
    assert not them.second.refuses()


def test_the_engine_by_which_they_tell_may_go_and_come_and_counts_nobody_twice() -> None:
    them = Gateways(Allowance(max_streams=2), relays=2)
    them.first.start()
    them.settle()
    for lost in (0, 1):
        for gateway in (them.first, them.second):
            gateway.lose(lost)
        them.relays[lost] = Relay()
        them.settle()
        seconds = them.second.start()
        assert them.second.refuses()
        seconds.end()
        for gateway in (them.first, them.second):
            gateway.meet(lost)
        them.first.start().end()
        them.settle()
        them.second.start().end()
        seconds = them.second.start()
        assert them.second.refuses()
        seconds.end()


def test_a_share_that_a_server_leaves_to_each_is_of_that_server() -> None:
    them = Gateways(Allowance(), share=Allowance(max_streams=1, max_connections=1))
    them.first.start()
    them.first.quotas.take("ann", connections=1)
    them.settle()
    assert them.first.refuses()
    them.second.quotas.check_connections("ann")
    them.second.start()
    assert them.second.refuses()


def test_a_gateway_alone_tells_nobody_and_without_limits_there_is_nothing_to_tell() -> None:
    clock, relay = Clock(), Relay()
    alone = Gateway(clock, [relay], Allowance(max_streams=2), Allowance())
    alone.start()
    clock.advance(60)
    assert relay.announced == 1, "who is there"
    unbounded = Quotas()
    assert not unbounded.are_bounded


def test_what_was_taken_before_there_was_a_limit_counts_nowhere() -> None:
    """A day's tokens of a gateway would be held against a minute's at the others, for hours."""
    them = Gateways(Allowance())
    them.first.start(1_000_000).end()
    for gateway in (them.first, them.second):
        gateway.read_keys(Allowance(tokens_per_minute=1000))
    them.first.start(10).end()
    them.settle()
    assert not them.second.refuses()
    them.first.start(2000).end()
    them.settle()
    assert them.second.refuses(), "what is taken from now on counts"


def test_a_key_file_that_changes_has_nobody_told_of_those_who_had_their_limits_before() -> None:
    """Of ten thousand it takes a gateway 50 ms to hear, whenever a key is added."""
    them = Gateways(Allowance(max_streams=2))
    them.first.start()
    them.settle()
    announced = them.relays[0].announced
    them.first.read_keys(Allowance(max_streams=3))
    them.settle()
    assert them.relays[0].announced == announced


def test_what_is_taken_at_present_counts_as_soon_as_there_is_a_limit() -> None:
    them = Gateways(Allowance())
    streams = [them.first.start(), them.first.start()]
    for limits in 2 * (Allowance(max_streams=2), Allowance()):
        for gateway in (them.first, them.second):
            gateway.read_keys(limits)
        them.settle()
        assert them.second.refuses() == limits.has_limits
        them.another()  # who has the others told of those alone who have limits
        them.settle()
    for stream in streams:
        stream.end()
    for gateway in (them.first, them.second):
        gateway.read_keys(Allowance(max_streams=1))
    them.settle()
    assert not them.second.refuses(), "they ended while nobody told of them"
