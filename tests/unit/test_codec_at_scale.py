"""Frames as large as may be sent, made to be hard to read: refused for what is wrong with them, no worse."""

from __future__ import annotations

import pytest

from midstream.protocol import JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL, Start
from realtime.codec import Codec
from realtime.config import Options
from realtime.refusal import Refusal

MOST = Options().max_message_bytes
START = '{"type":"start","request_id":"a","prompt":"x"'


def filled(begin: str, part: str, end: str = "", between: str = "") -> str:
    """A message of nearly the most bytes that are allowed."""
    count = (MOST - len(begin) - len(end)) // len(part + between)
    return begin + between.join([part] * count) + end


@pytest.mark.parametrize(
    ("message", "said"),
    [
        pytest.param(filled("", "["), "nested too deeply", id="lists in lists"),
        pytest.param(filled("", '{"a":'), "nested too deeply", id="objects in objects"),
        pytest.param(filled(START + ',"x":', "["), "nested too deeply", id="depth in an unknown field"),
        pytest.param(
            filled(START + ',"priority":', "9", "}"), "out of range", id="a number of a million digits"
        ),
        pytest.param(filled(START + ',"params":{"stop":[', '"a"', "]}}", ","), "params.stop", id="stops"),
        pytest.param(
            START + ',"params":{"logit_bias":{' + ",".join(f'"{n}":1' for n in range(80_000)) + "}}}",
            "logit_bias",
            id="biases",
        ),
        pytest.param(filled('{"type":"start","request_id":"', "a", '"}'), "request_id", id="a long id"),
    ],
)
def test_json_that_is_hard_to_read(message: str, said: str) -> None:
    codec = Codec(JSON_SUBPROTOCOL)
    with pytest.raises(Refusal, match=said):
        codec.decode(message)
    codec.ids_of(message)


@pytest.mark.parametrize(
    "message",
    [
        pytest.param(b"\x91" * MOST, id="lists in lists"),
        pytest.param(b"\x81\xa1a" * (MOST // 3), id="maps in maps"),
        pytest.param(b"\xdd\xff\xff\xff\xff" + bytes(MOST - 5), id="a list that claims four billion items"),
        pytest.param(b"\xdf\xff\xff\xff\xff" + bytes(MOST - 5), id="a map that claims four billion keys"),
        pytest.param(b"\xc6\xff\xff\xff\xff" + bytes(MOST - 5), id="bytes that claim four gigabytes"),
    ],
)
def test_messagepack_that_is_hard_to_read(message: bytes) -> None:
    codec = Codec(MSGPACK_SUBPROTOCOL)
    with pytest.raises(Refusal, match="not valid MessagePack"):
        codec.decode(message)
    codec.ids_of(message)


def test_a_hundred_thousand_unknown_keys_are_ignored_like_one() -> None:
    keys = ",".join(f'"k{n}":1' for n in range(80_000))
    frame = Codec(JSON_SUBPROTOCOL).decode(f"{START},{keys}}}")
    assert isinstance(frame, Start)
