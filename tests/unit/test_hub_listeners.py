"""The hub and its listeners, each rule by an example: attaching, starting again, going."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

from engine import api
from midstream import protocol
from midstream.protocol import Budget, Credit, Guard, Params
from realtime.hub.ended_streams import KEPT_S
from realtime.hub.hub import LONG_TEXT
from realtime.hub.incoming_news import ACT_S
from realtime.stream.grants import GUARDED_AHEAD
from realtime.stream.stream import Stream
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import (
    LONG,
    SIZE,
    due,
    endless,
    opened,
    refused,
    rest,
    run_out,
    settled,
    start,
)
from tests.fakes.simulated_server import EngineSize, SimulatedServer
from tests.fakes.work_clock import a_millisecond_a_piece

SHORT = Params(max_tokens=3, ignore_eos=True)


def listened(frame: protocol.Start | None = None) -> tuple[SimulatedServer, RecordingListener]:
    server, _ = opened()
    listener = RecordingListener(server)
    listener.send(frame or endless())
    return server, listener


# -- a second listener -----------------------------------------------------------------------------


def test_who_attaches_has_the_stream_and_who_had_it_is_told() -> None:
    server, first = listened()
    first.hear_token()
    second = RecordingListener(server)
    assert second.attach(ref="r") == ["Started", "Token", "Attached"]
    attached = second.heard[-1]
    assert isinstance(attached, protocol.Attached)
    assert (attached.request_id, attached.ref) == ("a", "r")
    assert (first.lost, second.lost) == (["a"], [])
    known = len(first.heard)
    second.hear_token()
    assert len(first.heard) == known, "and hears no more of it"


def test_who_does_not_take_over_has_what_nobody_listens_to_and_nothing_else() -> None:
    server, first = listened(start(on_disconnect="continue"))
    first.hear_token()
    second = RecordingListener(server)
    second.takes_over = False
    assert second.attach() == []
    assert (second.error().code, first.lost) == ("request_taken", [])
    first.hear_token()
    first.leave()
    assert second.attach()[-1] == "Attached"
    assert second.attach(0)[-1] == "Attached", "it is its own now"
    second.hear_token()


def test_what_has_ended_and_was_not_taken_yet_is_not_taken_from_its_listener_either() -> None:
    server, first = listened(start(params=SHORT))
    first.ready = False
    rest(server)
    second = RecordingListener(server)
    second.takes_over = False
    assert (second.attach(), second.error().code, first.lost) == ([], "request_taken", [])
    first.ready = True
    first.flush()
    assert first.final.finish_reason == "length"
    assert "Final" in second.attach(), "it was taken: there is nobody left to take it from"


def test_who_took_nothing_of_the_end_loses_it_to_whoever_attaches() -> None:
    server, first = listened(start(params=SHORT))
    first.ready = False
    rest(server)
    second = RecordingListener(server)
    second.ready = False
    second.attach()
    assert first.lost == ["a"]
    third = RecordingListener(server)
    assert third.attach()[-1] == "Final"
    assert second.lost == ["a"]
    for late in (first, second):
        late.ready = True
        late.flush()
        assert [type(event).__name__ for event in late.heard] in ([], ["Started"])


def test_who_has_the_stream_may_attach_again_and_takes_it_from_nobody() -> None:
    _, listener = listened()
    listener.hear_token()
    assert listener.attach(0) == ["Token", "Attached"]
    assert listener.lost == []


def test_who_lost_a_stream_does_not_end_it_by_going() -> None:
    server, first = listened(endless())
    second = RecordingListener(server)
    second.attach()
    first.leave()
    second.hear_token()
    second.leave()
    rest(server)
    assert server.hub.streams == []


def test_nobody_attaches_to_a_strangers_stream() -> None:
    server, first = listened()
    stranger = RecordingListener(server, "stranger")
    assert stranger.attach() == []
    assert stranger.error().code == "unknown_request"
    assert first.lost == []


def test_attaching_to_what_never_was_is_an_error() -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    listener.attach(ref="r")
    error = listener.error()
    assert (error.code, error.ref, error.request_id) == ("unknown_request", "r", "a")


def test_after_what_has_not_happened_takes_nothing_from_anybody() -> None:
    server, first = listened()
    first.hear_token()
    second = RecordingListener(server)
    second.attach(5)
    error = second.error()
    assert error.code == "invalid_params"
    assert "`after` is 5" in error.message
    assert first.lost == []
    first.hear_token()


def test_who_steers_what_another_listens_to_is_answered_and_so_is_the_other() -> None:
    server, first = listened()
    button = RecordingListener(server)
    button.send(protocol.Cancel(request_id="a", ref="stop"))
    server.tick()
    (answer,) = button.answers
    assert isinstance(answer, protocol.Final)
    assert (answer.ref, first.final.ref) == ("stop", None), "another's ref would mean nothing to it"
    assert first.lost == []


def test_who_steers_what_another_listens_to_is_told_where_it_goes_elsewhere() -> None:
    """Nobody here will hear what came of it: an HTTP request would wait for that for ever."""
    server, first = listened()
    button = RecordingListener(server)
    for listener in (first, button):
        listener.send(protocol.Pause(request_id="a", ref="still"))
    button.send(protocol.Cancel(request_id="a", ref="stop"))
    (stream,) = server.hub.streams
    server.hub.receive_answer(0, api.Moved(stream.number))
    assert first.lost == ["a"]
    assert first.answers == []
    assert [(type(answer), answer.ref) for answer in button.answers] == [
        (protocol.Error, "still"),
        (protocol.Error, "stop"),
    ]
    assert {answer.code for answer in button.answers if isinstance(answer, protocol.Error)} == {
        "request_taken"
    }


def test_whoever_cancels_and_does_not_listen_has_no_part_in_what_another_gateway_builds() -> None:
    """Of two one alone had its engine cancel it: with the other it would have heard something else."""
    server = SimulatedServer(SIZE, keeps=True)
    RecordingListener(server).send(endless(on_disconnect="continue"))
    button = RecordingListener(server)
    for ref in ("stop", "again"):
        button.send(protocol.Cancel(request_id="a", ref=ref))
    button.send(protocol.Pause(request_id="a"))
    while server.down:
        server.deliver_down()
    (stream,) = server.hub.streams
    built = server.engines[0].keeping.rebuilt(stream.number, stream.model, server.window, stream.owner)
    assert built is not None
    built.receive_news(api.News(stream.number, finish=api.Finish("cancelled")), now=0.0)
    assert built.final is not None
    assert built.final.ref is None


async def test_what_its_engine_has_given_up_is_handed_over_to_nobody_and_ends_here() -> None:
    server = SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(server)
    for name in "ab":
        listener.send(start(request_id=name, params=SHORT, on_disconnect="continue"))
    server.tick()
    given_up, kept = server.hub.streams
    server.hub.receive_answer(0, api.Kept(given_up.number, whole=False))
    await server.hub.hand_over(also_read=True)
    assert server.hub.streams == [given_up]
    assert listener.lost == [kept.request_id]
    rest(server)
    assert given_up.ended


@pytest.mark.parametrize("also_read", [True, False])
async def test_what_is_under_way_to_its_engine_is_left_to_others_only_when_all_is(also_read: bool) -> None:
    """Another may reach that engine sooner, and its client would hear that there is no such stream."""
    server = SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(server)
    listener.send(endless(on_disconnect="continue"))
    listener.leave()
    await server.hub.hand_over(also_read=also_read)
    assert len(server.hub.streams) == (not also_read)
    server.tick()
    await server.hub.hand_over(also_read=False)
    assert server.hub.streams == []


async def test_where_one_fails_the_others_are_handed_over_all_the_same(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    server = SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(server)
    for name in "abc":
        listener.send(start(request_id=name, params=SHORT, on_disconnect="continue"))
    server.tick()
    bad = server.hub.streams[1]
    monkeypatch.setattr(server.hub._departures, "bring_in_order", lambda stream: stream is not bad or 1 // 0)
    await server.hub.hand_over(also_read=True)
    assert not server.hub.streams
    assert bad.final is not None
    assert bad.final.finish_reason == "error"
    assert "ZeroDivisionError" in caplog.text


async def test_what_ends_as_it_is_left_is_handed_over_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its tenant's streams that nobody reads hold too much: this server's end has to go on all the same."""
    monkeypatch.setattr("realtime.hub.departures.LEFT_A_TURN", 1)
    server = SimulatedServer(SIZE, keeps=True, stream_memory=13_000)
    listener = RecordingListener(server)
    by_the_clock = Guard(name="a", do="tell", budget=Budget(seconds=5))
    for name, guards in (("stays", [by_the_clock]), ("ends", None)):
        params = Params(max_tokens=10, ignore_eos=True, guards=guards)
        credit = Credit(limit=1, prefetch=20)
        listener.send(start(name, on_disconnect="continue", credit=credit, params=params))
        rest(server)
    listener.leave()
    assert all(stream.concluded for stream in server.hub.streams)
    await server.hub.hand_over(also_read=False)
    assert [stream.request_id for stream in server.hub.streams] == ["stays"]


