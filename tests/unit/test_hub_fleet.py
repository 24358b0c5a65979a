"""The hub and several engines, each rule by an example: where streams go, what they feel of another's death,
and who is tried apart."""

from __future__ import annotations

import pytest

from engine import api
from engine.schedule.sequence import Sequence
from midstream import protocol
from midstream.protocol import Credit, Params
from realtime.hub import serving, submission
from realtime.hub.engine_recovery import DEATHS
from realtime.hub.submission import REPLACEMENT_S
from realtime.stream.stream import Stream
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import endless, start
from tests.fakes.simulated_server import EngineSize, SimulatedServer

SIZE = EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=70, batch_rows=70)
SHORT = Params(max_tokens=40, ignore_eos=True, temperature=0)
PLENTY = Credit(limit=1000)


@pytest.fixture
def server() -> SimulatedServer:
    return SimulatedServer(SIZE, engines=3)


@pytest.fixture
def listener(server: SimulatedServer) -> RecordingListener:
    return RecordingListener(server)


def engine_of(server: SimulatedServer, name: str) -> int:
    """The number of the one engine that knows it."""
    stream = stream_of(server, name)
    numbers = [number for number, one in enumerate(server.engines) if one.alive]
    knowing = [at for at in numbers if stream.number in server.engines[at].engine.scheduler.sequences]
    assert len(knowing) == 1
    return knowing[0]


def stream_of(server: SimulatedServer, name: str) -> Stream:
    (stream,) = (stream for stream in server.hub.streams if stream.request_id == name)
    return stream


def text(listener: RecordingListener, name: str) -> str:
    tokens = [event for event in listener.heard if isinstance(event, protocol.Token)]
    return "".join(event.delta for event in tokens if event.request_id == name)


def finals(listener: RecordingListener) -> dict[str, str]:
    return {
        event.request_id: event.finish_reason for event in listener.heard if isinstance(event, protocol.Final)
    }


def submitted(server: SimulatedServer) -> int:
    """Streams that are on their way to an engine."""
    down = [commands for one in server.engines for commands in one.down]
    return sum(isinstance(command, api.Submit) for commands in down for command in commands)


def ticks(server: SimulatedServer, count: int) -> None:
    for _ in range(count):
        server.tick()
        server.clock.advance(0)  # what is done in later turns of the event loop


def undisturbed(names: list[str]) -> list[str]:
    """The texts of such streams where one engine has them all, and lives."""
    alone = SimulatedServer(SIZE)
    listener = RecordingListener(alone)
    for name in names:
        listener.send(start(name, prompt=f"Once {name}", params=SHORT, credit=PLENTY))
    while alone.hub.streams:
        ticks(alone, 1)
    return [text(listener, name) for name in names]


def test_streams_are_divided_and_only_those_of_the_engine_that_dies_feel_it(
    server: SimulatedServer, listener: RecordingListener
) -> None:
    names = [str(number) for number in range(6)]
    for name in names:
        listener.send(start(name, prompt=f"Once {name}", params=SHORT, credit=PLENTY))
    ticks(server, 5)
    at = {name: engine_of(server, name) for name in names}
    assert sorted(at.values()) == [0, 0, 1, 1, 2, 2]
    server.kill_engine(1)
    told = {event.request_id for event in listener.heard if isinstance(event, protocol.Paused)}
    assert told == {name for name in names if at[name] == 1}
    ticks(server, 2)
    assert sorted(engine_of(server, name) for name in told) == [0, 2], "they go on at once"
    ticks(server, 60)
    assert finals(listener) == dict.fromkeys(names, "length")
    assert [text(listener, name) for name in names] == undisturbed(names)


def test_others_are_given_what_a_dead_engine_had_in_several_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "SUBMIT_TOKENS", submission.STREAM_TOKENS)
    server = SimulatedServer(SIZE, engines=3)
    listener = RecordingListener(server)
    for name in range(12):
        listener.send(endless(f"{name}", credit=PLENTY))
    ticks(server, 5)
    server.kill_engine(0)
    for turn in range(1, 5):
        assert submitted(server) == turn
        server.clock.advance(0)


