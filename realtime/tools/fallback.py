"""Tools for a model whose chat template knows none: the system message says what there is and how a call is
spelt, as many models have it (`hermes`); calls that were made are text, and results come as the user's.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import groupby

import msgspec
from msgspec.structs import replace

from midstream.protocol import Message, MessageToolCall, Tool
from realtime.tools.offered import as_told

# As models that are trained on this format are told. One that is not chooses better by these words as well.
_ABOUT = """\
# Tools

You may call one or more functions to assist with the user query.

You are provided with function signatures within <tools></tools> XML tags:
<tools>
{tools}
</tools>

For each function call, return a json object with function name and arguments within \
<tool_call></tool_call> XML tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>"""


def without_tools(messages: Sequence[Message], tools: Sequence[Tool] | None) -> list[Message]:
    """The same conversation in messages of text alone."""
    spelt = list[Message]()
    for are_results, some in groupby(messages, key=lambda message: message.role == "tool"):
        if are_results:  # of one turn's calls are one message: templates want turns to alternate
            spelt.append(Message(role="user", content="\n".join(map(_result, some))))
        else:
            spelt += map(_spelt, some)
    return _with_system(spelt, _about(tools)) if tools else spelt


def _spelt(message: Message) -> Message:
    if not message.tool_calls:
        return message
    calls = "\n".join(map(_call, message.tool_calls))
    text = "".join(message.texts)
    return Message(role=message.role, content=f"{text}\n{calls}" if text else calls, name=message.name)


def _about(tools: Sequence[Tool]) -> str:
    lines = (msgspec.json.encode(as_told(tool)).decode() for tool in tools)
    return _ABOUT.format(tools="\n".join(lines))


def _with_system(messages: list[Message], about: str) -> list[Message]:
    if messages and messages[0].role == "system":
        first = replace(messages[0], content="\n\n".join(["".join(messages[0].texts), about]))
        return [first, *messages[1:]]
    return [Message(role="system", content=about), *messages]


def _call(call: MessageToolCall) -> str:
    name = json.dumps(call.function.name)
    return f'<tool_call>\n{{"name": {name}, "arguments": {call.function.arguments}}}\n</tool_call>'


def _result(message: Message) -> str:
    return f"<tool_response>\n{''.join(message.texts)}\n</tool_response>"
