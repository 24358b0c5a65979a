"""A conversation and its tools as chat templates take them: plain objects, in the shape that Hugging Face
promises.

What a client wrote goes through `hide`, wherever it stands. It knows no template and no token.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from midstream.protocol import Message, MessageToolCall, Tool
from realtime.tools.offered import as_told

MOST_NESTED = 64  # objects and lists, in a tool's schema or a call's arguments


class NestedTooDeeplyError(Exception):
    pass


def turns(messages: Sequence[Message], hide: Callable[[str], str]) -> list[dict[str, Any]]:
    return [_hidden(_turn(message), hide) for message in messages]


def tool_objects(tools: Sequence[Tool] | None, hide: Callable[[str], str]) -> list[dict[str, Any]] | None:
    """None where there are none: templates ask whether there are."""
    return [_hidden(as_told(tool), hide) for tool in tools] if tools else None


def _turn(message: Message) -> dict[str, Any]:
    """Without a content it is empty: many a template puts it together with other text."""
    turn: dict[str, Any] = {"role": message.role, "content": "".join(message.texts)}
    if message.name is not None:
        turn["name"] = message.name
    if message.reasoning_content is not None:
        turn["reasoning_content"] = message.reasoning_content
    if message.tool_calls:
        turn["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        turn["tool_call_id"] = message.tool_call_id
    return turn


def _call(call: MessageToolCall) -> dict[str, Any]:
    """Templates take arguments as an object; what is none stays text."""
    try:
        arguments = json.loads(call.function.arguments)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        arguments = call.function.arguments
    return {
        "id": call.id,
        "type": call.type,
        "function": {"name": call.function.name, "arguments": arguments},
    }


def _hidden(value: Any, hide: Callable[[str], str], depth: int = 0) -> Any:
    if depth > MOST_NESTED:
        raise NestedTooDeeplyError
    match value:
        case str():
            return hide(value)
        case dict():
            return {_hidden(key, hide): _hidden(one, hide, depth + 1) for key, one in value.items()}
        case list():
            return [_hidden(one, hide, depth + 1) for one in value]
    return value


def characters(value: Any) -> int:
    """About as many as there are in all of it."""
    match value:
        case str():
            return len(value)
        case dict():
            return sum(characters(key) + characters(one) for key, one in value.items())
        case list():
            return sum(map(characters, value))
    return 1
