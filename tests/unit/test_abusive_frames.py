"""What abuse is tried with: a frame of every kind that the protocol has, each of them valid."""

from __future__ import annotations

from typing import get_args

import pytest

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
