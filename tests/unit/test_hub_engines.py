"""The hub and its engines, each rule by an example: they die, others come, and somebody may be to blame."""

from __future__ import annotations

from midstream import protocol
from midstream.protocol import Credit, Params
from realtime.hub.engine_recovery import DEATHS_ALONE
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import due, endless, opened, rest, run_out, start
from tests.fakes.simulated_server import SimulatedServer

SHORT = Params(max_tokens=12, ignore_eos=True, temperature=0)


def poisoned(house: SimulatedServer, number: int) -> None:
    """Engines come, and each dies as soon as it steps with this stream; until one lives."""
    for _ in range(20):
        house.revive_engine()
        while not house.at_rest:
            while house.down:
                house.deliver_down()
            if number in house.engine.scheduler.sequences:
                break
            house.step()
            while house.up:
                house.deliver_up()
        else:
            return
        house.kill_engine()
    raise AssertionError("no engine lives")


def test_all_are_paused_and_go_on_with_the_text_that_they_would_have_had() -> None:
    alone, reader = opened()
    reader.prompt = True
    reader.send(start(params=SHORT))
    run_out(alone, reader.accounts[0])
    undisturbed = reader.accounts[0]

    house, other = opened()
    other.prompt = True
    other.send(start(params=SHORT))
    while len(other.accounts[0].tokens) < 4:
        house.tick()
    house.kill_engine()
    assert other.accounts[0].paused
    house.revive_engine()
    run_out(house, other.accounts[0])
    assert other.accounts[0].tokens == undisturbed.tokens
    assert other.accounts[0].text == undisturbed.text


def test_nothing_starts_without_an_engine_and_everything_else_is_heard() -> None:
    house, _ = opened()
    ear = RecordingListener(house)
    ear.send(endless("a"))
    ear.send(endless("b"))
    house.kill_engine()
    ear.send(start("c"))
    error = ear.error()
    assert (error.code, error.retryable, error.retry_after_ms) == ("overloaded", True, 1000)
    ear.send(protocol.Cancel(request_id="a"))
    assert ear.final.finish_reason == "cancelled"
    ear.send(endless("b"))
    assert isinstance(ear.heard[-1], protocol.Attached), "a start that is one already is no new one"


def test_one_that_nobody_listened_to_when_its_engine_died_is_found_again() -> None:
    house, _ = opened()
    ear = RecordingListener(house)
    ear.send(endless(on_disconnect="pause"))
    ear.hear_token()
    ear.leave()
    rest(house)
    house.kill_engine()
    house.revive_engine()
    rest(house)
    assert house.hub.streams[0].state == "paused"
    back = RecordingListener(house)
    back.attach()
    back.hear_token()


def test_what_is_due_is_not_given_to_the_next_engine() -> None:
    house, reader = due()
    house.kill_engine()
    house.revive_engine()
    assert not house.down
    reader.send(protocol.Grant(request_id="a", limit=9))
    assert reader.accounts[0].final is not None


def test_one_killed_from_outside_again_and_again_gets_all_its_streams_at_once_and_loses_none() -> None:
    house, _ = opened()
    ears = [RecordingListener(house) for _ in range(3)]
    for ear, name in zip(ears, "abc", strict=True):
        ear.send(endless(name))
    for _ in range(2 * DEATHS_ALONE):
        rest(house)
        house.kill_engine()
        house.revive_engine()
        house.tick()
        assert len(house.engine.scheduler.sequences) == 3
    assert len(house.hub.streams) == 3


def test_the_culprit_alone_ends_in_an_error_and_the_others_go_on() -> None:
    house, _ = opened()
    ears = [RecordingListener(house) for _ in range(3)]
    for ear, name in zip(ears, "abc", strict=True):
        ear.send(endless(name, credit=Credit(limit=5)))
    house.tick()
    culprit = next(stream.number for stream in house.hub.streams if stream.request_id == "b")
    house.kill_engine()
    poisoned(house, culprit)
    assert (ears[1].final.finish_reason, ears[1].final.stop_reason) == (
        "error",
        "the engine failed again and again while it computed this stream",
    )
    assert [stream.request_id for stream in house.hub.streams] == ["a", "c"]
    for ear in (ears[0], ears[2]):
        assert sum(event.count for event in ear.heard if isinstance(event, protocol.Token)) == 5


def test_a_culprit_without_credit_is_found_too() -> None:
    house, _ = opened()
    ears = [RecordingListener(house) for _ in range(3)]
    for ear, name, limit in zip(ears, "abc", (0, 0, 3), strict=True):
        ear.send(endless(name, prompt="Once upon a time", credit=Credit(limit=limit)))
    culprit = next(stream.number for stream in house.hub.streams if stream.request_id == "b")
    house.kill_engine()
    poisoned(house, culprit)
    assert ears[1].final.finish_reason == "error"
    assert [stream.request_id for stream in house.hub.streams] == ["a", "c"]
    rest(house)
    assert house.hub.engine_proven
    for ear, name in zip((ears[0], ears[2]), "ac", strict=True):
        ear.send(protocol.Grant(request_id=name, limit=5))
        ear.hear_token()


def test_one_that_is_held_back_can_be_cancelled_and_is_not_given_any_more() -> None:
    house, _ = opened()
    ears = [RecordingListener(house), RecordingListener(house)]
    for ear, name in zip(ears, "ab", strict=True):
        ear.send(endless(name))
    house.kill_engine()
    house.revive_engine()
    house.kill_engine()
    house.revive_engine()
    held_back = ears[1]
    held_back.send(protocol.Cancel(request_id="b", ref="c"))
    assert (held_back.final.finish_reason, held_back.final.ref) == ("cancelled", "c")
    ears[0].hear_token()
    rest(house)
    assert len(house.engine.scheduler.sequences) == 1


def test_one_that_is_held_back_is_steered_all_the_same() -> None:
    house, _ = opened()
    first, held_back = RecordingListener(house), RecordingListener(house)
    first.send(endless("a"))
    held_back.send(endless("b"))
    house.kill_engine()
    house.revive_engine()
    house.kill_engine()
    house.revive_engine()
    held_back.send(protocol.Inject(request_id="b", tokens=[7, 8], ref="i"))
    house.deliver_down()
    assert len(house.engine.scheduler.sequences) <= 1
    held_back.hear_token()
    injected = next(event for event in held_back.heard if isinstance(event, protocol.Injected))
    assert (injected.ref, injected.count, injected.index) == ("i", 2, 0)


def test_news_of_what_the_hub_has_forgotten_is_counted_and_harms_nothing() -> None:
    house, reader = due()
    reader.send(endless("b"))
    while house.down:
        house.deliver_down()
    house.hub.engine_lost()
    reader.send(protocol.Cancel(request_id="b"))
    house.step()
    while house.up:
        house.deliver_up()
        house.step()
        if house.tally.tokens_discarded:
            return
    raise AssertionError("the engine decoded nothing")
