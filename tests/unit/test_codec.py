"""What a peer's bytes become: a frame, or a sentence that names the field and all of what it may be."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from midstream import protocol
from midstream.protocol import (
    JSON_SUBPROTOCOL,
    MAX_PAST_CALLS,
    MSGPACK_SUBPROTOCOL,
    ClientFrame,
    Credit,
    Message,
    Params,
    Past,
    PastAdjust,
    PastInject,
)
from realtime.codec import Codec
from realtime.refusal import Refusal

JSON = Codec(JSON_SUBPROTOCOL)
MSGPACK = Codec(MSGPACK_SUBPROTOCOL)
CODECS = pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=["json", "msgpack"])
MOST = 2**31 - 1
FRAMES: list[ClientFrame] = [
    protocol.Start(
        request_id="a",
        messages=[Message(role="user", content="Hi")],
        params=Params(temperature=0.5, logit_bias={5: 1.0}, stop=["x"]),
        credit=Credit(limit=3),
        ref="r",
    ),
    protocol.Grant(request_id="a", limit=5),
    protocol.Pause(request_id="a", kv="release"),
    protocol.Resume(request_id="a"),
    protocol.Adjust(request_id="a", params=Params(top_p=0.5), at=3),
    protocol.Inject(request_id="a", tokens=[1, 2]),
    protocol.Rewind(request_id="a", to=0),
    protocol.Cancel(request_id="é🙂"),
    protocol.Attach(request_id="a", after=-1),
    protocol.Ping(ref="r"),
]


def packed(codec: Codec, said: Any) -> str | bytes:
    return json.dumps(said) if codec.text else msgspec.msgpack.encode(said)


def refused(codec: Codec, data: bytes | str) -> Refusal:
    with pytest.raises(Refusal) as caught:
        codec.decode(data)
    return caught.value


def start(**fields: Any) -> dict[str, Any]:
    return {"type": "start", "request_id": "a", "prompt": "x"} | fields


@CODECS
@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: type(frame).__name__)
def test_every_frame_comes_through(codec: Codec, frame: ClientFrame) -> None:
    said = msgspec.to_builtins(frame, str_keys=codec.text)
    assert codec.decode(packed(codec, said)) == frame


@pytest.mark.parametrize("keys_are_strings", [False, True])
def test_biases_have_keys_of_either_kind_in_messagepack_wherever_they_stand(keys_are_strings: bool) -> None:
    biased = Params(logit_bias={5: 1.0, 6: -1.0})
    steering: list[PastAdjust | PastInject] = [
        PastInject(index=0, text="so"),
        PastAdjust(index=1, params=biased),
    ]
    frames: list[ClientFrame] = [
        protocol.Adjust(request_id="a", params=biased),
        protocol.Start(request_id="a", prompt="x", past=Past(tokens=[1, 2], steering=steering)),
        protocol.Start(request_id="a", prompt="x", params=biased, past=Past(steering=steering)),
        protocol.Start(request_id="a", prompt="x", params=biased, past=Past(tokens=[1])),
    ]
    for frame in frames:
        said = msgspec.to_builtins(frame, str_keys=keys_are_strings)
        assert MSGPACK.decode(packed(MSGPACK, said)) == frame
    for bad in ({"five": 1}, {"5": 101}, {str(2**64): 1}, 5):
        said = start(past={"steering": [{"type": "adjust", "index": 0, "params": {"logit_bias": bad}}]})
        assert "`past.steering[0].params.logit_bias" in refused(MSGPACK, packed(MSGPACK, said)).message
    nothing = start(past=None, params={"logit_bias": {"5": 1}})
    decoded = MSGPACK.decode(packed(MSGPACK, nothing))
    assert isinstance(decoded, protocol.Start)
    assert decoded.params.logit_bias == {5: 1}


@CODECS
@pytest.mark.parametrize(
    ("said", "field"),
    [
        ({"type": "inject", "request_id": "a", "tokens": []}, "`tokens` of the inject frame"),
        (
            start(past={"steering": [{"type": "inject", "index": 0, "tokens": []}]}),
            "`past.steering[0].tokens` of the start frame",
        ),
    ],
)
def test_nothing_is_put_in_by_no_tokens(codec: Codec, said: dict[str, Any], field: str) -> None:
    """Who keeps a past for other servers looks for each of its injections in the output."""
    assert refused(codec, packed(codec, said)).message.startswith(f"{field} must be a list of at least 1")


@CODECS
def test_the_calls_of_a_past_are_bounded(codec: Codec) -> None:
    past = {"tokens": [1], "call_ids": ["c"] * (MAX_PAST_CALLS + 1)}
    message = refused(codec, packed(codec, start(past=past))).message
    assert message.startswith("`past.call_ids` of the start frame must be a list of at most 4096")


def test_a_field_that_stands_twice_is_the_last_and_right_each_time() -> None:
    codec = Codec(None)
    twice = '{"type":"pause","request_id":"a","kv":%s,"kv":"release"}'
    assert codec.decode(twice % '"hold"') == protocol.Pause(request_id="a", kv="release")
    with pytest.raises(Refusal, match="`kv` of the pause frame"):
        codec.decode(twice % "1")


@CODECS
def test_unknown_fields_are_ignored(codec: Codec) -> None:
    assert codec.decode(packed(codec, {"type": "ping", "new": {"a": [1]}})) == protocol.Ping()


def test_json_text_and_bytes_are_the_same() -> None:
    assert JSON.decode('{"type":"ping"}') == JSON.decode(b'{"type":"ping"}') == protocol.Ping()


@CODECS
@pytest.mark.parametrize(
    ("field", "values", "expected"),
    [
        ("temperature", [-0.1, 2.1, "1", None, [], True], "a number from 0 to 2"),
        ("top_p", [0, 1.1], "a number above 0 to 1"),
        ("top_k", [-1, 1.5, 2**31], f"an integer from 0 to {MOST}"),
        ("min_p", [-1, 2], "a number from 0 to 1"),
        ("max_tokens", [0, "5", 2**31], f"an integer from 1 to {MOST}"),
        ("seed", [2**63, 1.5], f"an integer from {-(2**63)} to {2**63 - 1}"),
        ("repetition_penalty", [0, 11], "a number above 0 to 10"),
        ("presence_penalty", [-3, 3], "a number from -2 to 2"),
        ("frequency_penalty", [-3, 3], "a number from -2 to 2"),
        ("logprobs", [-1, 21], "an integer from 0 to 20 or null"),
        ("ignore_eos", [1, "true"], "true or false"),
        ("min_tokens", [-1], f"an integer from 0 to {MOST}"),
        ("stop", [5, ["x"] * 17, "x" * 257], "a string of 1 to 256 characters or a list of at most 16 items"),
        ("logit_bias", [[1], 5], "token ids to a number from -100 to 100"),
    ],
)
def test_a_parameter_out_of_range_is_named_with_its_range(
    codec: Codec, field: str, values: list[Any], expected: str
) -> None:
    for value in values:
        refusal = refused(codec, packed(codec, start(params={field: value})))
        assert refusal.code == "invalid_params"
        assert f"`params.{field}" in refusal.message
        assert expected in refusal.message


@CODECS
def test_a_field_that_is_none_is_said_again_only_as_long_as_any_is(codec: Codec) -> None:
    refusal = refused(codec, packed(codec, start(params={"grammar": {"regex": "a", "g" * 100_000: 1}})))
    assert refusal.message.endswith("g… of the start frame in `params.grammar`.")
    assert len(refusal.message) < 200


@CODECS
@pytest.mark.parametrize("bad", [101, -101, "1", None])
def test_a_bias_out_of_range_is_named_with_its_range(codec: Codec, bad: Any) -> None:
    refusal = refused(codec, packed(codec, start(params={"logit_bias": {"5": bad}})))
    assert refusal.code == "invalid_params"
    assert "`params.logit_bias" in refusal.message
    assert "a number from -100 to 100" in refusal.message


def test_a_bias_of_a_token_beyond_64_bits_is_refused_where_those_cannot_be_said() -> None:
    refusal = refused(MSGPACK, packed(MSGPACK, start(params={"logit_bias": {str(2**64): 1}})))
    assert refusal.code == "invalid_params"
    assert "`params.logit_bias" in refusal.message


@CODECS
@pytest.mark.parametrize(
    ("said", "says"),
    [
        (
            {"type": "credit", "request_id": "a", "limit": -1},
            f"`limit` of the credit frame must be an integer from 0 to {MOST}",
        ),
        ({"type": "credit", "request_id": "a"}, "Missing the field `limit` of the credit frame"),
        ({"type": "pause"}, "Missing the field `request_id` of the pause frame"),
        (
            {"type": "pause", "request_id": ""},
            "`request_id` of the pause frame must be a string of 1 to 128 characters",
        ),
        (
            {"type": "pause", "request_id": "a", "kv": "drop"},
            '`kv` of the pause frame must be one of "hold", "release"',
        ),
        (
            {"type": "inject", "request_id": "a", "tokens": []},
            "`tokens` of the inject frame must be a list of at least 1",
        ),
        ({"type": "attach", "request_id": "a", "after": -2}, f"an integer from -1 to {MOST}"),
        (
            {"type": "ping", "ref": "x" * 65},
            "`ref` of the ping frame must be a string of at most 64 characters",
        ),
        (start(prompt=[1, -2]), f"`prompt[1]` of the start frame must be an integer from 0 to {MOST}"),
        (
            start(credit={"prefetch": 4097}),
            "`credit.prefetch` of the start frame must be an integer from 0 to 4096",
        ),
        (start(timeout_ms=0), "an integer from 1 to 86400000"),
        (start(priority=9), "`priority` of the start frame must be an integer from -8 to 8"),
        (start(stream_interval=0), "an integer from 1 to 4096"),
        (start(on_disconnect="x"), 'one of "cancel", "continue", "pause"'),
        (start(messages=[]), "`messages` of the start frame must be a list of 1 to 4096 items"),
        (
            start(messages=[{"content": "Hi"}]),
            "Missing the field `role` of the start frame in `messages[0]`",
        ),
        (
            start(tools=[{"type": "function", "function": {"name": "a b"}}]),
            "`tools[0].function.name` of the start frame must be a string of 1 to 64 characters",
        ),
        (
            start(tools=[{"function": {"name": "a", "parameters": []}}]),
            "`tools[0].function.parameters` of the start frame must be an object or null",
        ),
        (
            start(tool_choice="sometimes"),
            '`tool_choice` of the start frame must be one of "auto", "none", "required" or an object',
        ),
        (
            start(messages=[{"role": "user", "content": [{"type": "image"}]}]),
            '`messages[0].content[0].type` of the start frame must be one of "text"',
        ),
        ({"type": "sing"}, 'Unknown frame type "sing"; known are adjust, amend, approve'),
        ({"type": "s" * 100_000}, f'Unknown frame type "{"s" * 128}…"; known are adjust'),
        ({"type": 5}, "Unknown frame type (no string)"),
        ({}, "Unknown frame type (none given)"),
        ([], "object with a `type`"),
        (5, "object with a `type`"),
    ],
)
def test_a_wrong_frame_is_told_what_is_wrong(codec: Codec, said: Any, says: str) -> None:
    refusal = refused(codec, packed(codec, said))
    assert refusal.code == "invalid_frame"
    assert says in refusal.message


@pytest.mark.parametrize(
    ("codec", "data", "says"),
    [
        (JSON, b"", "not valid JSON"),
        (JSON, b'{"type":"ping"} x', "not valid JSON: the mistake is at byte"),
        (JSON, b'{"type":"ping","ref":"\xff"}', "not valid JSON"),
        (JSON, '{"type":"ping","ref":"\ud800"}', "not valid JSON"),
        (JSON, b'{"type":"ping","new":' + b"[" * 100_000, "nested too deeply"),
        (JSON, b'{"type":"start","request_id":"a","prompt":' + b"[" * 100_000, "nested too deeply"),
        (JSON, rb'{"type":"ping","ref":"a\ud83d"}', r"half a character, \ud83d, without its other half"),
        (JSON, rb'{"type":"ping","ref":"\ud83d\ude00\uDE00"}', r"half a character, \uDE00, without"),
        (JSON, rb'{"type":"ping","ref":"\ud83d\ude00\\ud83d', "ends before it is whole"),
        (MSGPACK, b"", "not valid MessagePack"),
        (MSGPACK, b"\xc1", "not valid MessagePack: the mistake is at byte 0"),
        (MSGPACK, b"\x82\xa4type\xa4ping\xa3ref\xa2\xff\xfe", "not valid MessagePack"),
        (MSGPACK, b"\x82\xa4type\x05\xa3ref", "not valid MessagePack"),
    ],
)
def test_what_cannot_be_read_is_said_to_be_so(codec: Codec, data: bytes | str, says: str) -> None:
    refusal = refused(codec, data)
    assert refusal.code == "invalid_frame"
    assert says in refusal.message
    assert codec.ids_of(data) == (None, None)


@pytest.mark.parametrize(
    ("codec", "data", "says"),
    [
        (JSON, b"[" * 100_000, "one JSON object with a `type`"),
        (MSGPACK, b"\x91" * 100_000, "one MessagePack object with a `type`"),
        (MSGPACK, b"\x82\xa4type\x05\xa3ref\xa2\xff\xfe", "Unknown frame type (no string)"),
    ],
)
def test_what_is_wrong_at_the_top_is_said_of_what_could_not_be_read_to_the_end(
    codec: Codec, data: bytes, says: str
) -> None:
    refusal = refused(codec, data)
    assert refusal.code == "invalid_frame"
    assert says in refusal.message
    assert codec.ids_of(data) == (None, None)


@pytest.mark.parametrize("fields", [{}, {"params": None}, {"params": {}}, {"params": {5: 1}}, {5: 1}])
def test_a_key_that_is_no_string_is_a_bias_or_a_mistake(fields: dict[Any, Any]) -> None:
    data = msgspec.msgpack.encode({"type": "adjust", "request_id": "a", 6: 1} | fields)
    assert refused(MSGPACK, data).code == "invalid_frame"


def test_a_number_that_no_computer_knows_is_beyond_its_fields_range() -> None:
    data = json.dumps(start(params={"top_p": 0})).replace("0", "1e999")
    assert "`params.top_p` of the start frame must be a number above 0 to 1" in refused(JSON, data).message
    assert JSON.ids_of(data) == ("a", None)


@pytest.mark.parametrize("field", ["temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"])
def test_no_number_is_in_no_range(field: str) -> None:
    data = msgspec.msgpack.encode(start(params={field: float("nan")}))
    assert refused(MSGPACK, data).code == "invalid_params"


@CODECS
def test_a_refused_frame_is_still_addressed(codec: Codec) -> None:
    assert codec.ids_of(packed(codec, {"request_id": "a", "ref": "r", "type": 5})) == ("a", "r")
    assert codec.ids_of(packed(codec, {"request_id": "x" * 129, "ref": 5})) == (None, None)
    assert codec.ids_of(packed(codec, [])) == (None, None)


# -- anything at all -------------------------------------------------------------------------------

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text() | st.integers(0, 9), inner, max_size=4)
    ),
    max_leaves=12,
)
FIELDS = sorted({name for frame in FRAMES for name in frame.__struct_fields__} | {"type"})
TYPES = st.sampled_from([frame.__struct_config__.tag for frame in FRAMES])


def decodes_or_refuses(codec: Codec, data: bytes | str) -> None:
    """Anything else that it raises fails the test."""
    codec.ids_of(data)
    try:
        said: object = codec.decode(data)
    except Refusal as refusal:
        said = refusal
    assert isinstance(said, ClientFrame) or (isinstance(said, Refusal) and said.status == 400)


@given(st.binary() | st.text())
def test_decoding_any_bytes_raises_nothing_else(data: bytes | str) -> None:
    decodes_or_refuses(JSON, data)
    if isinstance(data, bytes):
        decodes_or_refuses(MSGPACK, data)


@given(TYPES, st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=5))
def test_decoding_wrong_fields_raises_nothing_else(kind: str, fields: dict[str, Any]) -> None:
    decodes_or_refuses(MSGPACK, msgspec.msgpack.encode({"request_id": "a"} | fields | {"type": kind}))
    decodes_or_refuses(JSON, json.dumps({"request_id": "a"} | fields | {"type": kind}, default=repr))


@given(st.sampled_from(FRAMES), st.booleans(), st.data())
def test_decoding_damaged_frames_raises_nothing_else(
    frame: ClientFrame, text: bool, data: st.DataObject
) -> None:
    codec = JSON if text else MSGPACK
    said = msgspec.to_builtins(frame, str_keys=True)
    whole = bytearray(json.dumps(said).encode() if text else msgspec.msgpack.encode(said))
    for _ in range(data.draw(st.integers(1, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    decodes_or_refuses(codec, bytes(whole[: data.draw(st.integers(0, len(whole)))]))
