"""What a body that steers a stream may be."""

from __future__ import annotations

import tracemalloc

import pytest

from midstream import protocol
from realtime.http.follow_and_steer_endpoint import read_frame
from realtime.refusal import Refusal


@pytest.mark.parametrize("body", [b'{"type":"pause"}', b'{"type":"pause","request_id":"\\u00e9"}'])
def test_the_path_says_whose_frame_it_is(body: bytes) -> None:
    assert read_frame(body, "\u00e9") == protocol.Pause(request_id="\u00e9")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"type":"ping"}',
        b'{"type":"pause","request_id":"another"}',
        b'{"type":"pause","request_id":null}',
        b'{"type":"pause","request_id":1e999}',
        b'{"type":"pause","ref":"\xff"}',
        b'{"type":"pause","request_id":"\xff"}',
        b'{"type":"pause","\xff":1}',
        b'{"type":"\xff"}',
        b'{"type":"pause","ref":"\\ud800"}',
        b'{"type":' + b"[" * 100_000,
    ],
)
def test_whatever_is_no_frame_is_refused(body: bytes) -> None:
    with pytest.raises(Refusal) as refused:
        read_frame(body, "x")
    assert refused.value.status == 400


def test_nonsense_is_not_made_objects_of() -> None:
    body = b'{"type":"pause","x":[' + b"[]," * 60_000 + b"[]]}"
    tracemalloc.start()
    try:
        assert read_frame(body, "x") == protocol.Pause(request_id="x")
        assert tracemalloc.get_traced_memory()[1] < 4 * len(body)
    finally:
        tracemalloc.stop()
