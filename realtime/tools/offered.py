"""The tools that a stream offers, as the reading of its calls needs them: names, and which arguments are no
text."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from midstream.protocol import Tool


def as_told(tool: Tool) -> dict[str, Any]:
    """With its type, which all have and templates look for; `strict` is between a client and us."""
    function = msgspec.to_builtins(tool.function)
    function.pop("strict", None)
    return {"type": tool.type, "function": function}


NAME_BYTES = 120  # a name, as an object in a table


def offered_bytes(tools: Mapping[str, Collection[str]]) -> int:
    """About how much memory they take, as `offered` has them."""
    return sum(
        NAME_BYTES + len(name) + sum(NAME_BYTES + len(key) for key in keys) for name, keys in tools.items()
    )


def offered(tools: Sequence[Tool]) -> dict[str, frozenset[str]]:
    """Of each tool the arguments that are no text. One that no schema speaks of is."""
    return {tool.function.name: _other_kinds(tool.function.parameters) for tool in tools}


def _other_kinds(parameters: Mapping[str, Any] | None) -> frozenset[str]:
    properties = (parameters or {}).get("properties")
    if not isinstance(properties, dict):
        return frozenset()
    return frozenset(key for key, schema in properties.items() if not is_text(schema))


def is_text(schema: object) -> bool:
    """Or may be something else, which is told by its spelling."""
    if not isinstance(schema, dict):
        return True
    if "type" in schema:
        return bool(schema["type"] == "string")
    choices = schema.get("enum")
    if isinstance(choices, list):
        return all(isinstance(choice, str) for choice in choices)
    return not any(word in schema for word in ("anyOf", "oneOf", "allOf", "$ref", "const"))
