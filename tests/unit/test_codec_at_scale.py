"""Frames as large as may be sent, made to be hard to read: refused for what is wrong with them, no worse."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest

from midstream.protocol import JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL, Adjust, Params, Start
from realtime.codec import Codec
from realtime.config import Options
from realtime.refusal import Refusal

MOST = Options().max_message_bytes
INVALID, OBJECT = "not valid MessagePack", "one MessagePack object"
START = '{"type":"start","request_id":"a","prompt":"x"'


def filled(begin: str, part: str, end: str = "", between: str = "") -> str:
    """A message of nearly the most bytes that are allowed."""
    count = (MOST - len(begin) - len(end)) // len(part + between)
    return begin + between.join([part] * count) + end


@pytest.mark.parametrize(
    ("message", "said"),
    [
        pytest.param(filled("", "["), "one JSON object", id="lists in lists"),
        pytest.param(filled("", '{"a":'), "nested too deeply", id="objects in objects"),
        pytest.param(filled(START + ',"x":', "["), "nested too deeply", id="depth in an unknown field"),
        pytest.param(
            filled(START + ',"priority":', "9", "}"), "from -8 to 8", id="a number of a million digits"
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
    ("message", "said"),
    [
        pytest.param(b"\x91" * MOST, OBJECT, id="lists in lists"),
        pytest.param(b"\x81\xa1a" * (MOST // 3), INVALID, id="maps in maps"),
        pytest.param(b"\xdd\xff\xff\xff\xff" + bytes(MOST - 5), OBJECT, id="a list of four billion items"),
        pytest.param(b"\xdf\xff\xff\xff\xff" + bytes(MOST - 5), OBJECT, id="a map of four billion keys"),
        pytest.param(b"\xc6\xff\xff\xff\xff" + bytes(MOST - 5), INVALID, id="bytes, four gigabytes of them"),
    ],
)
def test_messagepack_that_is_hard_to_read(message: bytes, said: str) -> None:
    codec = Codec(MSGPACK_SUBPROTOCOL)
    with pytest.raises(Refusal, match=said):
        codec.decode(message)
    codec.ids_of(message)


def test_nonsense_is_refused_without_making_objects_of_it() -> None:
    """Which takes fifty milliseconds, and twenty times its size."""
    message = filled('{"type":"start","request_id":"a","prompt":[', "[]", "]}", ",")
    codec = Codec(JSON_SUBPROTOCOL)
    tracemalloc.start()
    try:
        with pytest.raises(Refusal, match="prompt"):
            codec.decode(message)
        assert codec.ids_of(message) == ("a", None)
        assert tracemalloc.get_traced_memory()[1] < 5 * MOST
    finally:
        tracemalloc.stop()


def test_a_key_that_is_text_has_nothing_else_made_into_objects() -> None:
    said = {"type": "adjust", "request_id": "a", "params": {"logit_bias": {"1": 1.0, 2: 2}, "x": [[]]}}
    message = msgspec.msgpack.encode(said | {"junk": [[]] * (MOST - 100)})
    codec = Codec(MSGPACK_SUBPROTOCOL)
    tracemalloc.start()
    try:
        frame = codec.decode(message)
        assert frame == Adjust(request_id="a", params=Params(logit_bias={1: 1.0, 2: 2.0}))
        assert tracemalloc.get_traced_memory()[1] < 5 * MOST
    finally:
        tracemalloc.stop()


def test_more_biases_with_keys_that_are_text_than_there_may_be_are_not_looked_at() -> None:
    biases = {str(n): 1.0 for n in range(MOST // 20)}
    message = msgspec.msgpack.encode(
        {"type": "adjust", "request_id": "a", "params": {"logit_bias": biases}, "ref": "r"}
    )
    codec = Codec(MSGPACK_SUBPROTOCOL)
    tracemalloc.start()
    try:
        with pytest.raises(Refusal, match="at most 1024 entries"):
            codec.decode(message)
        assert tracemalloc.get_traced_memory()[1] < 2 * MOST
    finally:
        tracemalloc.stop()


def test_of_a_frame_that_is_refused_nothing_but_its_names_is_kept() -> None:
    """A hundred thousand keys would take the event loop forty milliseconds, and once more for the names."""
    keys = ",".join(f'"k{n}":1' for n in range(80_000))
    message = f'{{"type":"rewind","request_id":"a","ref":"r",{keys}}}'
    codec = Codec(JSON_SUBPROTOCOL)
    tracemalloc.start()
    try:
        with pytest.raises(Refusal, match="`to`"):
            codec.decode(message)
        assert codec.ids_of(message) == ("a", "r")
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def test_a_hundred_thousand_unknown_keys_are_ignored_like_one() -> None:
    keys = ",".join(f'"k{n}":1' for n in range(80_000))
    frame = Codec(JSON_SUBPROTOCOL).decode(f"{START},{keys}}}")
    assert isinstance(frame, Start)
