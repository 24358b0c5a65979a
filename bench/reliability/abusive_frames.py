"""Abusive frames: every kind of valid frame about one stream, made as dear to the server as it may be.

It knows what the protocol allows, and nothing of who sends it or what that costs.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

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
START: Frame = {
    "type": "start",
    "prompt": "x",
    "params": PARAMS,
    "credit": {"limit": LONGEST},
    "return_tokens": True,
    "on_disconnect": "pause",
    "grace_ms": 1_000,
}
KINDS: dict[str, Frame] = {
    "start again": START,
    "start with other content": START | {"prompt": "y"},
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
    "inject text": {"type": "inject", "text": "a" * 1_900},
    "rewind by one": {"type": "rewind", "to": LONGEST - 1},
    "rewind to the start": {"type": "rewind", "to": 0},
    "cancel another": {"type": "cancel", "request_id": "nobody", "ref": "c"},
    "attach": {"type": "attach", "after": -1, "ref": "a"},
    "ping": {"type": "ping", "ref": "g"},
    "replace": {"type": "replace", "session_id": "0" * 32},
}


def encoded(kind: str, name: str) -> bytes:
    """A frame about the stream of that name."""
    return msgspec.json.encode({"request_id": name, **KINDS[kind]})


def start(name: str) -> bytes:
    return msgspec.json.encode(START | {"request_id": name})
