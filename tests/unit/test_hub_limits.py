"""The hub's limits: what a start may ask for, how many streams may wait for a listener, when it is full."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from engine import api
from midstream import protocol
from midstream.protocol import Message, Params
from realtime.hub.detached_streams import DetachedStreams
from realtime.hub.starting import tenant_number
from realtime.tenants.allowance import Allowance
from realtime.tenants.quota import Quotas
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import LONG, endless, rest, settled, start
from tests.fakes.simulated_server import EngineSize, SimulatedServer

SIZE = EngineSize(kv_tokens=8192, block=16, step_tokens=4096, slots=8)


def served(**limits: Any) -> SimulatedServer:
    return SimulatedServer(SIZE, **limits)


def waiting(server: SimulatedServer, *request_ids: str, tenant: str = "tenant") -> None:
    """Streams of a connection that has left them."""
    listener = RecordingListener(server, tenant)
    for request_id in request_ids:
        listener.send(endless(request_id, on_disconnect="pause", credit=protocol.Credit()))
    assert listener.errors == []
    rest(server)
    listener.leave()
    rest(server)


def live(server: SimulatedServer) -> list[str]:
    return [stream.request_id for stream in server.hub.streams]


# -- what a start may ask for ----------------------------------------------------------------------


@pytest.mark.parametrize("field", ["grace_ms", "timeout_ms"])
def test_a_start_that_asks_for_more_time_than_there_is_is_told_the_limit(field: str) -> None:
    listener = RecordingListener(served(**{f"max_{field}": 5000}))
    asked: dict[str, Any] = {field: 5001}
    listener.send(start(**asked))
    error = listener.error()
    assert error.code == "invalid_params"
    for word in (f"`{field}` is 5001", "limit is 5000", f"`max_{field}`"):
        assert word in error.message
    asked[field] = 5000
    listener.send(start(**asked))
    assert listener.errors == []


def test_no_stream_lives_longer_than_any_may_whatever_its_start_leaves_out() -> None:
    server = served(max_timeout_ms=5000)
    listener = RecordingListener(server)
    listener.send(endless(credit=protocol.Credit()))
    rest(server)
    server.clock.advance(4.9)
    rest(server)
    assert live(server) == ["a"]
    server.clock.advance(0.2)
    rest(server)
    assert (listener.final.finish_reason, listener.final.stop_reason) == ("length", "timeout")


def test_the_grace_of_a_start_that_says_none_is_within_the_limit_too() -> None:
    server = served(max_grace_ms=5000)
    waiting(server, "a")
    server.clock.advance(4.9)
    rest(server)
    assert live(server) == ["a"]
    server.clock.advance(0.2)
    rest(server)
    assert live(server) == []


# -- streams that nobody listens to ----------------------------------------------------------------


def test_where_too_many_wait_the_oldest_of_whoever_left_most_ends() -> None:
    server = served(max_detached=4)
    waiting(server, "mine")
    waiting(server, "1", "2", "3")
    waiting(server, "4", "5", "6")
    assert live(server) == ["mine", "3", "5", "6"]
    late = RecordingListener(server)
    late.send(protocol.Attach(request_id="1", after=-1))
    assert (late.final.finish_reason, late.final.stop_reason) == ("cancelled", "detached")


def test_one_tenants_waiting_streams_are_no_concern_of_anothers() -> None:
    server = served(max_detached=2)
    waiting(server, "a", "b", tenant="first")
    waiting(server, "c", "d", tenant="second")
    assert live(server) == ["a", "b", "c", "d"]


def test_whoever_comes_back_or_ends_makes_room() -> None:
    server = served(max_detached=2)
    waiting(server, "a", "b")
    back = RecordingListener(server)
    back.send(protocol.Attach(request_id="a", after=-1))
    waiting(server, "c")
    assert live(server) == ["a", "b", "c"]
    back.send(protocol.Cancel(request_id="b"))
    rest(server)
    waiting(server, "d")
    assert live(server) == ["a", "c", "d"]
    back.leave()
    rest(server)
    assert live(server) == ["a", "d"], "of those who left as many, it is the one who left before the others"


def test_it_is_bounded_without_an_engine_too() -> None:
    server = served(max_detached=1)
    listener = RecordingListener(server)
    for request_id in ("a", "b"):
        listener.send(endless(request_id, on_disconnect="continue"))
    rest(server)
    server.kill_engine()
    listener.leave()
    assert live(server) == ["b"]


def test_of_many_that_one_leaves_behind_some_do_what_their_start_said_in_each_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("realtime.hub.departures.LEFT_A_TURN", 2)
    server = served()
    listener = RecordingListener(server)
    for request_id in "abcde":
        listener.send(endless(request_id, on_disconnect="pause", credit=protocol.Credit()))
    rest(server)
    listener.leave()
    rest(server)
    assert paused(server) == ["a", "b"]
    back = RecordingListener(server)
    back.send(protocol.Attach(request_id="e", after=-1))
    back.send(protocol.Attach(request_id="d", after=-1))
    assert back.errors == []
    again = RecordingListener(server)
    again.send(protocol.Attach(request_id="d", after=-1))
    again.leave()
    server.clock.advance(0)
    rest(server)
    assert paused(server) == ["a", "b", "c"], "the last two had a listener again before their turn came"
    for _ in range(2):
        server.clock.advance(0)
        rest(server)
    assert paused(server) == ["a", "b", "c", "d"], "and one was left a second time"
    assert (listener.memory.held, server.hub._departures.left) == (0, {})


async def test_of_what_is_to_be_put_in_its_tokens_wait_for_an_engine_and_no_text() -> None:
    """A message may have any number of parts that say nothing."""
    server = served()
    listener = RecordingListener(server)
    listener.send(endless("a", on_disconnect="continue"))
    rest(server)
    server.kill_engine()
    before = listener.memory.held
    parts = [protocol.TextPart("") for _ in range(5000)]
    listener.send(protocol.Inject(request_id="a", messages=[Message(role="user", content=parts)]))
    listener.send(protocol.Inject(request_id="a", text="to be put in"))
    await settled()
    [stream] = server.hub.streams
    waiting = [pending.frame for pending in stream._commands.waiting]
    assert len(waiting) == 2
    assert len(msgspec.msgpack.encode(waiting)) < listener.memory.held - before
    assert all(isinstance(frame, protocol.Inject) and not frame.text for frame in waiting)


def test_a_stream_of_which_many_commands_have_no_reply_is_left_in_a_turn_of_its_own() -> None:
    server = served()
    listener = RecordingListener(server)
    for request_id in "abc":
        listener.send(endless(request_id, on_disconnect="cancel", credit=protocol.Credit()))
    rest(server)
    server.kill_engine()
    for request_id in "abc":
        for _ in range(1100):
            listener.send(protocol.Rewind(request_id=request_id, to=0))
    assert listener.errors == []
    listener.leave()
    assert live(server) == ["b", "c"], "its end refuses all of them"
    server.clock.advance(0)
    assert live(server) == ["c"]
    server.clock.advance(0)
    assert live(server) == []


def test_of_many_whose_time_is_over_at_once_some_end_in_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realtime.hub.deadlines.OVER_A_TURN", 2)
    server = served()
    listener = RecordingListener(server)
    for request_id in "abcde":
        listener.send(endless(request_id, timeout_ms=1000, credit=protocol.Credit()))
    rest(server)
    left = [live(server)]
    for seconds in (1, 0, 0):
        server.clock.advance(seconds)
        rest(server)
        left.append(live(server))
    assert left == [["a", "b", "c", "d", "e"], ["c", "d", "e"], ["e"], []]


def test_where_ending_a_stream_fails_those_behind_it_in_its_turn_end_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("realtime.hub.deadlines.OVER_A_TURN", 2)
    server = served()
    listener = RecordingListener(server)
    for request_id in "abcde":
        listener.send(endless(request_id, timeout_ms=1000, credit=protocol.Credit()))
    rest(server)
    bad = server.hub.streams[2]
    monkeypatch.setattr(bad, "time_out", lambda now, step: 1 // 0)
    for seconds in (1, 0, 0):
        server.clock.advance(seconds)
    rest(server)
    assert live(server) == []
    assert bad.final is not None
    assert bad.final.finish_reason == "error"


def test_who_comes_back_before_a_streams_turn_to_end_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realtime.hub.deadlines.OVER_A_TURN", 1)
    server = served(max_grace_ms=1000)
    waiting(server, "a", "b", "c")
    server.clock.advance(1)
    back = RecordingListener(server)
    back.send(protocol.Attach(request_id="c", after=-1))
    for _ in range(2):
        server.clock.advance(0)
        rest(server)
    assert (live(server), back.errors) == (["c"], [])


def paused(server: SimulatedServer) -> list[str]:
    return [stream.request_id for stream in server.hub.streams if stream.paused]


def test_of_tenants_of_whom_nothing_waits_nothing_is_kept() -> None:
    streams = DetachedStreams(2)
    for tenant in ("a", "b"):
        streams.add(tenant, 0, 1)
        streams.add(tenant, 0, 2)
        streams.remove(tenant, 1)
        streams.remove(tenant, 2)
        streams.remove(tenant, 2)
    assert not streams._of_tenant


# -- full ------------------------------------------------------------------------------------------


def test_it_is_full_while_another_start_would_be_refused() -> None:
    server = served(max_streams=2)
    listener = RecordingListener(server)
    for request_id in ("a", "b"):
        assert not server.hub.full
        listener.send(start(request_id, params=Params(max_tokens=1)))
    assert server.hub.full
    listener.send(start("c"))
    assert listener.error().code == "overloaded"
    rest(server)
    assert not server.hub.full


def test_without_an_engine_it_takes_no_start() -> None:
    server = served()
    assert server.hub.serving.takes_starts
    server.kill_engine()
    assert not server.hub.serving.takes_starts


async def test_of_starts_that_are_tokenized_at_once_as_many_begin_as_there_are_places() -> None:
    server = served()
    listener = RecordingListener(server)
    for number in range(SIZE.slots + 2):
        listener.send(endless(f"{number}", prompt=LONG[:2100]))
    await settled()
    assert len(live(server)) == SIZE.slots
    assert [error.code for error in listener.errors] == ["overloaded"] * 2


async def test_starts_of_a_tenant_that_are_tokenized_take_no_more_places_than_it_may_have() -> None:
    server = served(quotas=Quotas(lambda tenant: Allowance(max_streams=2)))
    hoarder, other = RecordingListener(server, "hoarder"), RecordingListener(server, "other")
    for number in range(2 * SIZE.slots):
        hoarder.send(endless(f"{number}", prompt=LONG[:2100]))
    other.send(start("mine"))
    assert (other.errors, server.hub.full) == ([], False)
    await settled()
    assert sorted(live(server)) == ["0", "1", "mine"], "two threads: either may be the first to begin"
    assert {error.code for error in hoarder.errors} == {"too_many_streams"}
    hoarder.send(protocol.Cancel(request_id="0"))
    rest(server)
    hoarder.send(endless("again", prompt=LONG[:2100]))
    await settled()
    assert "again" in live(server), "nothing is left of those that were refused"


async def test_a_start_whose_connection_goes_while_it_is_tokenized_leaves_its_place() -> None:
    server = served(quotas=Quotas(lambda tenant: Allowance(max_streams=1)))
    gone, listener = RecordingListener(server), RecordingListener(server)
    gone.send(endless("gone", prompt=LONG[:2100]))
    await asyncio.sleep(0)
    listener.send(start("refused"))
    assert listener.error().code == "too_many_streams"
    gone.leave()
    await settled()
    listener.send(start("taken"))
    assert live(server) == ["taken"]


# -- who shares engines with whom ------------------------------------------------------------------


def test_who_pays_shares_the_engine_with_others_and_finds_what_was_computed_for_the_tenant() -> None:
    server = served()
    for number in (3, 4):
        listener = RecordingListener(server)
        listener.number = number
        listener.send(start(str(number)))
    submits = [one for commands in server.down for one in commands if isinstance(one, api.Submit)]
    whose = tenant_number("tenant")
    assert [(one.tenant, one.cache_of) for one in submits] == [(3, whose), (4, whose)]
