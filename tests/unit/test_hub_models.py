"""The hub and several models: each start goes where its model is, and what befalls one model is nothing to
another."""

from __future__ import annotations

import pytest

from midstream import protocol
from midstream.protocol import Credit, Fork, Message, Params
from realtime.hub.engine_recovery import DEATHS
from realtime.hub.models import KnownModel, Models
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import start
from tests.fakes.simulated_server import EngineSize, SimulatedServer

SIZE = EngineSize(kv_tokens=4096, block=16, step_tokens=4096, slots=70, batch_rows=70)
SHORT = Params(max_tokens=40, ignore_eos=True, temperature=0)
PLENTY = Credit(limit=1000)
TOY, OTHER = 0, 1  # engines


@pytest.fixture
def server() -> SimulatedServer:
    known = [KnownModel("toy", ("small",)), KnownModel("other", ("large", "best"))]
    return SimulatedServer(SIZE, engines=2, models=("toy", "other"), known=Models(known))


@pytest.fixture
def listener(server: SimulatedServer) -> RecordingListener:
    return RecordingListener(server)


def begun(listener: RecordingListener) -> dict[str, str]:
    """By what their `started` say."""
    return {event.request_id: event.model for event in listener.heard if isinstance(event, protocol.Started)}


def ticks(server: SimulatedServer, count: int = 60) -> None:
    for _ in range(count):
        server.tick()
        server.clock.advance(0)


def finals(listener: RecordingListener) -> dict[str, str]:
    return {
        event.request_id: event.finish_reason for event in listener.heard if isinstance(event, protocol.Final)
    }


@pytest.mark.parametrize(
    ("asked", "model"),
    [
        (None, "toy"),
        ("toy", "toy"),
        ("small", "toy"),
        ("other", "other"),
        ("large", "other"),
        ("best", "other"),
    ],
)
def test_a_start_goes_to_the_model_that_it_names(
    server: SimulatedServer, listener: RecordingListener, asked: str | None, model: str
) -> None:
    listener.send(start("a", model=asked, params=SHORT, credit=PLENTY))
    assert begun(listener) == {"a": model}
    (stream,) = server.hub.streams
    ticks(server, 2)
    knowing = [stream.number in engine.engine.scheduler.sequences for engine in server.engines]
    assert knowing == [model == "toy", model == "other"]
    ticks(server)
    assert finals(listener) == {"a": "length"}


def test_an_unknown_model_is_refused_with_those_that_there_are(listener: RecordingListener) -> None:
    listener.send(start("a", model="gpt-9"))
    error = listener.error()
    assert (error.code, error.message) == (
        "unknown_model",
        'There is no model "gpt-9"; this server has "toy", "other".',
    )


def test_a_name_that_is_no_models_is_said_again_in_part(listener: RecordingListener) -> None:
    listener.send(start("a", model="m" * 100_000))
    assert listener.error().message == f'There is no model "{"m" * 128}…"; this server has "toy", "other".'


def test_one_models_death_is_nothing_to_another(server: SimulatedServer, listener: RecordingListener) -> None:
    for name in ("toy", "other"):
        listener.send(start(name, model=name, params=SHORT, credit=PLENTY))
    ticks(server, 3)
    server.kill_engine(OTHER)
    told = [event.request_id for event in listener.heard if isinstance(event, protocol.Paused)]
    assert told == ["other"]
    assert server.hub.serving.takes_starts
    assert server.hub.serving.starts_taken == {"toy": True, "other": False}
    listener.send(start("late", model="other"))
    assert listener.error().code == "overloaded"
    listener.send(start("more", params=SHORT, credit=PLENTY))
    ticks(server)
    assert finals(listener) == {"toy": "length", "more": "length"}
    server.revive_engine(number=OTHER)
    ticks(server)
    assert finals(listener) == {"toy": "length", "more": "length", "other": "length"}


def test_whoever_is_suspected_of_one_models_engines_closes_no_other(
    server: SimulatedServer, listener: RecordingListener
) -> None:
    listener.send(start("culprit", model="other", params=SHORT, credit=PLENTY))
    for death in range(1 + DEATHS):
        server.kill_engine(OTHER)
        listener.send(start(f"{death}", params=SHORT, credit=PLENTY))
        server.revive_engine(number=OTHER)
    ticks(server)
    ends = finals(listener)
    assert ends.pop("culprit") == "error"
    assert list(ends.values()) == ["length"] * (1 + DEATHS)


def test_a_fork_has_the_model_of_what_it_forks(server: SimulatedServer, listener: RecordingListener) -> None:
    listener.send(start("a", model="other", params=SHORT, credit=PLENTY))
    ticks(server, 5)
    fork = Fork(request_id="a", at=2)
    listener.send(protocol.Start(request_id="b", fork=fork, model="small"))
    error = listener.error()
    assert error.code == "invalid_params"
    assert error.message == (
        '`model` is "small", and the stream that is forked has "other": a fork has no other.'
    )
    for name, asked in (("c", None), ("d", "best")):
        listener.send(protocol.Start(request_id=name, fork=fork, model=asked, credit=PLENTY))
    ticks(server)
    assert begun(listener) == {"a": "other", "c": "other", "d": "other"}


def test_texts_are_made_tokens_of_by_the_streams_own_model(
    server: SimulatedServer, listener: RecordingListener
) -> None:
    listener.send(start("a", model="other", params=SHORT, credit=PLENTY))
    listener.send(protocol.Inject(request_id="a", messages=[Message(role="user", content="No!")]))
    ticks(server)
    assert [event.request_id for event in listener.heard if isinstance(event, protocol.Injected)] == ["a"]


def test_nothing_is_known_before_the_first_engine() -> None:
    server = SimulatedServer(SIZE, engines=0)
    listener = RecordingListener(server)
    listener.send(start("a"))
    assert listener.error().code == "overloaded"
