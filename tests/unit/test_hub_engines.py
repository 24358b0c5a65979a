"""The hub and its engines, each rule by an example: they die, others come, and somebody may be to blame."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from engine import api
from midstream import protocol
from midstream.protocol import Credit, Params
from realtime.hub import incoming_news, submission
from realtime.hub.engine_recovery import DEATHS, FEW
from realtime.stream import pending_commands
from realtime.stream.later_commands import MADE_A_TURN
from realtime.stream.pending_commands import MOST_UNDER_WAY
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import SIZE, due, endless, opened, rest, run_out, start
from tests.fakes.simulated_server import SimulatedServer, seen_of

SHORT = Params(max_tokens=12, ignore_eos=True, temperature=0)


def poisoned(server: SimulatedServer, number: int) -> None:
    """Engines come, and each dies as soon as it steps with this stream; until one lives."""
    for _ in range(20):
        server.revive_engine()
        while not server.at_rest:
            while server.down:
                server.deliver_down()
            if number in server.engine.scheduler.sequences:
                break
            server.step()
            while server.up:
                server.deliver_up()
        else:
            return
        server.kill_engine()
    raise AssertionError("no engine lives")


def test_all_are_paused_and_go_on_with_the_text_that_they_would_have_had() -> None:
    alone, reader = opened()
    reader.prompt = True
    reader.send(start(params=SHORT))
    run_out(alone, reader.accounts[0])
    undisturbed = reader.accounts[0]

    server, other = opened()
    other.prompt = True
    other.send(start(params=SHORT))
    while len(other.accounts[0].tokens) < 4:
        server.tick()
    server.kill_engine()
    assert other.accounts[0].paused
    server.revive_engine()
    run_out(server, other.accounts[0])
    assert other.accounts[0].tokens == undisturbed.tokens
    assert other.accounts[0].text == undisturbed.text


def test_nothing_starts_without_an_engine_and_everything_else_is_heard() -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    listener.send(endless("a"))
    listener.send(endless("b"))
    server.kill_engine()
    listener.send(start("c"))
    error = listener.error()
    assert (error.code, error.retryable, error.retry_after_ms) == ("overloaded", True, 1000)
    listener.send(protocol.Cancel(request_id="a"))
    assert listener.final.finish_reason == "cancelled"
    listener.send(endless("b"))
    assert isinstance(listener.heard[-1], protocol.Attached), "a start that is one already is no new one"


def test_one_that_nobody_listened_to_when_its_engine_died_is_found_again() -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    listener.send(endless(on_disconnect="pause"))
    listener.hear_token()
    listener.leave()
    rest(server)
    server.kill_engine()
    server.revive_engine()
    rest(server)
    assert server.hub.streams[0].state == "paused"
    back = RecordingListener(server)
    back.attach()
    back.hear_token()


def test_what_is_due_is_not_given_to_the_next_engine() -> None:
    server, reader = due()
    server.kill_engine()
    server.revive_engine()
    assert not server.down
    reader.send(protocol.Grant(request_id="a", limit=9))
    assert reader.accounts[0].final is not None


def test_one_killed_from_outside_again_and_again_gets_all_its_streams_at_once_and_loses_none() -> None:
    server, _ = opened()
    listeners = [RecordingListener(server) for _ in range(3)]
    for listener, name in zip(listeners, "abc", strict=True):
        listener.send(endless(name))
    for _ in range(2 * DEATHS):
        rest(server)
        server.kill_engine()
        server.revive_engine()
        server.tick()
        assert len(server.engine.scheduler.sequences) == 3
    assert len(server.hub.streams) == 3


def test_the_culprit_alone_ends_in_an_error_and_the_others_go_on() -> None:
    server, _ = opened()
    listeners = [RecordingListener(server) for _ in range(3)]
    for listener, name in zip(listeners, "abc", strict=True):
        listener.send(endless(name, credit=Credit(limit=5)))
    server.tick()
    culprit = next(stream.number for stream in server.hub.streams if stream.request_id == "b")
    server.kill_engine()
    poisoned(server, culprit)
    assert (listeners[1].final.finish_reason, listeners[1].final.stop_reason) == (
        "error",
        "the engine failed again and again while it computed this stream",
    )
    assert [stream.request_id for stream in server.hub.streams] == ["a", "c"]
    for listener in (listeners[0], listeners[2]):
        assert sum(event.count for event in listener.heard if isinstance(event, protocol.Token)) == 5


def test_a_culprit_without_credit_is_found_too() -> None:
    server, _ = opened()
    listeners = [RecordingListener(server) for _ in range(3)]
    for listener, name, limit in zip(listeners, "abc", (0, 0, 3), strict=True):
        listener.send(endless(name, prompt="Once upon a time", credit=Credit(limit=limit)))
    culprit = next(stream.number for stream in server.hub.streams if stream.request_id == "b")
    server.kill_engine()
    poisoned(server, culprit)
    assert listeners[1].final.finish_reason == "error"
    assert [stream.request_id for stream in server.hub.streams] == ["a", "c"]
    rest(server)
    assert server.hub.serving.is_proven(0)
    for listener, name in zip((listeners[0], listeners[2]), "ac", strict=True):
        listener.send(protocol.Grant(request_id=name, limit=5))
        listener.hear_token()


def test_the_news_of_a_crowd_are_taken_in_in_several_goes_and_none_is_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They all end in one step, and somebody asks in between."""
    monkeypatch.setattr(incoming_news, "NEWS_A_TURN", 2 * incoming_news.FINAL_NEWS)
    server = SimulatedServer(SIZE, max_streams=4)
    server.in_turns = True
    leaving, staying = RecordingListener(server), RecordingListener(server)
    for name in "abc":
        leaving.send(endless(name, on_disconnect="cancel"))
    rest(server)
    leaving.leave()
    server.tick()
    assert [stream.request_id for stream in server.hub.streams] == ["c"]
    staying.send(protocol.Attach(request_id="a", after=-1))
    assert staying.final.request_id == "a"
    staying.send(protocol.Attach(request_id="c", after=-1))
    server.clock.advance(0)
    assert not server.hub.streams
    assert (staying.final.request_id, staying.final.finish_reason) == ("c", "cancelled")