async def test_what_its_listener_has_just_left_is_handed_over_before_many_more_are_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be no room for all of them while nobody reads them: some would be ended."""
    for turn in ("departures.LEFT_A_TURN", "handing_over.HANDED_OVER_A_TURN"):
        monkeypatch.setattr(f"realtime.hub.{turn}", 2)
    server = SimulatedServer(
        EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=24), keeps=True, max_detached=4
    )
    listeners = [RecordingListener(server) for _ in range(2)]
    for name in range(24):
        listeners[name % 2].send(endless(str(name), on_disconnect="continue"))
    rest(server)
    for listener in listeners:
        listener.leave()
    handing_over = asyncio.create_task(server.hub.hand_over(also_read=False))
    while not handing_over.done():
        await asyncio.sleep(0)
        server.clock.advance(0)
    assert server.hub.streams == []
    assert not [said for said in itertools.chain.from_iterable(server.down) if isinstance(said, api.Cancel)]


async def test_of_many_some_are_handed_over_in_each_turn_but_what_has_ended_or_has_gone_before_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Another stream may have its name by then."""
    monkeypatch.setattr("realtime.hub.handing_over.HANDED_OVER_A_TURN", 2)
    server = SimulatedServer(EngineSize(kv_tokens=4096, block=16, step_tokens=4096), keeps=True)
    listener = RecordingListener(server)
    for name in "abcde":
        listener.send(endless(name, on_disconnect="continue"))
    rest(server)
    left = server.hub.streams
    handing_over = asyncio.create_task(server.hub.hand_over(also_read=True))
    await asyncio.sleep(0)
    assert [stream.request_id for stream in server.hub.streams] == ["c", "d", "e"]
    server.hub.receive_answer(0, api.Moved(left[3].number))
    listener.send(protocol.Cancel(request_id="c"))
    rest(server)
    while not handing_over.done():
        server.clock.advance(0)
        await asyncio.sleep(0)
    assert server.hub.streams == []
    assert [stream.request_id for stream in left if not stream.ended] == ["a", "b", "d", "e"]
    assert listener.lost == ["a", "b", "d", "e"]


