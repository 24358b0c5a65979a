"""Abusive frames: every kind of valid frame about one stream, made as dear to the server as it may be.

The stream has tools with large schemas, and has called one of them. It knows what the protocol allows, and
nothing of who sends it or what that costs.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from realtime.stream.spanned_text import call_id_of

Frame = dict[str, Any]
LONGEST = 1_000  # tokens that the stream has
SEED = 7


def stops(seed: int) -> list[str]:
    """As many and as long as may be, and alike."""
    chance = random.Random(seed)
    return ["".join(chance.choices("ab", k=256)) for _ in range(16)]


def schema(seed: int) -> Frame:
    """Dear to compile, and each another: what was tried lately is known."""
    names = [f"{seed}_{at}" for at in range(60)]
    inner = {"type": "object", "properties": {name: {"type": "string", "maxLength": 99} for name in names}}
    return {"type": "object", "properties": dict.fromkeys(names[:4], inner)}


def short_schema(seed: int) -> Frame:
    """Dear to compile and to follow, and short: tools are read by the model."""
    text = {"type": "string", "maxLength": 900 + seed}
    listed = {"type": "array", "items": {"$ref": "#/$defs/t"}, "maxItems": 90}
    properties = {name: {"$ref": "#/$defs/l"} for name in "abcdefgh"}
    return {"$defs": {"t": text, "l": listed}, "type": "object", "properties": properties}


def tool(name: str, parameters: Frame) -> Frame:
    function = {"name": name, "parameters": parameters, "strict": True}
    return {"type": "function", "function": function}


def guards(seed: int) -> list[Frame]:
    """As many as may be, dear to read, and each another: what was read lately is known."""
    chance = random.Random(seed)
    return [
        {
            "name": f"{at}",
            "do": "tell",
            "regex": "".join(chance.choices("ab", k=9)) + r"(?:\b[ab]|\Bb){55}c",
        }
        for at in range(16)
    ]


PARAMS: Frame = {
    "stop": stops(0),
    "logit_bias": {str(token): 0.5 for token in range(256, 460)},
    "logprobs": 20,
    "ignore_eos": True,
    "max_tokens": 4_000,
}
PLAIN_START: Frame = {
    "type": "start",
    "prompt": "x",
    "params": PARAMS,
    "credit": {"limit": LONGEST},
    "return_tokens": True,
    "on_disconnect": "pause",
    "grace_ms": 1_000,
}
FORK: Frame = {"type": "start", "fork": True, "credit": {"limit": LONGEST}}
CALLING: Frame = {
    "tools": [tool("called", {"enum": [{}]}), *(tool(f"dear_{at}", short_schema(at)) for at in range(4))],
    "tool_choice": {"type": "function", "function": {"name": "called"}},
    "on_tool_call": "continue",
}
START = PLAIN_START | CALLING | {"prompt": None, "messages": [{"role": "user", "content": "x"}]}
FAR = [f"[^q]*[a-z][\\w\\W]{{100}}{char}" for char in "cdefghijklmnopqr"]  # often found, and from far back
FOUND = [
    f"{begin}[\\w\\W]{{40}}{end}" for begin in (".", "\\w") for end in ("a", "b", "[ab]", ".", "\\w", "\\S")
]


def guarded_start(regexes: list[str]) -> Frame:
    guards = [{"name": str(at), "do": "tell", "regex": regex} for at, regex in enumerate(regexes)]
    params = {"guards": guards, "ignore_eos": True, "max_tokens": 4_000}
    return {"type": "start", "prompt": "x", "params": params, "credit": {"limit": LONGEST}}


GUARDED_STARTS = {"start guarded": guarded_start(FAR), "start with guards that find": guarded_start(FOUND)}
ARGUMENTS = {"q": ["a" * 99] * 120}  # of a call: nearly as long as they may be
KINDS: dict[str, Frame] = {
    "start again": START,
    "start with other content": START | {"messages": [{"role": "user", "content": "y"}]},
    **GUARDED_STARTS,
    "start what is not loaded": PLAIN_START | {"model": "nobody", "on_cold": "refuse"},
    "start with approvals": START | {"approvals": True, "whole_arguments": True},
    "credit": {"type": "credit", "limit": LONGEST},
    "pause": {"type": "pause", "ref": "p"},
    "pause and release": {"type": "pause", "kv": "release", "ref": "p"},
    "resume": {"type": "resume", "ref": "r"},
    "adjust nothing": {"type": "adjust", "params": {}},
    "adjust the bias": {"type": "adjust", "params": {"logit_bias": PARAMS["logit_bias"]}},
    "adjust the stops": {"type": "adjust", "params": {"stop": stops(1)}},
    "adjust them back": {"type": "adjust", "params": {"stop": stops(0)}},
    "adjust a grammar in": {"type": "adjust", "params": {"grammar": {"json_schema": schema(0)}}},
    "adjust another in": {"type": "adjust", "params": {"grammar": {"json_schema": schema(1)}}},
    "adjust it away": {"type": "adjust", "params": {"grammar": None}},
    "adjust guards in": {"type": "adjust", "params": {"guards": guards(0)}},
    "adjust others in": {"type": "adjust", "params": {"guards": guards(1)}},
    "adjust the reasoning": {"type": "adjust", "params": {"reasoning_tokens": 0}},
    "adjust at a token": {"type": "adjust", "params": {}, "at": 1},
    "inject tokens": {"type": "inject", "tokens": [65]},
    "inject many tokens": {"type": "inject", "tokens": [65] * 3_000},
    "inject text": {"type": "inject", "text": "a" * 1_900},
    "inject messages": {"type": "inject", "messages": [{"role": "user", "content": "a"}] * 60},
    "inject at a token": {"type": "inject", "text": "a" * 1_900, "at": 1, "grammar": "anew", "resume": True},
    "rewind by one": {"type": "rewind"},
    "rewind to the start": {"type": "rewind", "to": 0},
    "cancel another": {"type": "cancel", "request_id": "nobody", "ref": "c"},
    "attach": {"type": "attach", "after": -1, "ref": "a"},
    "ping": {"type": "ping", "ref": "g"},
    "replace": {"type": "replace", "session_id": "0" * 32},
    "tool result": {"type": "tool_result", "content": "a" * 1_900, "ref": "t"},
    "tool result of many parts": {"type": "tool_result", "content": [{"type": "text", "text": ""}] * 2_000},
    "tool result that failed": {"type": "tool_result", "error": "a" * 1_900, "ref": "f"},
    "approve": {"type": "approve", "ref": "y"},
    "amend": {"type": "amend", "arguments": ARGUMENTS, "ref": "m"},
    "amend a beginning": {"type": "amend", "arguments": '{"q": ' + "[" * 2_000, "partial": True, "ref": "b"},
    "fork": FORK,
    "fork from a token": FORK | {"at": 60, "params": {"max_tokens": 4_000, "seed": 1}},
    "fork and end": FORK | {"at": 60, "params": {"max_tokens": 61, "seed": 1}},
}
OF_A_CALL = ("tool_result", "approve", "amend")
ANEW = {kind for kind, frame in KINDS.items() if frame.get("fork") or kind in GUARDED_STARTS}


def encoded(kind: str, name: str, number: int, *, tokens: int = LONGEST) -> bytes:
    """A frame about the stream of that name, which has said so many tokens, or a start of another."""
    frame: Frame = {"request_id": name} | KINDS[kind]
    if frame["type"] == "rewind":
        frame.setdefault("to", tokens - 1)
    if kind in ANEW:
        frame["request_id"] = f"{name} {number}"
    if "fork" in frame:
        at = {"at": frame.pop("at")} if "at" in frame else {}
        frame["fork"] = {"request_id": name, **at}
    if frame["type"] in OF_A_CALL:
        frame["call_id"] = call_id_of(name, 1)
    return msgspec.json.encode(frame)


def start(name: str, asked: Frame = START) -> bytes:
    return msgspec.json.encode(asked | {"request_id": name})
