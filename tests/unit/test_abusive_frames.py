"""What abuse is tried with: a frame of every kind that the protocol has, each of them valid."""

from __future__ import annotations

from typing import get_args

import pytest

from bench.reliability.abuse import Case, Outcome, Seen, named, within
from bench.reliability.abusive_frames import KINDS, encoded
from bench.reliability.abusive_requests import BODY_BYTES, REQUESTS
from midstream.protocol import ClientFrame
from realtime.codec import Codec


def test_every_frame_of_the_protocol_is_among_them() -> None:
    frames = {kind.__struct_config__.tag for kind in get_args(ClientFrame)}
    assert {frame["type"] for frame in KINDS.values()} == frames


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_a_frame(kind: str) -> None:
    Codec(None).decode(encoded(kind, "abused", 1).decode())


def test_requests_are_as_large_as_may_be() -> None:
    assert max(len(request.body) for request in REQUESTS.values()) <= BODY_BYTES


def test_an_attack_is_named_by_its_kinds_how_it_reads_and_its_connections() -> None:
    assert named("fork + rewind by one, all, 50") == Case(("fork", "rewind by one"), "all", 50)
    assert named("log probabilities, whole, little, 1") == Case(("log probabilities, whole",), "little", 1)


def test_others_gaps_are_told_in_times_of_quiet_and_of_quiet_beside_a_busy_process() -> None:
    seen, quiet, busy = Seen(5.0, 30.0, 60.0), Seen(4.0, 20.0, 40.0), Seen(5.0, 24.0, 41.0)
    outcome = Outcome(Case(("ping",), "all", 1), seen, quiet, busy, before_mib=55.0)
    assert (outcome.gap, outcome.gap_beside_busy) == (1.5, 1.25)
    assert (outcome.mib, outcome.mib_in_all) == (5.0, 20.0)
    assert within(outcome)
    assert not within(outcome._replace(quiet=Seen(4.0, 19.0, 40.0)))