def test_without_keys_an_address_does_not_wait_behind_the_news_of_anothers_crowd(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They have one tenant, and each pays for itself. All end in one step."""
    monkeypatch.setattr(incoming_news, "NEWS_A_TURN", 2 * incoming_news.FINAL_NEWS)
    server = SimulatedServer(SIZE, max_streams=4)
    server.in_turns = True
    crowd, other = RecordingListener(server), RecordingListener(server)
    other.number = crowd.number + 1
    for listener, name in [(crowd, "a"), (crowd, "b"), (other, "c")]:
        listener.send(endless(name, on_disconnect="cancel"))
    rest(server)
    crowd.leave()
    other.leave()
    server.tick()
    assert [stream.request_id for stream in server.hub.streams] == ["b"]


def test_others_have_their_turn_between_what_commands_come_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(incoming_news, "CHANGE", incoming_news.NEWS_A_TURN)
    server = SimulatedServer(SIZE, max_streams=4)
    server.in_turns = True
    listener = RecordingListener(server)
    for name in "ab":
        listener.send(endless(name))
    rest(server)
    for name in "ab":
        listener.send(protocol.Pause(request_id=name))
    server.tick()
    assert [stream.paused for stream in server.hub.streams] == ["client", None]
    server.clock.advance(0)
    assert [stream.paused for stream in server.hub.streams] == ["client", "client"]


def test_an_end_that_refuses_many_frames_has_a_turn_of_its_own() -> None:
    server = SimulatedServer(SIZE, max_streams=4)
    server.in_turns = True
    listener = RecordingListener(server)
    for name in "abc":
        listener.send(endless(name))
    rest(server)
    for name in "abc":
        for _ in range(incoming_news.NEWS_A_TURN):
            listener.send(protocol.Rewind(request_id=name, to=0))
    ends = [api.News(stream.number, finish=api.Finish("error")) for stream in server.hub.streams]
    server.hub.receive_steps(0, [api.StepOutput(server.engine.scheduler.steps, ends, api.Stats())])
    assert [stream.request_id for stream in server.hub.streams] == ["b", "c"]
    server.clock.advance(0)
    assert [stream.request_id for stream in server.hub.streams] == ["c"]
    server.clock.advance(0)
    assert not server.hub.streams
    refused = [event for event in listener.heard if isinstance(event, protocol.Error)]
    assert len(refused) == 3 * incoming_news.NEWS_A_TURN


def test_what_was_begun_is_done_to_its_end_though_its_engine_goes() -> None:
    """It is paused: no engine will have news of it."""
    server = SimulatedServer(SIZE)
    server.in_turns = True
    listener = RecordingListener(server)
    listener.send(endless())
    rest(server)
    listener.send(protocol.Pause(request_id="a"))
    for _ in range(3 * MADE_A_TURN):
        listener.send(protocol.Approve(request_id="a", call_id="none"))
    server.tick()
    (stream,) = server.hub.streams
    assert (stream.paused, stream.num_waiting) == ("client", 2 * MADE_A_TURN)
    server.engines[0].die()
    server.hub.engine_lost(0, blameless=True)
    for _ in range(3):
        server.clock.advance(0)
    assert not stream.num_waiting


def where_the_end_of_b_waits(monkeypatch: pytest.MonkeyPatch) -> tuple[SimulatedServer, RecordingListener]:
    """Behind that of `a`, for its turn, and their engine is not the first."""
    monkeypatch.setattr(incoming_news, "NEWS_A_TURN", 1)
    server, _ = opened()
    server.in_turns = True
    listener = RecordingListener(server)
    for name in "ab":
        listener.send(start(name, params=Params(max_tokens=1, ignore_eos=True)))
    server.kill_engine()
    server.revive_engine()
    while server.down:
        server.deliver_down()
    while len(server.hub.streams) == 2:
        for _ in "ab":
            server.clock.advance(0)
        server.step()
        server.deliver_up()
    return server, listener


def test_what_an_engine_said_before_it_died_proves_who_is_harmless_and_the_next_says_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, listener = where_the_end_of_b_waits(monkeypatch)
    (waiting,) = server.hub.streams
    server.kill_engine()
    assert waiting.number not in server.hub.serving.of_engine(0)._recovery.suspects
    server.revive_engine()
    assert server.hub.streams == [waiting]
    while server.hub.streams:
        server.tick()
        server.clock.advance(0)
    assert listener.final.request_id == "b"
    assert [event.request_id for event in listener.heard if isinstance(event, protocol.Token)] == ["a", "b"]


def test_who_rests_by_what_nobody_has_taken_in_is_blamed_for_no_death() -> None:
    """It has come to its end, of which its guards have not read, since its client owes for what they did."""
    server, _ = opened()
    server.in_turns = True
    owing, other = RecordingListener(server), RecordingListener(server)
    owing.debt_s = 1.0
    other.send(endless("other", credit=Credit(limit=1)))
    guards = [protocol.Guard(name="g", do="tell", regex="zz")]
    owing.send(start(params=Params(max_tokens=3, ignore_eos=True, guards=guards)))
    for _ in range(2 * DEATHS):
        rest(server)
        server.kill_engine()
        server.revive_engine()
    owing.debt_s = 0.0
    rest(server)
    while len(server.hub.streams) == 2:
        server.clock.advance(1.0)
    assert owing.final.finish_reason == "length"


def test_an_end_that_waited_here_answers_a_later_cancel_in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    server, listener = where_the_end_of_b_waits(monkeypatch)
    server.clock.now += 1
    listener.send(protocol.Cancel(request_id="b"))
    server.clock.advance(0)
    assert not server.hub.streams
    assert server.counts.acts["cancel"] == 1, "which took no less than no time"


def test_a_crowd_hears_in_several_goes_that_its_engine_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = opened()
    monkeypatch.setattr(server.hub.serving.losing, "_most", 1)
    listener = RecordingListener(server)
    for name in "abc":
        listener.send(endless(name))
    for _ in range(3):
        server.tick()
    server.kill_engine()
    told = [stream.paused for stream in server.hub.streams]
    assert told == ["engine", None, None]
    listener.send(protocol.Cancel(request_id="c"))
    listener.send(protocol.Adjust(request_id="b", params=Params(temperature=0.5), ref="r"))
    assert not server.down, "there is nobody to hear of it"
    for _ in "bc":
        server.clock.advance(0)
    assert listener.final.request_id == "c"
    assert [stream.paused for stream in server.hub.streams] == ["engine"] * 2
    server.revive_engine()
    server.kill_engine()
    server.revive_engine()
    assert not any(stream.paused is None for stream in server.hub.streams), (
        "all heard before there is another"
    )
    listener.heard.clear()
    while not any(isinstance(event, protocol.Adjusted) for event in listener.heard):
        server.clock.advance(0)
        server.tick()


def submitted(server: SimulatedServer) -> int:
    return sum(isinstance(command, api.Submit) for commands in server.down for command in commands)


@pytest.mark.parametrize("suspected", [False, True])
def test_an_engine_that_comes_before_a_crowd_has_heard_all_is_given_them_as_they_hear(
    monkeypatch: pytest.MonkeyPatch, *, suspected: bool
) -> None:
    """All in one turn 4,096 held everybody up for 40 ms. Who is suspected has its turn all the same."""
    server, _ = opened()
    monkeypatch.setattr(server.hub.serving.losing, "_most", 1)
    listener = RecordingListener(server)
    for name in "abc":
        listener.send(endless(name))
    if suspected:  # none has moved on in the last engine
        server.kill_engine()
        for _ in "bc":
            server.clock.advance(0)
        server.revive_engine()
    server.kill_engine()
    server.revive_engine()
    given = [submitted(server)]
    for _ in "bc":
        server.clock.advance(0)
        given.append(submitted(server))
    assert given == ([1, 1, 1] if suspected else [1, 2, 3])
    for _ in range(4 * (FEW + 1)):
        for name in "abc":
            listener.send(protocol.Grant(request_id=name, limit=99))
        server.tick()
        server.clock.advance(0)
    assert server.hub.serving.engines[0].streams == 3
    assert server.hub.serving.is_proven(0)


def test_a_suspect_that_ends_as_its_turn_comes_is_waited_for_by_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It hears only then that its engine is gone, which had yet to answer its cancel."""
    server, _ = opened()
    monkeypatch.setattr(server.hub.serving.losing, "_most", 1)
    listener = RecordingListener(server)
    for name in "ab":
        listener.send(endless(name))
    server.kill_engine()
    server.clock.advance(0)
    server.revive_engine()
    listener.send(protocol.Cancel(request_id="b"))
    server.kill_engine()
    server.revive_engine()
    for _ in range(2 * FEW):
        listener.hear_token()
    assert [stream.request_id for stream in server.hub.streams] == ["a"]
    assert server.hub.serving.is_proven(0)
    assert server.hub.serving.takes_starts


def test_one_that_ends_before_it_hears_that_its_engine_is_gone_has_nobody_tried_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever was next on the engine that has its number was given to the one that was gone."""
    server = SimulatedServer(SIZE, engines=2)
    monkeypatch.setattr(server.hub.serving.losing, "_most", 1)
    listener = RecordingListener(server)
    server.kill_engine(0)
    listener.send(endless("a", credit=Credit(limit=1000)))
    for _ in range(4 * FEW):
        server.tick()
    server.kill_engine(1)
    server.revive_engine(number=1)
    listener.send(start("b", params=SHORT, credit=Credit(limit=1, prefetch=12)))
    for _ in range(5 * FEW):
        server.tick()
    server.revive_engine(number=0)
    listener.send(endless("c", credit=Credit(limit=1000)))
    server.kill_engine(1)  # under `a` again, and `b` is yet to hear of it
    server.revive_engine(number=1)
    for _ in range(2 * FEW):
        server.deliver_down(1)
        server.step(1)
        server.deliver_up(1)
    server.kill_engine(0)
    listener.send(protocol.Grant(request_id="b", limit=99))
    server.clock.advance(0)
    for _ in range(4 * FEW):
        server.tick()
    a, c = server.hub._registry.entries
    assert (a.engine is c.engine, a.engine is server.hub.serving.engines[1]) == (True, True)
    assert server.hub.serving.is_proven(1)


def test_who_comes_to_an_engine_where_a_suspect_is_watched_yet_waits_until_those_before_have_moved_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """For ever, where nobody was suspected any more when they came."""
    server, _ = opened()
    monkeypatch.setattr(server.hub.serving.losing, "_most", 1)
    listener = RecordingListener(server)
    listener.send(endless("a", credit=Credit(limit=1000)))
    for name in "bc":
        listener.send(endless(name, credit=Credit(limit=1)))
    for _ in range(3 * FEW):
        listener.hear_token()
    server.kill_engine()
    for _ in "bc":
        server.clock.advance(0)
    server.revive_engine()
    for _ in range(3 * FEW):  # under `a` both die alike
        listener.hear_token()
    server.kill_engine()
    server.revive_engine()
    for _ in range(FEW + 1):
        listener.hear_token()
    for name in "bc":
        listener.send(protocol.Grant(request_id=name, limit=1000))
    for _ in range(3):
        server.clock.advance(0)
    a, b, c = server.hub._registry.entries
    assert (a.engine is b.engine, c.engine) == (True, None)
    for _ in range(2 * FEW):
        server.tick()
    assert c.engine is a.engine


def test_a_new_engine_is_given_many_in_several_goes_and_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submission, "SUBMIT_TOKENS", submission.STREAM_TOKENS)
    server, _ = opened()
    listener = RecordingListener(server)
    for name in "abc":
        listener.send(endless(name))
    server.kill_engine()
    server.revive_engine()
    assert (submitted(server), server.hub.serving.engines[0].streams) == (1, 1)
    server.clock.advance(0)
    assert (submitted(server), server.hub.serving.engines[0].streams) == (2, 2)
    server.kill_engine()
    server.clock.advance(0)
    assert submitted(server) == 0, "there is nobody to give them to"
    server.revive_engine()
    listener.send(protocol.Cancel(request_id="c", ref="c"))
    for _ in range(2 * (FEW + 1)):
        server.clock.advance(0)
        listener.hear_token()
    server.kill_engine()
    server.revive_engine()
    server.clock.advance(0)
    assert submitted(server) == 2


def test_whoever_has_nothing_to_be_computed_on_a_new_engine_is_not_waited_for() -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    listener.send(endless("a"))
    listener.hear_token()
    listener.send(protocol.Pause(request_id="a"))
    rest(server)
    server.kill_engine()
    server.revive_engine()
    assert submitted(server) == 1
    assert server.hub.serving.is_proven(0)


def test_where_one_cannot_be_given_to_a_new_engine_it_alone_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    server, _ = opened()
    listener = RecordingListener(server)
    for name in "abc":
        listener.send(endless(name))
    server.kill_engine()
    monkeypatch.setattr(server.hub.streams[1], "submit", lambda engine, now, yields: 1 // 0)
    server.revive_engine()
    assert [stream.request_id for stream in server.hub.streams] == ["a", "c"]
    assert listener.final.finish_reason == "error"
    for _ in range(2 * (FEW + 1)):
        server.tick()
    assert server.hub.serving.is_proven(0)
    assert server.hub.serving.engines[0].streams == 2


def test_what_a_stream_takes_along_for_whoever_adopts_it_weighs_until_it_has_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(submission, "SUBMIT_TOKENS", 3 * submission.STREAM_TOKENS)
    server = SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(server)
    for name in "ab":
        listener.send(replace(endless(name), on_disconnect="pause"))
    for _ in range(40):
        for name in "ab":
            listener.send(protocol.Pause(request_id=name))
            listener.send(protocol.Resume(request_id=name))
    server.kill_engine()
    server.revive_engine()
    assert submitted(server) == 1
    server.clock.advance(0)
    assert submitted(server) == 2
    stream = server.hub.streams[0]
    assert stream.keeping is not None
    listener.send(protocol.Cancel(request_id=stream.request_id))
    rest(server)
    assert stream.ended
    assert stream.keeping is None


@pytest.mark.parametrize("answers", [False, True])
def test_who_adopts_from_a_gateway_that_had_more_commands_under_way_has_the_very_stream(
    answers: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one of another version may: the engine has heard them, and answers them together."""
    server = SimulatedServer(SIZE, keeps=True)
    listener = RecordingListener(server)
    listener.send(replace(endless("a"), on_disconnect="pause"))
    listener.hear_token()
    with monkeypatch.context() as patch:
        patch.setattr(pending_commands, "MOST_UNDER_WAY", 1000)
        for _ in range(2 * MOST_UNDER_WAY):
            for frame in (protocol.Pause(request_id="a"), protocol.Resume(request_id="a")):
                listener.send(frame)
        while server.down:
            server.deliver_down()
        if answers:
            server.step()
            server.deliver_up()
    (stream,) = server.hub.streams
    assert stream.under_way == (0 if answers else 4 * MOST_UNDER_WAY)
    adopted = server.engines[0].keeping.rebuilt(stream.number, stream.model, server.window, stream.owner)
    assert adopted is not None
    assert seen_of(adopted) == seen_of(stream)
    assert adopted.under_way == stream.under_way


def test_one_that_is_held_back_can_be_cancelled_and_is_not_given_any_more() -> None:
    server, _ = opened()
    listeners = [RecordingListener(server), RecordingListener(server)]
    for listener, name in zip(listeners, "ab", strict=True):
        listener.send(endless(name))
    server.kill_engine()
    server.revive_engine()
    server.kill_engine()
    server.revive_engine()
    held_back = listeners[1]
    held_back.send(protocol.Cancel(request_id="b", ref="c"))
    assert (held_back.final.finish_reason, held_back.final.ref) == ("cancelled", "c")
    listeners[0].hear_token()
    rest(server)
    assert len(server.engine.scheduler.sequences) == 1


def test_one_that_is_held_back_is_steered_all_the_same() -> None:
    server, _ = opened()
    first, held_back = RecordingListener(server), RecordingListener(server)
    first.send(endless("a"))
    held_back.send(endless("b"))
    server.kill_engine()
    server.revive_engine()
    server.kill_engine()
    server.revive_engine()
    held_back.send(protocol.Inject(request_id="b", tokens=[7, 8], ref="i"))
    server.deliver_down()
    assert len(server.engine.scheduler.sequences) <= 1
    held_back.hear_token()
    injected = next(event for event in held_back.heard if isinstance(event, protocol.Injected))
    assert (injected.ref, injected.count, injected.index) == ("i", 2, 0)


def test_news_of_what_the_hub_has_forgotten_is_counted_and_harms_nothing() -> None:
    server, reader = due()
    reader.send(endless("b"))
    while server.down:
        server.deliver_down()
    (stream,) = (stream for stream in server.hub.streams if stream.request_id == "b")
    with server.hub._waking() as wake:
        stream.fail("as if by a mistake of ours", server.clock())
        wake(stream)
    server.step()
    while server.up:
        server.deliver_up()
        server.step()
        if server.counts.tokens_discarded:
            return
    raise AssertionError("the engine decoded nothing")


@pytest.mark.parametrize("failing", [("add",), ("add", "flush")])
def test_a_mistake_of_the_gateway_ends_the_stream_that_it_shows_in_and_no_other(
    failing: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also where it shows again as its text is brought to its end. Others' news of a step stand behind."""
    server, _ = opened()
    listener = RecordingListener(server)
    listener.send(endless("bad", credit=Credit(limit=2, prefetch=9)))
    listener.send(start("good", params=SHORT, credit=Credit(limit=12)))
    bad = next(stream for stream in server.hub.streams if stream.request_id == "bad")
    while len(bad.output) < 4:
        server.tick()

    def fail(*token: int) -> str:
        raise ValueError("with the user's secret text in it")

    for name in failing:
        monkeypatch.setattr(bad.output, name, fail)
    while server.hub.streams:
        server.tick()
    finals = {event.request_id: event for event in listener.heard if isinstance(event, protocol.Final)}
    assert (finals["bad"].finish_reason, finals["good"].finish_reason) == ("error", "length")
    assert (finals["bad"].index, finals["good"].index) == (2, 12)
    server.tick()
    server.tick()
    assert not server.engine.scheduler.sequences, "its memory is free"
    assert "ValueError" in caplog.text
    assert "secret" not in caplog.text


def with_a_short_stream() -> tuple[SimulatedServer, RecordingListener]:
    server = SimulatedServer(SIZE)
    listener = RecordingListener(server)
    listener.send(start(params=SHORT, credit=Credit(limit=12)))
    return server, listener


@pytest.mark.parametrize(
    "step",
    [
        "engine_recovery.EngineRecovery.engine_died",
        "incoming_news.IncomingNews.untaken",
        "keepers.Keepers.engine_lost",
        "deposits.Deposits.engine_lost",
        "shares.Shares.engine_lost",
    ],
)
def test_a_mistake_in_what_an_engines_death_comes_to_leaves_nobody_without_an_engine(
    step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They waited for the one that was gone, for ever, and others were served."""
    server, listener = with_a_short_stream()
    listener.hear_token()
    with monkeypatch.context() as patch:
        patch.setattr(f"realtime.hub.{step}", lambda *asked: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            server.kill_engine()
    server.revive_engine()
    rest(server)
    assert listener.final.finish_reason == "length"


def test_a_mistake_behind_a_streams_end_keeps_it_from_nobody_who_listens(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, listener = with_a_short_stream()
    monkeypatch.setattr(server.counts, "finished", lambda stream, now: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        rest(server)
    assert listener.final.finish_reason == "length"


def test_who_has_ended_is_not_remembered_as_having_moved_on() -> None:
    server, reader = opened()
    reader.prompt = True
    reader.send(start(params=SHORT))
    run_out(server, reader.accounts[0])
    assert not server.hub.streams
    assert not any(server.hub.serving.of_engine(0)._recovery._moves.values())