def test_where_one_that_is_left_fails_those_behind_it_are_brought_in_order_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = SimulatedServer(SIZE)
    listener = RecordingListener(server)
    for name in "abc":
        listener.send(endless(name))
    rest(server)
    streams = server.hub.streams
    monkeypatch.setattr(streams[1], "detach", lambda now, step: 1 // 0)
    listener.leave()
    rest(server)
    assert [stream.final and stream.final.finish_reason for stream in streams] == [
        "cancelled",
        "error",
        "cancelled",
    ]
    assert not server.engine.scheduler.sequences


def test_where_one_that_nobody_came_back_to_fails_it_ends_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = SimulatedServer(SIZE)
    listener = RecordingListener(server)
    listener.send(endless("a", on_disconnect="continue", grace_ms=1000))
    rest(server)
    (stream,) = server.hub.streams
    monkeypatch.setattr(stream, "abandon", lambda now, step: 1 // 0)
    listener.leave()
    server.clock.advance(1)
    rest(server)
    assert stream.final is not None
    assert stream.final.finish_reason == "error"
    server.check_empty()


async def test_what_has_lost_its_engine_is_handed_over_to_nobody_before_another_has_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor is it where that is not told yet of all whom a lost engine had: nobody keeps it."""
    monkeypatch.setattr("realtime.hub.serving.LOST_A_TURN", 1)
    server = SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(server)
    for name in "ab":
        listener.send(start(request_id=name, params=SHORT, on_disconnect="continue"))
    server.tick()
    server.kill_engine()
    await server.hub.hand_over(also_read=True)
    assert [stream.request_id for stream in server.hub.streams] == ["a", "b"]
    assert listener.lost == []


# -- starting again --------------------------------------------------------------------------------


def test_a_start_that_was_sent_twice_starts_once_and_says_all_again() -> None:
    server, first = listened(start(ref="one", params=SHORT))
    rest(server)
    second = RecordingListener(server)
    second.send(start(ref="two", params=SHORT))
    assert second.heard[:-1] == first.heard
    attached = second.heard[-1]
    assert isinstance(attached, protocol.Attached)
    assert attached.ref == "two"
    rest(server)
    assert len(server.counts.decoded) == 1


def test_a_start_with_other_content_is_a_conflict_also_when_the_first_has_ended() -> None:
    server, reader = opened()
    reader.send(start(params=SHORT))
    for ended in (False, True):
        for other in ({"prompt": "Twice"}, {"stream_interval": 2}, {"on_disconnect": "pause"}):
            reader.send(start(**({"params": SHORT} | other)))
            assert refused(reader).code == "request_conflict"
        if not ended:
            run_out(server, reader.accounts[0])
    assert len(server.counts.decoded) == 1


def test_a_start_that_was_refused_was_none_and_can_be_sent_again() -> None:
    server, reader = opened()
    server.hub.draining = True
    reader.send(start())
    assert refused(reader).code == "draining"
    server.hub.draining = False
    reader.send(start())
    assert reader.accounts[0].started


def test_a_start_again_is_answered_while_the_server_drains_or_is_full() -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    for name in "abc":
        listener.send(endless(name, credit=Credit()))
    server.hub.draining = True
    listener.send(endless("b", credit=Credit()))
    assert [type(event).__name__ for event in listener.heard[3:]] == ["Started", "Attached"]
    assert listener.errors == []


async def test_a_long_start_that_is_sent_twice_starts_once() -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    for ref in ("one", "two"):
        listener.send(endless(prompt=LONG[: LONG_TEXT + 1], ref=ref))
    await settled()
    started, again, attached = listener.heard
    assert started == again
    assert isinstance(attached, protocol.Attached)
    assert attached.ref == "two"
    assert len(server.hub.streams) == 1


async def test_a_long_start_with_other_content_is_a_conflict_wherever_it_waits() -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    listener.send(endless(prompt=LONG[: LONG_TEXT + 1]))
    listener.send(endless(prompt=LONG[: LONG_TEXT + 2]))
    listener.send(endless(prompt="short"))
    await settled()
    assert [error.code for error in listener.errors] == ["request_conflict"] * 2
    listener.send(endless(prompt=LONG[: LONG_TEXT + 3]))
    await settled()
    assert listener.errors[-1].code == "request_conflict"
    assert len(server.hub.streams) == 1


async def test_attaching_waits_behind_a_long_start() -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    listener.send(endless(prompt=LONG[: LONG_TEXT + 1]))
    assert listener.attach() == []
    await settled()
    assert [type(event).__name__ for event in listener.heard] == ["Started", "Started", "Attached"]


# -- what has ended --------------------------------------------------------------------------------


def test_who_missed_the_end_gets_it() -> None:
    server, first = listened(start(params=SHORT, on_disconnect="continue"))
    first.hear_token()
    first.leave()
    rest(server)
    assert server.hub.streams == []
    second = RecordingListener(server)
    assert second.attach(1) == ["Attached", "Token", "Final"]
    assert second.attach(1) == ["Token", "Final", "Attached"], "as often as one likes"
    assert second.attach(3) == ["Attached"]


def test_an_end_that_was_never_taken_comes_behind_attached() -> None:
    server, first = listened(start(params=SHORT, on_disconnect="continue"))
    first.leave()
    rest(server)
    assert RecordingListener(server).attach(0) == ["Attached", "Token", "Final"]


def test_an_end_is_there_for_so_long_then_its_name_is_then_nothing() -> None:
    server, reader = opened()
    reader.send(start(params=SHORT))
    run_out(server, reader.accounts[0])
    listener = RecordingListener(server)
    server.clock.advance(KEPT_S - 1)
    assert listener.attach()[-2:] == ["Final", "Attached"]
    server.clock.advance(2)
    assert listener.attach() == []
    assert listener.error().code == "request_expired"
    listener.send(protocol.Pause(request_id="a"))
    assert listener.error().code == "request_finished"
    listener.send(protocol.Cancel(request_id="a"))
    assert listener.errors == []


def test_a_name_is_free_when_the_server_has_forgotten_its_stream() -> None:
    server, reader = opened()
    reader.send(start(params=SHORT))
    run_out(server, reader.accounts[0])
    server.clock.advance(KEPT_S + 1)
    listener = RecordingListener(server)
    listener.send(endless(prompt="Quite another"))
    assert listener.errors == []
    assert [type(event).__name__ for event in listener.heard] == ["Started"]
    other = RecordingListener(server)
    assert other.attach() == ["Started", "Attached"], "the new one, and nothing of the old"


# -- when one goes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["pause", "continue"])
def test_whoever_comes_back_in_time_finds_it(mode: Any) -> None:
    server, first = listened(endless(on_disconnect=mode, grace_ms=2000))
    rest(server)
    first.leave()
    rest(server)
    server.clock.advance(1.9)
    second = RecordingListener(server)
    second.attach(len(first.heard) - 1)
    assert server.clock.waiting == 1, "nobody gives it up before the longest that any stream may live"
    server.clock.advance(60)
    rest(server)
    assert [stream.request_id for stream in server.hub.streams] == ["a"]


@pytest.mark.parametrize("mode", ["pause", "continue"])
def test_nobody_coming_back_in_time_it_is_cancelled(mode: Any) -> None:
    server, first = listened(endless(on_disconnect=mode, grace_ms=2000))
    rest(server)
    first.leave()
    rest(server)
    server.clock.advance(2.1)
    rest(server)
    assert server.hub.streams == []
    assert server.engine.cache.used == 0
    late = RecordingListener(server)
    late.attach()
    final = next(event for event in late.heard if isinstance(event, protocol.Final))
    assert (final.finish_reason, final.stop_reason) == ("cancelled", "detached")


def test_the_grace_begins_anew_each_time() -> None:
    server, listener = listened(endless(on_disconnect="continue", grace_ms=2000))
    for _ in range(3):
        listener.leave()
        server.clock.advance(1.5)
        listener = RecordingListener(server)
        listener.attach()
    assert len(server.hub.streams) == 1


def test_an_end_within_the_grace_takes_its_timer_along() -> None:
    server, listener = listened(start(params=SHORT, on_disconnect="continue"))
    listener.leave()
    assert server.clock.waiting == 2, "the end of its grace, and that of its life"
    rest(server)
    assert server.clock.waiting == 0


def test_who_goes_leaves_each_stream_to_what_its_start_said() -> None:
    server, _ = opened()
    listener, stays = RecordingListener(server), RecordingListener(server)
    for name, mode in (("a", "cancel"), ("b", "pause"), ("c", "continue")):
        listener.send(endless(name, on_disconnect=mode))
    server.tick()
    listener.leave()
    rest(server)
    assert {stream.request_id: stream.state for stream in server.hub.streams} == {
        "b": "paused",
        "c": "stalled",
    }
    stays.send(endless("d"))
    assert stays.errors == [], "and the slot of what was cancelled is free"


def test_an_end_that_waits_for_credit_can_be_come_back_to() -> None:
    server, reader = due()
    reader.send(start("b", credit=Credit(limit=1, prefetch=9), params=SHORT, on_disconnect="continue"))
    rest(server)
    reader.leave()
    listener = RecordingListener(server)
    listener.send(protocol.Attach(request_id="b", after=-1))
    listener.send(protocol.Grant(request_id="b", limit=9))
    assert (listener.final.finish_reason, listener.final.index) == ("length", 3)
    assert server.hub.streams == []


# -- what frames come to ---------------------------------------------------------------------------


def test_who_steers_owes_the_work_that_is_done_when_it_takes_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    a_millisecond_a_piece(monkeypatch)
    server, reader = listened()
    reader.hear_token()
    started_s = reader.owed_s
    steerer = RecordingListener(server)
    for ref in "bc":
        steerer.send(protocol.Rewind(request_id="a", to=0, ref=ref))
    assert steerer.owed_s == 0
    while len(steerer.answers) < 2:
        server.tick()
    assert steerer.owed_s == pytest.approx(0.001)
    assert reader.owed_s == started_s


FINDS = Guard(name="a", do="tell", regex="[a-z]")


def guarded(guard: Guard = FINDS) -> tuple[SimulatedServer, RecordingListener]:
    params = Params(guards=[guard], seed=5, ignore_eos=True, max_tokens=400)
    server, reader = listened(start(params=params, credit=Credit(limit=400)))
    reader.hear_token()
    return server, reader


def test_who_reads_what_guards_let_through_owes_what_they_do(monkeypatch: pytest.MonkeyPatch) -> None:
    a_millisecond_a_piece(monkeypatch)
    server, reader = guarded()
    before_s = reader.owed_s
    for _ in range(5):
        server.tick()
    assert reader.owed_s - before_s == pytest.approx(0.005)


def test_who_reads_what_guards_let_through_owes_what_they_have_the_engine_do(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a_millisecond_a_piece(monkeypatch)
    server, reader = guarded(Guard(name="a", do="rewind", times=16, then="pause", regex="[aeiou]{2}"))
    stream, before_s, ticks = server.hub.streams[0], reader.owed_s, 0
    while not stream.context.acts.bans:
        server.tick()
        ticks += 1
    assert reader.owed_s - before_s == pytest.approx(0.001 * ticks + ACT_S)


def test_guards_read_no_more_while_what_they_did_is_owed_and_there_are_others() -> None:
    server, reader = guarded()
    server.in_turns = True
    stream, other = server.hub.streams[0], RecordingListener(server)

    def go_on(turns: int) -> None:
        for _ in range(turns):
            server.tick()
            server.clock.advance(0)

    reader.debt_s, before = 0.1, len(stream.output)
    go_on(5)
    assert len(stream.output) == before + 5, "nobody else is there"
    other.send(endless("b"))
    go_on(3)
    before, others = len(stream.output), len(other.heard)
    go_on(3 * GUARDED_AHEAD)
    assert len(stream.output) == before
    assert len(other.heard) > others
    ahead = server.engine.scheduler.sequences[stream.number].num_outputs - before
    assert 0 < ahead <= GUARDED_AHEAD
    reader.debt_s = 0.0
    for wait_s in (0.1, 0.0):  # until it is paid for, and the turn then
        server.clock.advance(wait_s)
    assert len(stream.output) > before


def test_nobody_waits_for_them_where_an_engine_goes_as_it_was_told_to() -> None:
    """What it said and they have not read, another says again."""
    server, reader = guarded()
    server.in_turns = True
    stream, other = server.hub.streams[0], RecordingListener(server)
    other.send(start("b", credit=Credit(limit=0)))
    reader.debt_s, before = 0.1, len(stream.output)
    reader.send(protocol.Adjust(request_id="a", params=Params(temperature=0.5), ref="1"))
    for _ in range(5):
        server.tick()
        server.clock.advance(0)
    server.engines[0].die()
    server.hub.engine_lost(0, blameless=True)
    assert len(stream.output) == before
    server.revive_engine()
    reader.debt_s = 0.0
    for _ in range(5):
        server.tick()
        server.clock.advance(0.1)
    (adjusted,) = [event for event in reader.heard if isinstance(event, protocol.Adjusted)]
    assert adjusted.index == before
    tokens = [event for event in reader.heard if isinstance(event, protocol.Token)]
    indices = [event.index for event in tokens]
    assert indices == list(range(len(indices)))
    assert len(indices) > before


def test_who_forks_owes_what_the_engine_is_told_of_however_short_the_frame_is() -> None:
    _, reader = listened()
    reader.hear_token()
    started_s = reader.owed_s
    assert started_s > 0
    reader.send(protocol.Start(request_id="b", fork=protocol.Fork(request_id="a")))
    assert reader.owed_s > 2 * started_s


def test_tokens_of_steps_that_came_together_are_events_of_their_own() -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    listener.send(endless())
    listener.hear_token()
    before = len(listener.heard)
    for _ in range(3):
        server.step()
    server.deliver_up(together=3)
    assert [event.count for event in listener.heard[before:] if isinstance(event, protocol.Token)] == [
        1,
        1,
        1,
    ]


def test_what_came_together_stays_in_its_order_where_a_stream_comes_to_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, reader = opened()
    reader.send(endless())
    while not (account := reader.accounts[0]).tokens:
        server.tick()
    reader.send(
        protocol.Adjust(request_id="a", params=Params(temperature=0.5))
    )  # tokens alone wait for nothing
    server.deliver_down()
    for _ in range(3):
        server.step()
    told = [news.tokens for output in server.engines[0].up for news in output.news]
    known = list(account.tokens)
    # It does not read when they come, but when the first is taken in, and for a while.
    looks, reads = iter([False] * 3 + [True] * 6), [False]

    def is_dear(stream: Stream) -> bool:
        reads[0] = next(looks, False)
        return reads[0]

    monkeypatch.setattr(Stream, "is_dear", is_dear)
    monkeypatch.setattr(Stream, "reading", property(lambda stream: reads[0]))
    server.deliver_up(together=3)
    assert next(looks, None) is None
    assert account.tokens == [*known, *(token for tokens in told for token in tokens)]
