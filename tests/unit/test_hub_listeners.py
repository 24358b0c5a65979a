"""The hub and its listeners, each rule by an example: attaching, starting again, going."""

from __future__ import annotations

from typing import Any

import pytest

from midstream import protocol
from midstream.protocol import Credit, Params
from realtime.hub.ended_streams import KEPT_S
from realtime.hub.hub import LONG_TEXT
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import (
    LONG,
    due,
    endless,
    opened,
    refused,
    rest,
    run_out,
    settled,
    start,
)
from tests.fakes.simulated_server import SimulatedServer

SHORT = Params(max_tokens=3, ignore_eos=True)


def listened(frame: protocol.Start | None = None) -> tuple[SimulatedServer, RecordingListener]:
    house, _ = opened()
    ear = RecordingListener(house)
    ear.send(frame or endless())
    return house, ear


# -- a second listener -----------------------------------------------------------------------------


def test_who_attaches_has_the_stream_and_who_had_it_is_told() -> None:
    house, first = listened()
    first.hear_token()
    second = RecordingListener(house)
    assert second.attach(ref="r") == ["Started", "Token", "Attached"]
    attached = second.heard[-1]
    assert isinstance(attached, protocol.Attached)
    assert (attached.request_id, attached.ref) == ("a", "r")
    assert (first.lost, second.lost) == (["a"], [])
    known = len(first.heard)
    second.hear_token()
    assert len(first.heard) == known, "and hears no more of it"


def test_who_took_nothing_of_the_end_loses_it_to_whoever_attaches() -> None:
    house, first = listened(start(params=SHORT))
    first.ready = False
    rest(house)
    second = RecordingListener(house)
    second.ready = False
    second.attach()
    assert first.lost == ["a"]
    third = RecordingListener(house)
    assert third.attach()[-1] == "Final"
    assert second.lost == ["a"]
    for late in (first, second):
        late.ready = True
        late.flush()
        assert [type(event).__name__ for event in late.heard] in ([], ["Started"])


def test_who_has_the_stream_may_attach_again_and_takes_it_from_nobody() -> None:
    _, ear = listened()
    ear.hear_token()
    assert ear.attach(0) == ["Token", "Attached"]
    assert ear.lost == []


def test_who_lost_a_stream_does_not_end_it_by_going() -> None:
    house, first = listened(endless())
    second = RecordingListener(house)
    second.attach()
    first.leave()
    second.hear_token()
    second.leave()
    rest(house)
    assert house.hub.streams == []


def test_nobody_attaches_to_a_strangers_stream() -> None:
    house, first = listened()
    stranger = RecordingListener(house, "stranger")
    assert stranger.attach() == []
    assert stranger.error().code == "unknown_request"
    assert first.lost == []


def test_attaching_to_what_never_was_is_an_error() -> None:
    house, _ = opened()
    ear = RecordingListener(house)
    ear.attach(ref="r")
    error = ear.error()
    assert (error.code, error.ref, error.request_id) == ("unknown_request", "r", "a")


def test_after_what_has_not_happened_takes_nothing_from_anybody() -> None:
    house, first = listened()
    first.hear_token()
    second = RecordingListener(house)
    second.attach(5)
    error = second.error()
    assert error.code == "invalid_params"
    assert "`after` is 5" in error.message
    assert first.lost == []
    first.hear_token()


def test_who_steers_what_another_listens_to_is_answered_and_so_is_the_other() -> None:
    house, first = listened()
    button = RecordingListener(house)
    button.send(protocol.Cancel(request_id="a", ref="stop"))
    house.tick()
    (answer,) = button.answers
    assert isinstance(answer, protocol.Final)
    assert (answer.ref, first.final.ref) == ("stop", None), "another's ref would mean nothing to it"
    assert first.lost == []


# -- starting again --------------------------------------------------------------------------------


