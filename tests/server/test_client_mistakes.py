"""Every mistake of a peer gets its error and changes nothing: the connection and its other streams go on."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from tests.server.independent_client import Client, client_of
from tests.server.server_process import Served

LONG = {"ignore_eos": True, "temperature": 0}
JSON, MSGPACK = "midstream.v1.json", "midstream.v1.msgpack"


def start(**fields: Any) -> dict[str, Any]:
    return {"type": "start", "request_id": "wrong", "prompt": "Hello"} | fields


def params(**values: Any) -> dict[str, Any]:
    return start(params=values)


def of_other(kind: str, **fields: Any) -> dict[str, Any]:
    """A frame for the stream that runs beside."""
    return {"type": kind, "request_id": "beside", **fields}


STEERING: list[dict[str, Any]] = [
    {"type": "pause"},
    {"type": "resume"},
    {"type": "adjust", "params": {}},
    {"type": "inject", "text": "a"},
    {"type": "rewind", "to": 0},
]
TOO_LATE: list[dict[str, Any]] = [
    {"type": "credit", "limit": 1},
    {"type": "cancel"},
]  # no mistakes behind a final

# A frame, the error's code, and what its sentence must say: the field, and what would be right.
FRAMES: list[tuple[Any, str, list[str]]] = [
    ([], "invalid_frame", ["object"]),
    ("start", "invalid_frame", ["object"]),
    ({}, "invalid_frame", ["type", "start", "cancel", "ping"]),
    ({"type": "begin"}, "invalid_frame", ['"begin"', "start"]),
    ({"type": 7}, "invalid_frame", ["type"]),
    ({"type": "ping", "ref": "r" * 65}, "invalid_frame", ["`ref`", "64"]),
    ({"type": "start", "prompt": "Hello"}, "invalid_frame", ["request_id"]),
    (start(request_id=""), "invalid_frame", ["`request_id`", "1 to 128"]),
    (start(request_id="x" * 129), "invalid_frame", ["`request_id`", "1 to 128"]),
    (start(request_id=5), "invalid_frame", ["`request_id`", "string"]),
    ({"type": "start", "request_id": "wrong"}, "invalid_frame", ["`messages`", "`prompt`"]),
    (start(messages=[{"role": "user", "content": "Hi"}]), "invalid_frame", ["`messages`", "`prompt`"]),
    (start(prompt=""), "invalid_frame", ["empty"]),
    (start(prompt=[]), "invalid_frame", ["empty"]),
    (start(prompt=[464]), "invalid_frame", ["464", "0 to 463"]),
    (start(prompt=None, messages=[]), "invalid_frame", ["`messages`", "1 to 4096"]),
    (start(prompt=None, messages=[{"role": "user"}]), "invalid_frame", ["content"]),
    (start(prompt=None, messages=[{"role": "user", "content": 1}]), "invalid_frame", ["content", "string"]),
    (
        start(prompt=None, messages=[{"role": "user", "content": [{"type": "image"}]}]),
        "invalid_frame",
        ["content"],
    ),
    (start(prompt=[7] * 8192), "context_too_long", ["8192 tokens", "holds 8192"]),
    (start(prompt=[7] * 9000), "context_too_long", ["9000 tokens", "holds 8192"]),
    (start(model="gpt-9"), "unknown_model", ['"gpt-9"', '"toy"']),
    (start(stream_interval=0), "invalid_frame", ["`stream_interval`", "1 to 4096"]),
    (start(priority=9), "invalid_frame", ["`priority`", "-8 to 8"]),
    (start(tools=[{"type": "function"}]), "invalid_frame", ["`function`", "`tools[0]`"]),
    (start(tools=[{"function": {"name": "f"}}]), "invalid_frame", ["`tools`", "`messages`"]),
    (start(tool_choice="required"), "invalid_frame", ["`tool_choice`", "no `tools`"]),
    (start(timeout_ms=0), "invalid_frame", ["`timeout_ms`", "1"]),
    (start(credit={"limit": -1}), "invalid_frame", ["`credit.limit`", "0"]),
    (start(credit={"prefetch": 4097}), "invalid_frame", ["`credit.prefetch`", "0 to 4096"]),
    (start(return_tokens="yes"), "invalid_frame", ["`return_tokens`", "true or false"]),
    (start(on_disconnect="panic"), "invalid_frame", ["`on_disconnect`", '"cancel"']),
    (start(grace_ms=-1), "invalid_frame", ["`grace_ms`", "0"]),
    (start(request_id="beside"), "request_conflict", ['"beside of ', "another id"]),
    (start(request_id="finished"), "request_conflict", ['"finished of ', "another id"]),
    (params(temperature=2.1), "invalid_params", ["`params.temperature`", "0 to 2"]),
    (params(temperature="hot"), "invalid_params", ["`params.temperature`", "0 to 2"]),
    (params(top_p=0), "invalid_params", ["`params.top_p`", "above 0 to 1"]),
    (params(top_k=-1), "invalid_params", ["`params.top_k`", "0"]),
    (params(min_p=1.5), "invalid_params", ["`params.min_p`", "0 to 1"]),
    (params(max_tokens=0), "invalid_params", ["`params.max_tokens`", "1"]),
    (params(max_tokens=1.5), "invalid_params", ["`params.max_tokens`", "integer"]),
    (params(stop=""), "invalid_params", ["`params.stop`", "1 to 256"]),
    (params(stop=["x"] * 17), "invalid_params", ["`params.stop`", "16"]),
    (params(stop=["x" * 257]), "invalid_params", ["`params.stop", "1 to 256"]),
    (params(seed=0.5), "invalid_params", ["`params.seed`", "integer"]),
    (params(repetition_penalty=0), "invalid_params", ["`params.repetition_penalty`", "above 0 to 10"]),
    (params(presence_penalty=-3), "invalid_params", ["`params.presence_penalty`", "-2 to 2"]),
    (params(frequency_penalty=3), "invalid_params", ["`params.frequency_penalty`", "-2 to 2"]),
    (params(logit_bias={"5": 101}), "invalid_params", ["`params.logit_bias", "-100 to 100"]),
    (params(logit_bias={"word": 1}), "invalid_params", ["`params.logit_bias", "token ids"]),
    (params(logit_bias={"464": 1}), "invalid_params", ["`params.logit_bias`", "464", "0 to 463"]),
    (params(logprobs=21), "invalid_params", ["`params.logprobs`", "0 to 20"]),
    (params(ignore_eos=1), "invalid_params", ["`params.ignore_eos`", "true or false"]),
    (params(min_tokens=-1), "invalid_params", ["`params.min_tokens`", "0"]),
    (start(params=[]), "invalid_params", ["`params`", "object"]),
    (of_other("credit"), "invalid_frame", ["limit"]),
    (of_other("credit", limit=-1), "invalid_frame", ["`limit`", "0"]),
    (of_other("pause", kv="keep"), "invalid_frame", ["`kv`", '"hold"', '"release"']),
    (of_other("adjust"), "invalid_frame", ["params"]),
    (of_other("adjust", params={"top_p": 2}), "invalid_params", ["`params.top_p`", "above 0 to 1"]),
    (of_other("adjust", params={"top_p": 1}, at=6), "invalid_params", ["`at` is 6", "0 to 5"]),
    (of_other("adjust", params={"logit_bias": {"999": 1}}), "invalid_params", ["999", "0 to 463"]),
    (of_other("inject"), "invalid_frame", ["`text`", "`messages`", "`tokens`"]),
    (of_other("inject", text="a", tokens=[1]), "invalid_frame", ["`text`", "`messages`", "`tokens`"]),
    (of_other("inject", text=""), "invalid_frame", ["`text`", "empty"]),
    (of_other("inject", tokens=[]), "invalid_frame", ["`tokens`", "at least 1"]),
    (of_other("inject", tokens=[464]), "invalid_frame", ["`tokens`", "464", "0 to 463"]),
    (of_other("inject", tokens=[7] * 8200), "context_too_long", ["8200", "8192"]),
    (of_other("rewind"), "invalid_frame", ["to"]),
    (of_other("rewind", to=6), "invalid_params", ["`to` is 6", "0 to 5"]),
    (of_other("attach"), "invalid_frame", ["after"]),
    (of_other("attach", after=-2), "invalid_frame", ["`after`", "-1"]),
    (of_other("attach", after=99), "invalid_params", ["`after` is 99", "last event"]),
    *(
        (frame | {"request_id": "nobody"}, "unknown_request", ['"nobody of '])
        for frame in [*STEERING, *TOO_LATE]
    ),
    *(
        (frame | {"request_id": "finished"}, "request_finished", ['"finished of ', "ended"])
        for frame in STEERING
    ),
]
STATUS = {
    "invalid_frame": 400,
    "invalid_params": 400,
    "context_too_long": 400,
    "unknown_request": 404,
    "unknown_model": 404,
    "request_conflict": 409,
    "request_finished": 409,
    "unsupported": 422,
}


NAMES = ("wrong", "beside", "finished", "nobody")  # others are wrong themselves


async def test_a_frame_that_is_wrong_is_answered_by_an_error_and_changes_nothing(client: Client) -> None:
    ended = await client.start("finished", params=LONG | {"max_tokens": 1})
    await ended.rest()
    beside = await client.start("beside", params=LONG, credit={"limit": 5})
    await beside.until_index(5)
    for number, (wrong, code, words) in enumerate(FRAMES):
        frame = {"ref": f"r{number}"} | wrong if isinstance(wrong, dict) else wrong
        if isinstance(frame, dict) and frame.get("request_id") in NAMES:
            await client.send_frame(frame)
        else:
            await client.websocket.send(msgspec.msgpack.encode(frame) if client.binary else json.dumps(frame))
        asked = frame.get("request_id") if isinstance(frame, dict) else None
        request_id = asked if isinstance(asked, str) and len(asked) <= 128 else None
        error = await client.next(request_id)
        assert (error["type"], error["code"]) == ("error", code), (frame, error)
        assert error["status"] == STATUS[code], frame
        assert error["retryable"] is False, frame
        assert all(word in error["message"] for word in words), (frame, error["message"])
        assert not [inside for inside in ("msgspec", "Error", "/") if inside in error["message"]], error
        assert "seq" not in error, "an error is no part of a stream's history"
        if isinstance(frame, dict) and len(frame["ref"]) <= 64:
            assert error["ref"] == frame["ref"]
    await beside.send("credit", limit=10)
    await beside.until_index(10)
    right = await client.start("wrong", params=LONG | {"max_tokens": 2})
    assert (await right.rest())["index"] == 2


BROKEN: list[tuple[str, str | bytes, str]] = [
    (JSON, "", "JSON"),
    (JSON, "{", "JSON"),
    (JSON, '{"type": "ping"} {"type": "ping"}', "JSON"),
    (JSON, '{"type": "ping", "ref": "\\ud800"}', "JSON"),
    (JSON, '{"type": "ping", "x": ' + "[" * 100_000 + "]" * 100_000 + "}", "deep"),
    (JSON, msgspec.msgpack.encode({"type": "ping"}), "text"),
    (MSGPACK, b"", "MessagePack"),
    (MSGPACK, b"\x82\xa4type", "MessagePack"),
    (MSGPACK, b"\xc1", "MessagePack"),
    (MSGPACK, msgspec.msgpack.encode({"type": "ping"}) + b"\x00", "MessagePack"),
    (MSGPACK, b"\x82\xa4type\xa4ping\xa3ref\xa2\xff\xfe", "MessagePack"),
    (MSGPACK, b"\x82\xa4type\xa4ping\xa1x" + b"\x91" * 100_000 + b"\xc0", "deep"),
    (MSGPACK, '{"type": "ping"}', "binary"),
]


@pytest.mark.parametrize("encoding", [JSON, MSGPACK])
async def test_what_is_no_frame_at_all_is_answered_too(server: Served, encoding: str) -> None:
    async with client_of(server.url, encoding) as client:
        for spoken, message, word in BROKEN:
            if spoken != encoding:
                continue
            await client.websocket.send(message)
            error = await client.next()
            assert (error["type"], error["status"], error["code"]) == ("error", 400, "invalid_frame"), (
                message[:40]
            )
            assert word in error["message"], (message[:40], error["message"])
        await client.roundtrip()
