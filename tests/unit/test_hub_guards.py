"""Guards on a whole server: a stream is the same however its engine overlaps, is lost, or is forked."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import pytest

from midstream import protocol
from midstream.protocol import Budget, Credit, Fork, Guard, Params
from realtime.hub import incoming_news
from realtime.stream.grants import GUARDED_AHEAD
from tests.fakes.checking_client import Account, Reader, spelled
from tests.fakes.simulated_client import rest, run_out, start
from tests.fakes.simulated_server import EngineSize, SimulatedServer

ROOM = EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=12)
OVERLAPS = pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
VOWELS = Guard(name="vowels", do="rewind", times=16, then="pause", regex="[aeiou]{2}")
INJECTED = [7, 8, 9]
WORDS = Guard(name="words", do="rewind", times=9, regex=r"\bt\w*\b")


def asked(*guards: Guard, **params: Any) -> Params:
    defaults: dict[str, Any] = {"seed": 5, "temperature": 1.0, "max_tokens": 60, "ignore_eos": True}
    return Params(guards=list(guards), **(defaults | params))


def opened(*, overlap: bool = False) -> tuple[SimulatedServer, Reader]:
    server = SimulatedServer(dataclasses.replace(ROOM, overlap=overlap))
    reader = Reader(server)
    reader.prompt = True
    return server, reader


def told(*guards: Guard, overlap: bool = False, **params: Any) -> tuple[SimulatedServer, Account]:
    server, reader = opened(overlap=overlap)
    reader.send(start(params=asked(*guards, **params)))
    run_out(server, reader.accounts[0])
    return server, reader.accounts[0]


@OVERLAPS
def test_what_may_not_be_found_is_not_there_and_the_rest_is_the_same(overlap: bool) -> None:
    _, free = told(overlap=overlap)
    forbidden = free.text[20:24]
    guard = Guard(name="g", do="rewind", times=16, regex=f"(?s:{forbidden})")
    server, account = told(guard, overlap=overlap)
    assert forbidden not in account.text
    first = account.acts.bans[0][0]
    assert account.tokens[:first] == free.tokens[:first]
    assert account.tokens[first] != free.tokens[first]
    assert told(guard, overlap=not overlap)[1].tokens == account.tokens
    assert account.final is not None
    assert account.final.usage.discarded_tokens >= len(account.acts.bans)
    assert not server.engine.scheduler.sequences


@pytest.mark.parametrize("guards", [[VOWELS], [WORDS], [VOWELS, WORDS]], ids=["vowels", "words", "both"])
def test_with_an_engine_lost_at_any_step_it_is_the_same(guards: list[Guard]) -> None:
    _, whole = told(*guards)
    assert whole.acts.bans
    for lost in range(1, 90, 7):
        server, reader = opened(overlap=lost % 2 == 0)
        reader.send(start(params=asked(*guards)))
        account = reader.accounts[0]
        for _ in range(lost):
            server.tick() if lost % 3 else server.step()
        server.kill_engine()
        server.revive_engine()
        run_out(server, account)
        assert account.tokens == whole.tokens
        assert account.final == dataclass_free(whole.final, account.final)


def dataclass_free(one: protocol.Final | None, other: protocol.Final | None) -> protocol.Final | None:
    """The one, with what is measured and not decided as in the other."""
    assert one is not None
    assert other is not None
    usage = protocol.Usage(**{name: getattr(one.usage, name) for name in one.usage.__struct_fields__})
    usage.discarded_tokens, usage.cached_tokens = other.usage.discarded_tokens, other.usage.cached_tokens
    return protocol.Final(
        request_id=one.request_id,
        seq=other.seq,
        index=one.index,
        finish_reason=one.finish_reason,
        stop_reason=one.stop_reason,
        usage=usage,
        timing=other.timing,
    )


def test_a_fork_with_its_parents_guards_is_its_parent_wherever_it_begins() -> None:
    _, whole = told(VOWELS, WORDS)
    for at in range(0, len(whole.tokens), 3):
        server, reader = opened()
        reader.send(start(params=asked(VOWELS, WORDS)))
        run_out(server, reader.accounts[0])
        fork = protocol.Start(
            request_id="b", fork=Fork(request_id="a", at=at), params=Params(seed=5), return_tokens=True
        )
        reader.send(fork)
        rest(server)
        assert reader.accounts[1].tokens == whole.tokens


def test_no_more_is_decoded_than_a_few_tokens_ahead_of_what_they_have_read() -> None:
    server, reader = opened()
    reader.send(start(params=asked(VOWELS, max_tokens=400), credit=Credit(limit=400)))
    while len(reader.accounts[0].tokens) < 100:
        server.tick()
        for sequence in server.engine.scheduler.sequences.values():
            assert sequence.credit <= len(server.hub.streams[0].output) + GUARDED_AHEAD


def test_others_have_their_turn_between_few_tokens_that_guards_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming_news, "GUARDED_TOKEN", incoming_news.NEWS_A_TURN)
    server, reader = opened()
    server.in_turns = True
    for name in "abc":
        reader.send(start(name, params=asked(VOWELS)))
    while not any(outputs := [len(stream.output) for stream in server.hub.streams]):
        server.tick()
    assert outputs == [1, 0, 0]
    server.clock.advance(0)
    assert [len(stream.output) for stream in server.hub.streams] == [1, 1, 0]


def test_others_do_not_wait_behind_what_guards_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming_news, "GUARDED_TOKEN", incoming_news.NEWS_A_TURN)
    server, reader = opened()
    server.in_turns = True
    for name in "abc":
        reader.send(start(name, params=asked(VOWELS)))
    reader.send(start("plain"))
    while not any(outputs := [len(stream.output) for stream in server.hub.streams]):
        server.tick()
    assert outputs == [1, 0, 0, 1]


def test_a_fork_may_be_free_of_them() -> None:
    _, free = told()
    server, reader = opened()
    reader.send(start(params=asked(VOWELS)))
    run_out(server, reader.accounts[0])
    params = Params(seed=5, guards=None)
    reader.send(
        protocol.Start(request_id="b", fork=Fork(request_id="a", at=0), params=params, return_tokens=True)
    )
    run_out(server, reader.accounts[1])
    assert reader.accounts[1].tokens == free.tokens


@OVERLAPS
def test_one_that_acts_ahead_of_credit_is_told_before_the_tokens_and_takes_none_back(overlap: bool) -> None:
    _, whole = told(VOWELS, WORDS)
    server, reader = opened(overlap=overlap)
    reader.send(start(params=asked(VOWELS, WORDS), credit=Credit(limit=0, prefetch=40)))
    account = reader.accounts[0]
    while not account.acts.bans:
        server.tick()
    assert account.acts.bans[0] == whole.acts.bans[0]
    assert not account.tokens
    assert not account.voided
    reader.send(protocol.Grant(request_id="a", limit=60))
    run_out(server, account)
    assert account.tokens == whole.tokens
    assert account.acts.bans == whole.acts.bans


@OVERLAPS
def test_what_is_injected_as_a_guard_pauses_is_not_lost(overlap: bool) -> None:
    guard = Guard(name="g", do="pause", regex="[aeiou]{2}")
    for ticks in range(2, 24):
        server, reader = opened(overlap=overlap)
        reader.send(start(params=asked(guard, max_tokens=30)))
        account = reader.accounts[0]
        for _ in range(ticks):
            server.tick()
        reader.send(protocol.Inject(request_id="a", tokens=INJECTED))
        while account.final is None:
            rest(server)
            reader.let_through()
        ((index, tokens),) = account.injections
        assert tokens == INJECTED
        assert index <= account.final.index
        assert account.final.usage.injected_tokens == len(INJECTED)


@OVERLAPS
def test_what_is_held_back_again_as_a_guard_pauses_is_told_to_be_taken_back(overlap: bool) -> None:
    _, free = told()
    for at in range(2, 12):
        guard = Guard(name="g", do="pause", regex=f"(?s:{re.escape(spelled(free.tokens[at : at + 1]))})")
        server, reader = opened(overlap=overlap)
        reader.send(start(params=asked(), credit=Credit(limit=at)))
        rest(server)
        account = reader.accounts[0]
        stop = account.text[-2:] + spelled(free.tokens[at : at + 1]) + "no more"
        reader.send(protocol.Adjust(request_id="a", params=Params(stop=[stop], guards=[guard])))
        reader.send(protocol.Grant(request_id="a", limit=60))
        while account.final is None:
            rest(server)
            reader.let_through()
        assert account.text == free.text


@OVERLAPS
def test_a_client_that_goes_back_has_the_same_again(overlap: bool) -> None:
    server, reader = opened(overlap=overlap)
    reader.send(start(params=asked(VOWELS, WORDS)))
    account = reader.accounts[0]
    _, whole = told(VOWELS, WORDS)
    for read, to in ((20, 11), (30, 30), (40, 2)):
        while len(account.tokens) < read and account.final is None:
            server.tick()
        reader.send(protocol.Rewind(request_id="a", to=min(to, len(account.tokens))))
    run_out(server, account)
    assert account.tokens == whole.tokens


@OVERLAPS
def test_forks_and_parent_go_on_alike_when_their_engine_is_lost(overlap: bool) -> None:
    _, whole = told(VOWELS)
    server, reader = opened(overlap=overlap)
    reader.send(start(params=asked(VOWELS)))
    while len(reader.accounts[0].tokens) < 25:
        server.tick()
    for name, at in (("b", 3), ("c", 20)):
        fork = Fork(request_id="a", at=at)
        reader.send(protocol.Start(request_id=name, fork=fork, params=Params(seed=5), return_tokens=True))
    server.tick()
    server.kill_engine()
    server.revive_engine()
    for account in reader.accounts:
        run_out(server, account)
        assert account.tokens == whole.tokens


@pytest.mark.parametrize(
    ("budget", "is_kept"), [(Budget(tokens=50, calls=9), True), (Budget(seconds=50), False)]
)
def test_a_budget_of_seconds_alone_keeps_a_stream_from_being_found_at_another_gateway(
    budget: Budget, is_kept: bool
) -> None:
    server = SimulatedServer(ROOM, keeps=True)
    many = Guard(name="many", do="pause", budget=budget)
    Reader(server).send(start(params=asked(many), on_disconnect="continue"))
    server.tick()
    [stream] = server.hub.streams
    assert stream.is_kept == is_kept
    server.check_kept()
    assert server.adoptions == is_kept


def test_a_budget_of_seconds_that_is_put_in_ends_that_too_and_its_engine_hears_so() -> None:
    server = SimulatedServer(ROOM, keeps=True)
    reader = Reader(server)
    reader.send(start(params=asked(), on_disconnect="continue"))
    server.tick()
    [stream] = server.hub.streams
    assert stream.is_kept
    many = Guard(name="many", do="pause", budget=Budget(seconds=50))
    reader.send(protocol.Adjust(request_id="a", params=Params(guards=[many])))
    server.tick()
    kept = server.engines[0].keeping.kept[stream.number]
    assert (server.hub.streams[0].is_kept, kept.journal.whole) == (False, False)