def test_a_start_that_was_sent_twice_starts_once_and_says_all_again() -> None:
    house, first = listened(start(ref="one", params=SHORT))
    rest(house)
    second = RecordingListener(house)
    second.send(start(ref="two", params=SHORT))
    assert second.heard[:-1] == first.heard
    attached = second.heard[-1]
    assert isinstance(attached, protocol.Attached)
    assert attached.ref == "two"
    rest(house)
    assert len(house.tally.decoded) == 1


def test_a_start_with_other_content_is_a_conflict_also_when_the_first_has_ended() -> None:
    house, reader = opened()
    reader.send(start(params=SHORT))
    for ended in (False, True):
        for other in ({"prompt": "Twice"}, {"stream_interval": 2}, {"on_disconnect": "pause"}):
            reader.send(start(**({"params": SHORT} | other)))
            assert refused(reader).code == "request_conflict"
        if not ended:
            run_out(house, reader.accounts[0])
    assert len(house.tally.decoded) == 1


def test_a_start_that_was_refused_was_none_and_can_be_sent_again() -> None:
    house, reader = opened()
    house.hub.draining = True
    reader.send(start())
    assert refused(reader).code == "draining"
    house.hub.draining = False
    reader.send(start())
    assert reader.accounts[0].started


def test_a_start_again_is_answered_while_the_server_drains_or_is_full() -> None:
    house, _ = opened()
    ear = RecordingListener(house)
    for name in "abc":
        ear.send(endless(name, credit=Credit()))
    house.hub.draining = True
    ear.send(endless("b", credit=Credit()))
    assert [type(event).__name__ for event in ear.heard[3:]] == ["Started", "Attached"]
    assert ear.errors == []


async def test_a_long_start_that_is_sent_twice_starts_once() -> None:
    house, _ = opened()
    ear = RecordingListener(house)
    for ref in ("one", "two"):
        ear.send(endless(prompt=LONG[: LONG_TEXT + 1], ref=ref))
    await settled()
    started, again, attached = ear.heard
    assert started == again
    assert isinstance(attached, protocol.Attached)
    assert attached.ref == "two"
    assert len(house.hub.streams) == 1


async def test_a_long_start_with_other_content_is_a_conflict_wherever_it_waits() -> None:
    house, _ = opened()
    ear = RecordingListener(house)
    ear.send(endless(prompt=LONG[: LONG_TEXT + 1]))
    ear.send(endless(prompt=LONG[: LONG_TEXT + 2]))
    ear.send(endless(prompt="short"))
    await settled()
    assert [error.code for error in ear.errors] == ["request_conflict"] * 2
    ear.send(endless(prompt=LONG[: LONG_TEXT + 3]))
    await settled()
    assert ear.errors[-1].code == "request_conflict"
    assert len(house.hub.streams) == 1


async def test_attaching_waits_behind_a_long_start() -> None:
    house, _ = opened()
    ear = RecordingListener(house)
    ear.send(endless(prompt=LONG[: LONG_TEXT + 1]))
    assert ear.attach() == []
    await settled()
    assert [type(event).__name__ for event in ear.heard] == ["Started", "Started", "Attached"]


# -- what has ended --------------------------------------------------------------------------------


def test_who_missed_the_end_gets_it() -> None:
    house, first = listened(start(params=SHORT, on_disconnect="continue"))
    first.hear_token()
    first.leave()
    rest(house)
    assert house.hub.streams == []
    second = RecordingListener(house)
    assert second.attach(1) == ["Attached", "Token", "Final"]
    assert second.attach(1) == ["Token", "Final", "Attached"], "as often as one likes"
    assert second.attach(3) == ["Attached"]


def test_an_end_that_was_never_taken_comes_behind_attached() -> None:
    house, first = listened(start(params=SHORT, on_disconnect="continue"))
    first.leave()
    rest(house)
    assert RecordingListener(house).attach(0) == ["Attached", "Token", "Final"]