def test_of_long_ones_that_have_lost_theirs_fewer_are_looked_for_elsewhere_in_one_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And all hear at once that it is gone."""
    monkeypatch.setattr(submission, "PLACED_A_TURN", 1000 // submission.LOOKED_FOR)
    server = SimulatedServer(SIZE, engines=3)
    listener = RecordingListener(server)
    for name in range(9):
        listener.send(endless(f"{name}", prompt=[60 + name] * 1000, credit=PLENTY))
    ticks(server, 20)
    server.kill_engine(0)
    for placed in range(1, 4):
        assert [stream.paused for stream in server.hub.streams].count("engine") == 3
        assert submitted(server) == placed
        server.clock.advance(0)


def test_who_is_to_be_placed_for_two_reasons_goes_to_one_engine_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where nobody is suspected any more while some who lost their engine wait to be placed."""
    monkeypatch.setattr(submission, "PLACED_A_TURN", 2)
    server = SimulatedServer(SIZE, engines=2)
    listener = RecordingListener(server)
    names = [str(number) for number in range(6)]
    for name in names:
        listener.send(start(name, params=SHORT, credit=PLENTY))
    ticks(server, 5)
    server.kill_engine(0)
    assert submitted(server) == 2
    server.hub.serving.of_model("toy").place(server.hub.serving.entries)
    server.clock.advance(0)
    assert submitted(server) == 3
    ticks(server, 60)
    assert finals(listener) == dict.fromkeys(names, "length")


def test_who_is_tried_elsewhere_before_it_was_told_that_its_engine_is_gone_stays_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of very many that lose their engine each turn some are told, and others' news come in between."""
    monkeypatch.setattr(serving, "LOST_A_TURN", 1)
    server = SimulatedServer(SIZE, engines=2)
    listener = RecordingListener(server)
    listener.send(start("first", params=SHORT, credit=PLENTY))
    tried = _given_to(server, "first")
    server.kill_engine(tried)
    server.revive_engine(number=tried)
    for name in "abc":
        listener.send(start(name, params=SHORT, credit=PLENTY))
    server.kill_engine(1 - tried)
    submits = 0
    while submits < 4:
        submits += submitted(server)
        server.tick()  # and no turn comes for those who wait to be told
    server.clock.advance(0)
    assert {entry.engine and entry.engine.number for entry in server.hub.serving.entries} == {tried}
    ticks(server, 60)
    assert finals(listener) == dict.fromkeys(["first", *"abc"], "length")
    assert not server.hub.serving.engines[tried].streams


