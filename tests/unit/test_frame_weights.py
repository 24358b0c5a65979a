"""What a frame weighs while it waits is about what it takes in memory, whatever it is made of: so many bytes
of a tenant may wait, and no more."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest

from realtime.codec import Codec
from realtime.hub.frame_tokenizing import weight

SAID: dict[str, Any] = {"role": "user", "content": "x"}
CALL = {"id": "a", "type": "function", "function": {"name": "b", "arguments": "{}"}}


def past(*steps: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Which stand there a hundred times."""
    steering = [{"index": 0} | step for step in steps] * 100
    return {"prompt": "x", "past": {"tokens": [1], "steering": steering} | more}


def tools(*values: Any) -> dict[str, Any]:
    function = {"name": "look", "parameters": {"examples": list(values) * 300}}
    return {"messages": [SAID], "tools": [{"type": "function", "function": function}]}


START = {"type": "start"}
RESULT = {"type": "tool_result", "call_id": "c"}
STARTS: dict[str, dict[str, Any]] = {
    "a text": {"prompt": "x" * 10_000},
    "a wide text": {"prompt": "x" * 10_000 + "\U0001f600"},
    "tokens": {"prompt": [300] * 4_000},
    "messages": {"messages": [SAID | {"name": "n"}] * 300},
    "parts": {"messages": [SAID | {"content": [{"type": "text", "text": "\xe9"}] * 300}]},
    "calls": {"messages": [{"role": "assistant", "tool_calls": [CALL] * 10}] * 30},
    "biases": {"prompt": "x", "params": {"logit_bias": {str(token): 0.5 for token in range(300, 600)}}},
    "adjustments": past({"type": "adjust", "params": {}}),
    "all of them": past({"type": "adjust", "params": {"temperature": 0.5, "seed": 1 << 40, "top_k": 1000}}),
    "grammars": past({"type": "adjust", "params": {"grammar": {"regex": "a"}}}),
    "stops": past({"type": "adjust", "params": {"stop": ["a"] * 16}}),
    "texts put in": past({"type": "inject", "text": "a"}),
    "tokens put in": past({"type": "inject", "tokens": [300]}),
    "messages put in": past({"type": "inject", "messages": [SAID]}),
    "ids of calls": past(call_ids=[str(at) for at in range(300)]),
    "names": {"messages": [SAID], "approvals": ["\xe9" * 60] * 128},
    "objects": tools({}),
    "an object in each": tools({"a": {}}),
    "lists": tools([[]]),
    "a list and an object": tools([{}]),
    "numbers": tools(300, 1.5),
    "tokens and messages": {"prompt": [1], "messages": [SAID | {"content": "x" * 10_000}]},
    "a text and messages": {"prompt": "x" * 10_000, "messages": [SAID]},
}
OTHERS: dict[str, dict[str, Any]] = {
    "a result": RESULT | {"content": "x" * 10_000},
    "a result that failed": RESULT | {"error": "x" * 10_000},
    "a result that did both": RESULT | {"content": "", "error": "x" * 10_000},
    "all that may be put in": {"type": "inject", "text": "x", "messages": [SAID], "tokens": [300] * 1_000},
    "arguments": {"type": "amend", "call_id": "c", "arguments": {"examples": [{}] * 300}},
    "arguments as text": {"type": "amend", "call_id": "c", "arguments": "x" * 10_000},
    "an adjustment": {"type": "adjust", "params": {"logit_bias": {str(at): 0.5 for at in range(300, 600)}}},
}
FRAMES = {kind: START | asked for kind, asked in STARTS.items()} | OTHERS


@pytest.mark.parametrize("kind", FRAMES)
def test_a_frame_weighs_what_it_takes(kind: str) -> None:
    codec, data = Codec(None), json.dumps({"request_id": "a"} | FRAMES[kind])
    codec.decode(data)
    tracemalloc.start()
    try:
        frames = [codec.decode(data) for _ in range(10)]
        taken = tracemalloc.get_traced_memory()[0] / len(frames)
    finally:
        tracemalloc.stop()
    frame: Any = frames[0]
    assert taken / 2 < weight(frame) < 4 * taken