def test_an_end_is_there_for_so_long_then_its_name_is_then_nothing() -> None:
    house, reader = opened()
    reader.send(start(params=SHORT))
    run_out(house, reader.accounts[0])
    ear = RecordingListener(house)
    house.clock.advance(KEPT_S - 1)
    assert ear.attach()[-2:] == ["Final", "Attached"]
    house.clock.advance(2)
    assert ear.attach() == []
    assert ear.error().code == "request_expired"
    ear.send(protocol.Pause(request_id="a"))
    assert ear.error().code == "request_finished"
    ear.send(protocol.Cancel(request_id="a"))
    assert ear.errors == []


def test_a_name_is_free_when_the_server_has_forgotten_its_stream() -> None:
    house, reader = opened()
    reader.send(start(params=SHORT))
    run_out(house, reader.accounts[0])
    house.clock.advance(KEPT_S + 1)
    ear = RecordingListener(house)
    ear.send(endless(prompt="Quite another"))
    assert ear.errors == []
    assert [type(event).__name__ for event in ear.heard] == ["Started"]
    other = RecordingListener(house)
    assert other.attach() == ["Started", "Attached"], "the new one, and nothing of the old"


# -- when one goes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["pause", "continue"])
def test_whoever_comes_back_in_time_finds_it(mode: Any) -> None:
    house, first = listened(endless(on_disconnect=mode, grace_ms=2000))
    rest(house)
    first.leave()
    rest(house)
    house.clock.advance(1.9)
    second = RecordingListener(house)
    second.attach(len(first.heard) - 1)
    assert house.clock.waiting == 0, "nobody gives it up any more"
    house.clock.advance(60)
    rest(house)
    assert [stream.request_id for stream in house.hub.streams] == ["a"]


@pytest.mark.parametrize("mode", ["pause", "continue"])
def test_nobody_coming_back_in_time_it_is_cancelled(mode: Any) -> None:
    house, first = listened(endless(on_disconnect=mode, grace_ms=2000))
    rest(house)
    first.leave()
    rest(house)
    house.clock.advance(2.1)
    rest(house)
    assert house.hub.streams == []
    assert house.engine.cache.used == 0
    late = RecordingListener(house)
    late.attach()
    final = next(event for event in late.heard if isinstance(event, protocol.Final))
    assert (final.finish_reason, final.stop_reason) == ("cancelled", "detached")


def test_the_grace_begins_anew_each_time() -> None:
    house, ear = listened(endless(on_disconnect="continue", grace_ms=2000))
    for _ in range(3):
        ear.leave()
        house.clock.advance(1.5)
        ear = RecordingListener(house)
        ear.attach()
    assert len(house.hub.streams) == 1


def test_an_end_within_the_grace_takes_its_timer_along() -> None:
    house, ear = listened(start(params=SHORT, on_disconnect="continue"))
    ear.leave()
    assert house.clock.waiting == 1
    rest(house)
    assert house.clock.waiting == 0


def test_who_goes_leaves_each_stream_to_what_its_start_said() -> None:
    house, _ = opened()
    ear, stays = RecordingListener(house), RecordingListener(house)
    for name, mode in (("a", "cancel"), ("b", "pause"), ("c", "continue")):
        ear.send(endless(name, on_disconnect=mode))
    house.tick()
    ear.leave()
    rest(house)
    assert {stream.request_id: stream.state for stream in house.hub.streams} == {
        "b": "paused",
        "c": "stalled",
    }
    stays.send(endless("d"))
    assert stays.errors == [], "and the slot of what was cancelled is free"


def test_an_end_that_waits_for_credit_can_be_come_back_to() -> None:
    house, reader = due()
    reader.send(start("b", credit=Credit(limit=1, prefetch=9), params=SHORT, on_disconnect="continue"))
    rest(house)
    reader.leave()
    ear = RecordingListener(house)
    ear.send(protocol.Attach(request_id="b", after=-1))
    ear.send(protocol.Grant(request_id="b", limit=9))
    assert (ear.final.finish_reason, ear.final.index) == ("length", 3)
    assert house.hub.streams == []
