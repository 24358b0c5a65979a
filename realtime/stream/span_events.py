"""The events of reasoning and calls, which go beside those of tokens, and of guards. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from msgspec.structs import replace

from midstream.protocol import Beside, Guarded, Reasoning, Rewound, ToolArguments, ToolCall
from realtime.guards.guards import Verdict
from realtime.tools.parts import Lengths


def joined(events: Iterable[Beside]) -> list[Beside]:
    """More of the same reasoning, or of one call's arguments, is one event."""
    told: list[Beside] = []
    for event in events:
        last = told[-1] if told else None
        match last, event:
            case Reasoning(), Reasoning():
                told[-1] = _both(last, event)
            case ToolArguments(call_id=call_id), ToolArguments() if call_id == event.call_id:
                told[-1] = _both(last, event)
            case _:
                told.append(event)
    return told


E = TypeVar("E", Reasoning, ToolArguments)


def _both(first: E, second: E) -> E:
    count = second.index + second.count - first.index
    return replace(first, count=count, delta=first.delta + second.delta)


def guarded(request_id: str, verdict: Verdict) -> Guarded:
    return Guarded(
        request_id=request_id,
        index=verdict.index,
        name=verdict.guard.name,
        do=verdict.do,
        times=verdict.times,
        token=verdict.token,
        detail=verdict.detail,
    )


def with_beside(told: Lengths, event: Beside) -> Lengths:
    """Of what was told, with this."""
    match event:
        case Reasoning(delta=delta):
            return told._replace(reasoning=told.reasoning + len(delta))
        case ToolCall():
            return told._replace(calls=told.calls + 1, arguments=0)
        case ToolArguments(delta=delta):
            return told._replace(arguments=told.arguments + len(delta))
    return told


def lengths_of(event: Rewound) -> Lengths:
    return Lengths(reasoning=event.reasoning_length, calls=event.tool_calls, arguments=event.arguments_length)


def least(some: Lengths, others: Lengths) -> Lengths:
    """Of both, what stands: the calls of the fewer, and what is less of the last of them."""
    calls, arguments = min((some.calls, some.arguments), (others.calls, others.arguments))
    return Lengths(reasoning=min(some.reasoning, others.reasoning), calls=calls, arguments=arguments)


def tell_lengths(event: Rewound, lengths: Lengths) -> None:
    """How much stands of what the stream has beside its text."""
    event.reasoning_length = lengths.reasoning
    event.tool_calls, event.arguments_length = lengths.calls, lengths.arguments
