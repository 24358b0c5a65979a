"""Mutated frames, for fuzzing: bytes flipped, cut and doubled, values swapped for those of other kinds,
numbers beyond every range, and nesting without end, in either encoding. A seed makes the same ones again.

It knows what valid frames look like and how to spoil them, and nothing of who reads them.
"""

from __future__ import annotations

import copy
import itertools
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

Frame = dict[str, Any]
NAMES, RENAMED = 6, 60  # streams at a time, and frames until there are others: an id is used once
PARAMS: Frame = {
    "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1, "max_tokens": 4, "seed": 7, "stop": ["a"],
    "repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": -0.1, "logit_bias": {"65": 3.0},
    "logprobs": 2, "ignore_eos": True, "min_tokens": 1,
}  # fmt: skip
VALID: list[Frame] = [
    {"type": "start", "prompt": "Once", "params": PARAMS, "ref": "1", "return_tokens": True, "priority": 1},
    {"type": "start", "prompt": [65, 66], "params": {"max_tokens": 3}, "credit": {"limit": 4, "prefetch": 2}},
    {"type": "start", "messages": [{"role": "user", "content": "Hi"}], "params": {"max_tokens": 2}},
    {"type": "start", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]},
    {"type": "start", "prompt": "x", "on_disconnect": "pause", "grace_ms": 5, "timeout_ms": 50},
    {"type": "start", "prompt": "x", "params": {"grammar": {"choice": ["ab", "ac"]}, "max_tokens": 3}},
    {"type": "start", "prompt": "x", "params": {"grammar": {"json_schema": {"type": "integer"}}}},
    {"type": "credit", "limit": 5},
    {"type": "pause", "kv": "release"},
    {"type": "resume", "ref": "2"},
    {"type": "adjust", "params": PARAMS, "at": 1},
    {"type": "adjust", "params": {"grammar": {"regex": "a+", "whitespace": True, "force": False}}},
    {"type": "adjust", "params": {"grammar": None}},
    {"type": "inject", "text": " and", "at": 0},
    {"type": "inject", "text": "a", "grammar": "anew"},
    {"type": "inject", "tokens": [65, 66]},
    {"type": "inject", "messages": [{"role": "user", "content": "go on"}]},
    {"type": "rewind", "to": 1},
    {"type": "cancel", "ref": "3"},
    {"type": "attach", "after": -1},
    {"type": "ping", "ref": "4"},
    {"type": "replace", "session_id": "0123456789abcdef"},
]
ODD: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63), 2**64 - 1, 0.5, -0.0, 1e308, -1e-308,
    "", "r0", "\ud7ff", "\x00", "🙂" * 40, "x" * 200, [], {}, [None], [[]], {"": ""}, {"type": "start"},
    [1] * 20, ["r0"] * 6, {"0": 1}, "-1", "1e999",
]  # fmt: skip
OTHER_KEYS = [*PARAMS, "at", "to", "tokens", "text", "", "x" * 150]
RAW_NUMBERS = [b"1e999", b"-1e999", b"1" * 400, b"0." + b"1" * 400, b"NaN", b"-Infinity", b"1e-999", b"00"]
DEEP = 5_000


def mutants(seed: int, *, packed: bool) -> Iterator[bytes]:
    """Without end; about one in ten is as good as new, so that there is something to steer."""
    chance = random.Random(seed)
    encode: Callable[[Any], bytes] = msgspec.msgpack.encode if packed else msgspec.json.encode
    for number in itertools.count():
        name = f"r{number // RENAMED}.{chance.randrange(NAMES)}"
        frame = {"request_id": name, **chance.choice(VALID)}
        kind = chance.random()
        if kind < 0.1:
            yield encode(frame)
        elif kind < 0.5:
            yield encode(strange(frame, chance))
        elif kind < 0.95:
            yield garbled(encode(frame), chance)
        elif packed:
            yield bytes([0x91]) * chance.randrange(DEEP) + encode(frame)
        else:
            yield exaggerated(frame, chance)


def strange(frame: Frame, chance: random.Random) -> Any:
    """One to three values, at any depth, replaced, removed or put where they do not belong."""
    frame = copy.deepcopy(frame)
    for _ in range(chance.randint(1, 3)):
        holder = chance.choice(list(holders(frame)))
        keys = list(holder) if isinstance(holder, dict) else list(range(len(holder)))
        if not keys:
            continue
        key = chance.choice(keys)
        match chance.randrange(5):
            case 0 | 1 | 2:
                holder[key] = copy.deepcopy(chance.choice(ODD))
            case 3:
                del holder[key]
            case _ if isinstance(holder, dict):
                holder[chance.choice(OTHER_KEYS)] = copy.deepcopy(holder[key])
            case _:
                holder *= 3
    return frame


def holders(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        yield value
        for inner in value.values() if isinstance(value, dict) else value:
            yield from holders(inner)


def garbled(data: bytes, chance: random.Random) -> bytes:
    """One to four bytes changed, cut out, put in or doubled."""
    spoilt = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(spoilt) + 1)
        match chance.randrange(4):
            case 0 if at < len(spoilt):
                spoilt[at] = chance.randrange(256)
            case 1:
                del spoilt[at : at + chance.randint(1, 8)]
            case 2:
                spoilt[at:at] = chance.randbytes(chance.randint(1, 4))
            case _:
                spoilt[at:at] = spoilt[at : at + chance.randint(1, 16)]
    return bytes(spoilt)


def exaggerated(frame: Frame, chance: random.Random) -> bytes:
    """Numbers that no decoder of JSON need take, and nesting that no stack does."""
    data = json.dumps(frame).encode()
    if chance.random() < 0.5:
        opening = chance.choice([b"[", b'{"a":'])
        return data[:-1] + b',"ref":' + opening * chance.randrange(DEEP) + data
    places = [at for at, byte in enumerate(data) if 48 <= byte <= 57] or [len(data) - 1]
    at = chance.choice(places)
    return data[:at] + chance.choice(RAW_NUMBERS) + data[at + 1 :]