def test_where_one_that_has_lost_its_engine_fails_the_others_go_on_elsewhere_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = SimulatedServer(SIZE, engines=2)
    listener = RecordingListener(server)
    server.kill_engine(1)
    for name in "abc":
        listener.send(start(name, params=SHORT, credit=PLENTY))
    ticks(server, 5)
    server.revive_engine(number=1)
    monkeypatch.setattr(stream_of(server, "b"), "lose_engine", lambda now: 1 // 0)
    of_shares = list[object]()
    monkeypatch.setattr(server.hub._shares, "engine_lost", of_shares.append)
    server.kill_engine(0)
    assert of_shares
    server.clock.advance(0)
    ticks(server, 60)
    assert finals(listener) == {"a": "length", "b": "error", "c": "length"}


def test_what_was_asked_meanwhile_is_done_where_it_goes_on(
    server: SimulatedServer, listener: RecordingListener
) -> None:
    listener.send(endless("a", credit=PLENTY))
    ticks(server, 3)
    listener.send(protocol.Adjust(request_id="a", params=Params(temperature=0.5), ref="r"))
    server.kill_engine(engine_of(server, "a"))
    listener.send(protocol.Pause(request_id="a", ref="p"))
    ticks(server, 4)
    answers = [
        event.ref for event in listener.heard if isinstance(event, protocol.Adjusted | protocol.Paused)
    ]
    assert [ref for ref in answers if ref] == ["r", "p"]


def test_with_no_engine_left_they_wait_for_the_next(
    server: SimulatedServer, listener: RecordingListener
) -> None:
    listener.send(start("a", params=SHORT, credit=PLENTY))
    ticks(server, 5)
    for number in range(3):
        server.kill_engine(number)
    listener.send(endless("b"))
    assert listener.error().code == "overloaded"
    assert stream_of(server, "a").paused == "engine"
    server.revive_engine(number=2)
    ticks(server, 60)
    assert finals(listener) == {"a": "length"}


def test_a_context_goes_where_it_is_held(server: SimulatedServer, listener: RecordingListener) -> None:
    story, other = list(range(60, 260)), list(range(260, 60, -1))
    listener.send(start("a", prompt=story, params=SHORT, credit=PLENTY))
    listener.send(start("b", prompt=other, params=SHORT, credit=PLENTY))
    ticks(server, 5)
    held = {"a": engine_of(server, "a"), "b": engine_of(server, "b")}
    assert held["a"] != held["b"]
    ticks(server, 60)
    for turn in range(3):
        listener.send(start(f"a{turn}", prompt=[*story, 7 + turn], params=SHORT, credit=PLENTY))
        listener.send(start(f"b{turn}", prompt=[*other, 7 + turn], params=SHORT, credit=PLENTY))
        ticks(server, 3)
        assert engine_of(server, f"a{turn}") == held["a"]
        assert engine_of(server, f"b{turn}") == held["b"]
    assert stream_of(server, "a2").context.prompt[0] == story[0]


def test_other_tenants_find_nothing_by_it(server: SimulatedServer, listener: RecordingListener) -> None:
    story = list(range(60, 260))
    listener.send(start("a", prompt=story, params=SHORT, credit=PLENTY))
    ticks(server, 60)
    stranger = RecordingListener(server, "stranger")
    stranger.send(start("a", prompt=story, params=SHORT, credit=PLENTY))
    ticks(server, 60)
    (final,) = (event for event in stranger.heard if isinstance(event, protocol.Final))
    assert final.usage.cached_tokens == 0


def test_a_long_prompt_has_short_ones_go_elsewhere(
    server: SimulatedServer, listener: RecordingListener
) -> None:
    listener.send(start("long", prompt=[7] * 3000, params=SHORT, credit=PLENTY))
    for number in range(8):
        listener.send(start(str(number), prompt=[60 + number], params=SHORT, credit=PLENTY))
    ticks(server, 1)
    long = engine_of(server, "long")
    assert [engine_of(server, str(number)) for number in range(8)].count(long) == 0


# -- a stream that kills engines -------------------------------------------------------------------


def deaths(server: SimulatedServer, poison: str, says: int = 0, most: int = 2000) -> list[list[str]]:
    """Until all has ended, each engine dies that computes what the poison says behind so many tokens, and
    soon another stands in its place: what else each had on it."""
    names = {stream.number: stream.request_id for stream in server.hub.streams}
    found, back = list[list[str]](), dict[int, int]()
    for tick in range(most):
        for number in [number for number, due in back.items() if due <= tick]:
            del back[number]
            server.revive_engine(number=number)
        for number, one in enumerate(server.engines):
            while one.down:
                server.deliver_down(number)
            sequences = one.engine.scheduler.sequences if one.alive else {}
            on_it = {names[stream] for stream in sequences}
            said = [one.num_outputs for stream, one in sequences.items() if names[stream] == poison]
            if said and said[0] >= says:
                found.append(sorted(on_it - {poison}))
                server.kill_engine(number)
                back[number] = tick + 20
                continue
            server.step(number)
            while one.up:
                server.deliver_up(number)
        server.clock.advance(0)
        if not server.hub.streams and not back:
            return found
    raise AssertionError("it does not end")


@pytest.mark.parametrize("count", [1, 6, 60])
def test_a_stream_that_kills_its_engine_kills_no_other_but_where_it_is_tried(
    server: SimulatedServer, listener: RecordingListener, count: int
) -> None:
    others = [str(number) for number in range(count)]
    for name in others[: count // 2]:
        listener.send(start(name, prompt=f"Once {name}", params=SHORT, credit=PLENTY))
    ticks(server, 3)
    for name in [*others[count // 2 :], "poison"]:
        listener.send(start(name, prompt=f"Once {name}", params=SHORT, credit=PLENTY))
    found = deaths(server, "poison")
    assert len(found) == DEATHS
    assert all(set(beside) <= set(found[0]) for beside in found[1:]), "others are where nobody is tried"
    assert found[2:] == [[]] * (DEATHS - 2), "and who has proven harmless goes there"
    assert finals(listener) == dict.fromkeys(others, "length") | {"poison": "error"}
    assert [text(listener, name) for name in others] == undisturbed(others)


@pytest.mark.parametrize("says", [1, 2, 5, 20])
def test_one_that_kills_when_it_had_moved_on_kills_one_more_that_others_are_on(
    server: SimulatedServer, listener: RecordingListener, says: int
) -> None:
    others = [str(number) for number in range(60)]
    for name in [*others, "poison"]:
        listener.send(start(name, prompt=f"Once {name}", params=SHORT, credit=PLENTY))
    found = deaths(server, "poison", says)
    assert len(found) == DEATHS
    assert all(set(beside) <= set(found[1]) for beside in found[2:]), "others are where nobody is tried"
    assert finals(listener) == dict.fromkeys(others, "length") | {"poison": "error"}
    assert [text(listener, name) for name in others] == undisturbed(others)


def test_engines_that_die_under_streams_that_rest_are_blamed_on_none_of_them(
    server: SimulatedServer, listener: RecordingListener
) -> None:
    for name in "abc":
        listener.send(endless(name, credit=Credit(limit=8)))
    for _ in range(2 * DEATHS):
        ticks(server, 20)
        assert all(stream.out_of_credit for stream in server.hub.streams)
        assert finals(listener) == {}
        number = engine_of(server, "a")
        server.kill_engine(number)
        server.revive_engine(number=number)
        for name in "abc":
            limit = 8 + len(stream_of(server, name).output)
            listener.send(protocol.Grant(request_id=name, limit=limit))
    assert len(server.hub.streams) == 3


def test_starts_are_taken_while_somebody_is_tried(
    server: SimulatedServer, listener: RecordingListener
) -> None:
    listener.send(endless("suspect", credit=PLENTY))
    server.kill_engine(_given_to(server, "suspect"))
    assert server.hub.serving.takes_starts
    listener.send(start("new", params=SHORT, credit=PLENTY))
    ticks(server, 60)
    assert finals(listener) == {"new": "length"}
    assert stream_of(server, "suspect").state == "queued", "it waits for an engine of its own"


def test_where_no_engine_comes_for_suspects_they_are_tried_beside_others(
    server: SimulatedServer, listener: RecordingListener
) -> None:
    listener.send(start("suspect", params=SHORT, credit=PLENTY))
    server.kill_engine(_given_to(server, "suspect"))
    ticks(server, 60)
    assert finals(listener) == {}
    server.clock.advance(REPLACEMENT_S)
    ticks(server, 60)
    assert finals(listener) == {"suspect": "length"}


def test_an_engine_that_was_told_to_end_leaves_no_suspects(
    server: SimulatedServer, listener: RecordingListener
) -> None:
    listener.send(start("a", params=SHORT, credit=PLENTY))
    number = _given_to(server, "a")
    server.engines[number].die()
    server.hub.engine_lost(number, blameless=True)
    ticks(server, 60)
    assert finals(listener) == {"a": "length"}


def test_streams_go_on_by_an_equal_engine_where_there_is_one(
    server: SimulatedServer, listener: RecordingListener
) -> None:
    for number, fingerprint in ((1, "other"), (2, "fp")):
        server.kill_engine(number)
        server.revive_engine(fingerprint, number)
    server.kill_engine(0)
    server.revive_engine("fp", 0)
    for name in "abcd":
        listener.send(endless(name, credit=PLENTY))
    ticks(server, 3)
    lost = next(number for number in (0, 2) if any(engine_of(server, name) == number for name in "abcd"))
    moved = [name for name in "abcd" if engine_of(server, name) == lost]
    server.kill_engine(lost)
    ticks(server, 3)
    assert {engine_of(server, name) for name in moved} == {2 - lost}


def test_in_a_roll_streams_stay_with_equal_engines_as_long_as_there_is_one_and_are_told_then(
    server: SimulatedServer, listener: RecordingListener
) -> None:
    names = "abcdef"
    for name in names:
        listener.send(endless(name, credit=PLENTY))
    ticks(server, 3)
    rolled = list[int]()
    for number in range(3):
        server.engines[number].die()
        server.hub.engine_lost(number, blameless=True)
        server.revive_engine("new", number)
        rolled.append(number)
        ticks(server, 5)
        old = {0, 1, 2} - set(rolled)
        assert {engine_of(server, name) for name in names} <= (old or {0, 1, 2})
        told = {
            event.request_id: event.fingerprint
            for event in listener.heard
            if isinstance(event, protocol.Resumed) and event.fingerprint is not None
        }
        assert told == ({} if old else dict.fromkeys(names, "new")), "and no stream is told before it is so"
    ticks(server, 5)
    assert not finals(listener), "nothing is cut"


def _given_to(server: SimulatedServer, name: str) -> int:
    """Before it has heard of it."""
    number = stream_of(server, name).number
    (engine,) = (
        at
        for at, one in enumerate(server.engines)
        for commands in one.down
        for command in commands
        if isinstance(command, api.Submit) and command.stream == number
    )
    return engine


def test_who_comes_to_an_engine_on_which_others_are_yields_to_them(
    server: SimulatedServer, listener: RecordingListener
) -> None:
    for name in map(str, range(6)):
        listener.send(endless(name, credit=PLENTY))
    ticks(server, 5)
    lost = {name for name in map(str, range(6)) if engine_of(server, name) == 1}
    assert not any(sequence_of(server, name).num_yielding for name in map(str, range(6)))
    server.kill_engine(1)
    ticks(server, 2)
    assert {name for name in map(str, range(6)) if sequence_of(server, name).num_yielding} == lost


def test_on_an_engine_of_their_own_they_yield_to_nobody() -> None:
    server = SimulatedServer(SIZE)
    listener = RecordingListener(server)
    for name in ("a", "b"):
        listener.send(endless(name, credit=PLENTY))
    ticks(server, 5)
    server.kill_engine(0)
    server.revive_engine(number=0)
    ticks(server, 2)
    assert [sequence_of(server, name).num_yielding for name in ("a", "b")] == [0, 0]


def sequence_of(server: SimulatedServer, name: str) -> Sequence:
    engine = server.engines[engine_of(server, name)].engine
    return engine.scheduler.sequences[stream_of(server, name).number]
