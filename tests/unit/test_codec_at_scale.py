"""Frames as large as may be sent, made to be hard to read: refused for what is wrong with them, no worse."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator
from typing import Any, get_args

import msgspec
import pytest
from msgspec import inspect

from midstream.protocol import (
    JSON_SUBPROTOCOL,
    MSGPACK_SUBPROTOCOL,
    Adjust,
    Amend,
    ClientFrame,
    Inject,
    Params,
    Start,
)
from realtime.codec import Codec
from realtime.config import Options
from realtime.hub.frame_tokenizing import TOOLS_LIMIT, tools_length
from realtime.refusal import Refusal
from realtime.untyped import MOST_PASSED, MOST_VALUES, quick_float

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
        pytest.param(filled(START + ',"params":{"stop":[', '"a"', "]}}", ","), "values", id="stops"),
        pytest.param(
            START + ',"params":{"logit_bias":{' + ",".join(f'"{n}":1' for n in range(20_000)) + "}}}",
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
        pytest.param(b"\xdf\xff\xff\xff\xff" + bytes(MOST - 5), "no string", id="a map of four billion keys"),
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
    message = msgspec.msgpack.encode(said | {"junk": [[]] * 80_000})
    codec = Codec(MSGPACK_SUBPROTOCOL)
    tracemalloc.start()
    try:
        frame = codec.decode(message)
        assert frame == Adjust(request_id="a", params=Params(logit_bias={1: 1.0, 2: 2.0}))
        assert tracemalloc.get_traced_memory()[1] < MOST
    finally:
        tracemalloc.stop()


def test_more_biases_with_keys_that_are_text_than_there_may_be_are_not_looked_at() -> None:
    biases = {str(n): 1.0 for n in range(30_000)}
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
    """Twenty thousand keys would take the event loop ten milliseconds, and once more for the names."""
    keys = ",".join(f'"k{n}":1' for n in range(20_000))
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


@pytest.mark.parametrize("subprotocol", [JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL])
@pytest.mark.parametrize("frame", [{"type": "start", "request_id": 1}, {"type": "nothing"}])
def test_what_was_refused_does_not_wait_until_garbage_is_looked_for(
    subprotocol: str, frame: dict[str, Any]
) -> None:
    """That is a hundred frames later, of a MiB each and more."""
    codec = Codec(subprotocol)
    said = frame | {"prompt": "a" * 1_000_000}
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        data = msgspec.json.encode(said).decode() if codec.text else msgspec.msgpack.encode(said)
        with pytest.raises(Refusal) as refused:
            codec.decode(data)
        del data, refused
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
        gc.enable()


def test_twenty_thousand_unknown_keys_are_ignored_like_one() -> None:
    keys = ",".join(f'"k{n}":1' for n in range(20_000))
    frame = Codec(JSON_SUBPROTOCOL).decode(f"{START},{keys}}}")
    assert isinstance(frame, Start)


EMPTY: list[Any] = [[]] * (MOST // 4)
FUNCTION = {"name": "a", "parameters": {"enum": EMPTY}}
OF_NO_TYPE: dict[str, dict[str, Any]] = {
    "arguments": {"type": "amend", "request_id": "a", "call_id": "b", "arguments": {"q": EMPTY}},
    "a schema": {
        "type": "adjust",
        "request_id": "a",
        "params": {"grammar": {"json_schema": {"enum": EMPTY}}},
    },
    "arguments beside what is no past": {
        "type": "amend",
        "request_id": "a",
        "call_id": "b",
        "arguments": {"q": EMPTY},
        "past": 5,
    },
    "tools": {
        "type": "start",
        "request_id": "a",
        "messages": [{"role": "user", "content": "x"}],
        "tools": [{"function": FUNCTION}],
    },
    "a schema in a past": {
        "type": "start",
        "request_id": "a",
        "prompt": "x",
        "past": {
            "tokens": [1] * 1000,
            "steering": [
                {"type": "adjust", "index": 1, "params": {"grammar": {"json_schema": {"enum": EMPTY}}}}
            ],
        },
    },
}


@pytest.mark.parametrize("subprotocol", [JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL])
@pytest.mark.parametrize("frame", OF_NO_TYPE.values(), ids=OF_NO_TYPE)
def test_what_may_be_any_json_is_counted_before_it_is_made(subprotocol: str, frame: dict[str, Any]) -> None:
    """A megabyte of empty lists took 335 ms, and a schema of them as long again to be measured."""
    codec = Codec(subprotocol)
    message = msgspec.json.encode(frame).decode() if codec.text else msgspec.msgpack.encode(frame)
    tracemalloc.start()
    try:
        with pytest.raises(Refusal, match="values"):
            codec.decode(message)
        assert tracemalloc.get_traced_memory()[1] < 3 * MOST
        assert codec.ids_of(message)[0] == "a"
    finally:
        tracemalloc.stop()


def test_what_is_there_twice_is_counted_twice() -> None:
    frame = f'{{"type":"inject","request_id":"a","text":{[[]] * 100_000},"text":"a"}}'
    with pytest.raises(Refusal, match="values"):
        Codec(JSON_SUBPROTOCOL).decode(frame)


@pytest.mark.parametrize("subprotocol", [JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL])
@pytest.mark.parametrize(
    "said",
    [
        {"prompt": "a,[{" * (MOST // 5)},
        {"prompt": "é" * (MOST // 3)},
        {"prompt": [65535] * (MOST // 7)},
        {"messages": [{"role": "user", "content": "{[,é" * 100}] * 2000},
        {"prompt": "x", "past": {"tokens": [300] * (MOST // 7)}},
        {"prompt": "x", "past": None},
    ],
    ids=["text", "text of two bytes", "tokens", "messages", "a past", "no past"],
)
def test_text_and_tokens_may_be_as_long_as_a_message(subprotocol: str, said: dict[str, Any]) -> None:
    codec = Codec(subprotocol)
    frame = {"type": "start", "request_id": "a"} | said
    data = msgspec.json.encode(frame).decode() if codec.text else msgspec.msgpack.encode(frame)
    assert isinstance(codec.decode(data), Start)


@pytest.mark.parametrize("part", [[], {}, "", 1, 1.5, -1e16, "é,[", {"a": [1]}], ids=str)
def test_no_tools_are_refused_that_are_short_enough(part: Any) -> None:
    assert MOST_VALUES == TOOLS_LIMIT
    parts = [part] * ((TOOLS_LIMIT - 100) // len(msgspec.json.encode([part, part])[2:]))
    frame: dict[str, Any] = {
        "type": "start",
        "request_id": "a",
        "tools": [{"function": {"name": "a", "parameters": {"enum": parts}}}],
    }
    for subprotocol in (JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL):
        codec = Codec(subprotocol)
        data = msgspec.json.encode(frame).decode() if codec.text else msgspec.msgpack.encode(frame)
        said = codec.decode(data)
        assert isinstance(said, Start)
        assert tools_length(said.tools or []) <= TOOLS_LIMIT


@pytest.mark.parametrize("subprotocol", [JSON_SUBPROTOCOL, MSGPACK_SUBPROTOCOL])
@pytest.mark.parametrize(
    ("said", "field"),
    [
        (lambda word: {"on_cold": word}, "on_cold"),
        (lambda word: {"past": {"tokens": [], "steering": [{"type": word}]}}, "past.steering[0].type"),
        (lambda word: {"params": {"guards": [{"name": "a", "do": word}]}}, "params.guards[0].do"),
    ],
)
@pytest.mark.parametrize("deep", [1, 200_000])
def test_a_word_that_names_a_field_is_not_taken_for_where_it_stands(
    said: Any, field: str, deep: int, subprotocol: str
) -> None:
    codec = Codec(subprotocol)
    frame = {"type": "start", "request_id": "a", "prompt": "x"} | said(f" - at `${'.params' * deep}`")
    packed = msgspec.msgpack.encode(frame) if not codec.text else msgspec.json.encode(frame).decode()
    with pytest.raises(Refusal) as refused:
        codec.decode(packed)
    assert refused.value.message.startswith(f"`{field}` of the start frame must be ")
    assert len(refused.value.message) < 200


def test_what_an_object_may_not_have_is_said_in_short() -> None:
    frame = {
        "type": "start",
        "request_id": "a",
        "prompt": "x",
        "params": {"grammar": {" - at `$.a" * 9999: 1}},
    }
    with pytest.raises(Refusal) as refused:
        Codec(JSON_SUBPROTOCOL).decode(msgspec.json.encode(frame).decode())
    assert "unknown field" in refused.value.message
    assert refused.value.message.endswith("in `params.grammar`.")
    assert len(refused.value.message) < 400


def test_prompts_are_not_looked_into_for_keys() -> None:
    frame = {"type": "start", "request_id": "a", "prompt": [0xDF00 + at % 256 for at in range(150_000)]}
    read = Codec(MSGPACK_SUBPROTOCOL).decode(msgspec.msgpack.encode(frame))
    assert isinstance(read, Start)
    past = {"tokens": frame.pop("prompt"), "steering": []}
    read = Codec(MSGPACK_SUBPROTOCOL).decode(msgspec.msgpack.encode(frame | {"prompt": "x", "past": past}))
    assert isinstance(read, Start)


def test_keys_are_looked_at_of_what_is_said_twice() -> None:
    pairs: list[tuple[str, Any]] = [("type", "amend"), ("call_id", "c"), ("request_id", "a")]
    pairs += [("arguments", {"x": dict.fromkeys(range(2000), 1)}), ("arguments", {})]
    packed = bytes([0x80 + len(pairs)]) + b"".join(
        msgspec.msgpack.encode(said) for pair in pairs for said in pair
    )
    with pytest.raises(Refusal, match="no string"):
        Codec(MSGPACK_SUBPROTOCOL).decode(packed)


@pytest.mark.parametrize("end", [b"", b"\x05"], ids=["cut off", "a key that is no string"])
def test_what_else_is_wrong_is_told_where_keys_are_looked_at(end: bytes) -> None:
    frame = {"type": "amend", "request_id": "a", "call_id": "c", "arguments": {"a": "\u07df" * 2000}}
    packed = bytearray(msgspec.msgpack.encode(frame))
    packed[0] += 1  # a field more
    with pytest.raises(Refusal, match="ends before it is whole" if not end else "string|object|key"):
        Codec(MSGPACK_SUBPROTOCOL).decode(bytes(packed) + end + end)


MANY = range(2000)
BIASES = msgspec.json.encode({"params": {"logit_bias": dict.fromkeys(MANY, 1)}})[1:-1].decode()


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("", '{"type":"adjust","request_id":"a",' + BIASES + "}"),
        ("", '{"type":"adjust","request_id":"a",' + BIASES + ',"params":{"top_k":1}}'),
        ("", START + "," + BIASES + "}"),
        (
            "past.steering[0].",
            START + ',"past":{"steering":[{"type":"adjust","index":1,' + BIASES + '}],"tokens":[1]}}',
        ),
    ],
    ids=["adjusted", "said twice", "started", "past"],
)
@pytest.mark.parametrize("encoded", [str, str.encode])
def test_no_dictionary_is_made_of_many_numbers(
    path: str, message: str, encoded: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec = Codec(JSON_SUBPROTOCOL)
    monkeypatch.setattr(codec, "_decoder", None)
    with pytest.raises(Refusal) as refused:
        codec.decode(encoded(message))
    assert f"`{path}params.logit_bias`" in refused.value.message
    assert "at most 1024 entries" in refused.value.message


@pytest.mark.parametrize("kind", [int, float, lambda number: (number,)])
@pytest.mark.parametrize("nested", [lambda keys: keys, lambda keys: {"x": [None, {"y": keys}]}])
def test_many_keys_are_strings(nested: Any, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    codec = Codec(MSGPACK_SUBPROTOCOL)
    frame = {"type": "amend", "request_id": "a", "call_id": "c", "tokens": [*range(5000)]}
    arguments = nested({str(number): None for number in MANY})
    read = codec.decode(msgspec.msgpack.encode(frame | {"arguments": arguments}))
    assert isinstance(read, Amend)
    assert read.arguments == arguments
    monkeypatch.setattr(codec, "_decoder", None)
    arguments = nested({kind(number): None for number in MANY})
    with pytest.raises(Refusal, match="more than 1024 keys of which one is no string"):
        codec.decode(msgspec.msgpack.encode(frame | {"arguments": arguments}))


def test_what_may_have_many_keys_is_looked_at_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not each field of it as far as a frame may go."""
    values = {str(number): [0] * 40 for number in range(1025)}
    steering = [{"type": "adjust", "index": 0, "params": {"grammar": {"json_schema": values}}}]
    frame = {"type": "start", "request_id": "a", "params": {"grammar": {"json_schema": values}}}
    codec = Codec(MSGPACK_SUBPROTOCOL)
    assert isinstance(codec.decode(msgspec.msgpack.encode(frame)), Start)
    monkeypatch.setattr(codec, "_decoder", None)
    past = {"tokens": [], "steering": steering}
    with pytest.raises(Refusal, match=f"The frame has more than {MOST_PASSED} values, and an object of more"):
        codec.decode(msgspec.msgpack.encode(frame | {"past": past}))


