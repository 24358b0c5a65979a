"""Every transition of the table of lives really happens: a table with more in it than that would mislead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from midstream import protocol
from midstream.protocol import Credit, StreamFrame
from realtime.stream.states import TRANSITIONS, State
from tests.fakes.recording_listener import RecordingListener
from tests.fakes.simulated_client import endless, opened, rest
from tests.fakes.simulated_server import SimulatedServer

START = endless(credit=Credit(limit=4))
START_WITHOUT_CREDIT = endless(credit=Credit(limit=0))
PAUSE = protocol.Pause(request_id="a")
RESUME = protocol.Resume(request_id="a")
CANCEL = protocol.Cancel(request_id="a")
GRANT = protocol.Grant(request_id="a", limit=8)

# What is sent and waited for, so that the last of it is the transition.
SCRIPTS: dict[tuple[State, State], list[StreamFrame | Callable[[SimulatedServer], None]]] = {
    ("queued", "running"): [START, SimulatedServer.tick, SimulatedServer.tick],
    ("queued", "stalled"): [START_WITHOUT_CREDIT, rest],
    ("queued", "paused"): [START, PAUSE, SimulatedServer.tick],
    ("queued", "finished"): [START, CANCEL, SimulatedServer.tick],
    ("running", "stalled"): [START, SimulatedServer.tick, SimulatedServer.tick, rest],
    ("running", "paused"): [START, SimulatedServer.tick, SimulatedServer.tick, PAUSE, SimulatedServer.tick],
    ("running", "finished"): [
        START,
        SimulatedServer.tick,
        SimulatedServer.tick,
        CANCEL,
        SimulatedServer.tick,
    ],
    ("stalled", "running"): [START, rest, GRANT],
    ("stalled", "paused"): [START, rest, PAUSE, SimulatedServer.tick],
    ("stalled", "finished"): [START, rest, CANCEL, SimulatedServer.tick],
    ("paused", "running"): [
        START,
        SimulatedServer.tick,
        SimulatedServer.tick,
        PAUSE,
        SimulatedServer.tick,
        RESUME,
        SimulatedServer.tick,
    ],
    ("paused", "stalled"): [START, rest, PAUSE, SimulatedServer.tick, RESUME, SimulatedServer.tick],
    ("paused", "queued"): [START, PAUSE, SimulatedServer.tick, RESUME, SimulatedServer.tick],
    ("paused", "finished"): [START, PAUSE, SimulatedServer.tick, CANCEL, SimulatedServer.tick],
}


@pytest.mark.parametrize(
    "transition", TRANSITIONS, ids=lambda transition: f"{transition.before}-{transition.after}"
)
def test_every_passage_of_the_table_happens(transition: tuple[State, State, str]) -> None:
    before, after, _ = transition
    server, _ = opened()
    listener = RecordingListener(server)
    *script, last = SCRIPTS[before, after]
    for act in script:
        play(act, server, listener)
    (stream,) = server.hub.streams
    assert stream.state == before
    play(last, server, listener)
    assert stream.state == after
    assert (before, after) in server.transitions


def play(
    act: StreamFrame | Callable[[SimulatedServer], None], server: SimulatedServer, listener: RecordingListener
) -> None:
    if callable(act):
        act(server)
    else:
        listener.send(act)
    server.look()
