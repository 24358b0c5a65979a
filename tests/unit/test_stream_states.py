"""Every passage of the table of lives really happens: a table with more in it than that would mislead."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from midstream import protocol
from midstream.protocol import Credit, StreamFrame
from realtime.stream.states import LIFE, State
from tests.fakes.recording_listener import Ear
from tests.fakes.simulated_client import endless, opened, rest
from tests.fakes.simulated_server import House

START = endless(credit=Credit(limit=4))
START_WITHOUT_CREDIT = endless(credit=Credit(limit=0))
PAUSE = protocol.Pause(request_id="a")
RESUME = protocol.Resume(request_id="a")
CANCEL = protocol.Cancel(request_id="a")
GRANT = protocol.Grant(request_id="a", limit=8)

# What is sent and waited for, so that the last of it is the passage.
SCRIPTS: dict[tuple[State, State], list[StreamFrame | Callable[[House], None]]] = {
    ("queued", "running"): [START, House.tick, House.tick],
    ("queued", "stalled"): [START_WITHOUT_CREDIT, rest],
    ("queued", "paused"): [START, PAUSE, House.tick],
    ("queued", "finished"): [START, CANCEL, House.tick],
    ("running", "stalled"): [START, House.tick, House.tick, rest],
    ("running", "paused"): [START, House.tick, House.tick, PAUSE, House.tick],
    ("running", "finished"): [START, House.tick, House.tick, CANCEL, House.tick],
    ("stalled", "running"): [START, rest, GRANT],
    ("stalled", "paused"): [START, rest, PAUSE, House.tick],
    ("stalled", "finished"): [START, rest, CANCEL, House.tick],
    ("paused", "running"): [START, House.tick, House.tick, PAUSE, House.tick, RESUME, House.tick],
    ("paused", "stalled"): [START, rest, PAUSE, House.tick, RESUME, House.tick],
    ("paused", "queued"): [START, PAUSE, House.tick, RESUME, House.tick],
    ("paused", "finished"): [START, PAUSE, House.tick, CANCEL, House.tick],
}


@pytest.mark.parametrize("passage", LIFE, ids=lambda passage: f"{passage.before}-{passage.after}")
def test_every_passage_of_the_table_happens(passage: tuple[State, State, str]) -> None:
    before, after, _ = passage
    house, _ = opened()
    ear = Ear(house)
    *script, last = SCRIPTS[before, after]
    for act in script:
        play(act, house, ear)
    (stream,) = house.hub.streams
    assert stream.state == before
    play(last, house, ear)
    assert stream.state == after
    assert (before, after) in house.passages


def play(act: StreamFrame | Callable[[House], None], house: House, ear: Ear) -> None:
    if callable(act):
        act(house)
    else:
        ear.send(act)
    house.look()