EDGES = "1e300,-1.5E+308,5e-324,2.2250738585072011e-308,0.1,1,1e5"


def test_numbers_without_a_type_are_read_by_what_is_quick_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes 15 microseconds for each of the largest and the smallest: two seconds for a frame."""
    read = list[str]()

    def quick(written: str) -> float:
        read.append(written)
        return quick_float(written)

    monkeypatch.setattr("realtime.codec.quick_float", quick)
    codec, begun = (
        Codec(JSON_SUBPROTOCOL),
        '{"type":"amend","request_id":"a","call_id":"b","arguments":{"a":[',
    )
    frame = codec.decode(begun + EDGES + "]}}")
    assert isinstance(frame, Amend)
    assert frame.arguments == {"a": [1e300, -1.5e308, 5e-324, 2.2250738585072011e-308, 0.1, 1, 1e5]}
    assert len(read) == 6
    for beyond in ("1e400", "-1e999999999999"):
        with pytest.raises(Refusal, match="out of range"):
            codec.decode(begun + beyond + "]}}")


@pytest.mark.parametrize("number", ["1.5", "1e5", "-1E-300"])
def test_numbers_without_a_type_are_fewer_where_they_take_long_to_read(number: str) -> None:
    begun = '{"type":"amend","request_id":"a","call_id":"b","arguments":{"a":['
    codec = Codec(JSON_SUBPROTOCOL)
    assert isinstance(codec.decode(begun + ",".join(["15"] * 100_000) + "]}}"), Amend)
    assert isinstance(codec.decode(begun + ",".join([number] * 32_000) + "]}}"), Amend)
    with pytest.raises(Refusal, match=f"The frame has .* values, or nearly, .*; it may have {MOST_VALUES}"):
        codec.decode(begun + ",".join([number] * 33_000) + "]}}")
    text = '{"type":"inject","request_id":"a","text":"' + ",".join([number] * 100_000) + '"}'
    assert isinstance(codec.decode(text), Inject)


@pytest.mark.parametrize("number", ["5e-324", "-1E-0310", "0.5"])
def test_the_steering_of_a_past_has_few_numbers_that_take_long_to_read(number: str) -> None:
    biases = ",".join(f'"{token}":{number}' for token in range(500))
    step = f'{{"type":"adjust","index":0,"params":{{"logit_bias":{{{biases}}}}}}}'
    message = f'{START},"past":{{"tokens":[],"steering":[{",".join([step] * 3)}]}}}}'
    codec = Codec(JSON_SUBPROTOCOL)
    if number == "0.5":
        assert isinstance(codec.decode(message), Start)
        return
    with pytest.raises(Refusal, match="has 1500 numbers with exponents of three digits or more"):
        codec.decode(message)


def test_a_past_that_is_none_is_told_as_ever() -> None:
    for past, said in (
        ("[" + "1," * 20_000 + "1]", "`past`"),
        ('{"tokens":7}' + " " * 20_000, "`past.tokens`"),
    ):
        with pytest.raises(Refusal, match=said):
            Codec(JSON_SUBPROTOCOL).decode(f'{START},"past":{past}}}')


@pytest.mark.parametrize("kind", get_args(ClientFrame))
def test_no_list_is_of_texts_that_are_compared_with_an_expression(kind: type[msgspec.Struct]) -> None:
    """All of them are, before they are counted: a third of a microsecond each, of 131,072 in a frame."""
    lists = [found for found in within(inspect.type_info(kind)) if isinstance(found, inspect.ListType)]
    assert [found for found in lists if getattr(found.item_type, "pattern", None) is not None] == []


def within(kind: inspect.Type) -> Iterator[inspect.Type]:
    """All types of which its fields and theirs are."""
    seen, left = set[Any](), [kind]
    while left:
        found = left.pop()
        yield found
        match found:
            case inspect.UnionType(types=types):
                left += types
            case inspect.ListType(item_type=item):
                left.append(item)
            case inspect.DictType(value_type=value):
                left.append(value)
            case inspect.StructType(cls=cls, fields=fields) if cls not in seen:
                seen.add(cls)
                left += [field.type for field in fields]
