"""Whether what is counted of a stream, as it comes and goes, is what is there now, and nothing besides."""

from __future__ import annotations

from typing import Any

from realtime.stream.memory import Weighed
from realtime.stream.outbox import PendingToken
from realtime.stream.stream import Stream


def check_weights(stream: Stream) -> None:
    outbox, commands, tools = stream.outbox, stream._commands, stream._tools
    for weighed in (outbox._history, outbox._answers):
        check_each(weighed)
    tokens = [item for item in outbox.items if isinstance(item, PendingToken)]
    assert len(outbox._weights) == len(outbox.items) - len(tokens), "each event that waits has a weight"
    assert outbox._waiting_bytes == sum(outbox._weights) + sum(token.bytes for token in tokens)
    assert outbox._replay or not outbox._replay_bytes, "nothing is told again"
    assert commands.bytes == sum(pending.bytes for pending in commands)
    assert tools._weights.keys() == tools._results.keys()
    assert tools._results_bytes == sum(tools._weights.values())
    assert (tools._due is None) == (tools._due_bytes == 0)
    assert stream._cancelling._others or not stream._cancelling.bytes
    if stream.ended:
        assert stream._waiting_bytes == 0, "nothing waits any more for an answer"


def check_each(weighed: Weighed[Any]) -> None:
    assert len(weighed.things) == len(weighed._weights)
    assert weighed.bytes == sum(weighed._weights)
