"""The tools that a stream offers, as the reading of its calls needs them: names, and which arguments are no
text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from midstream.protocol import Tool


def as_told(tool: Tool) -> dict[str, Any]:
    """With its type, which all have and templates look for; `strict` is between a client and us."""
    function = msgspec.to_builtins(tool.function)
    function.pop("strict", None)
    return {"type": tool.type, "function": function}


# What is said of a value without narrowing it.
SAYS_NOTHING = frozenset(
    {"title", "description", "default", "examples", "$schema", "$id", "$comment", "deprecated", "format"}
)

Kind = Literal["text", "word", "json"]  # a word: true, false, null, which Python spells otherwise
Kinds = Mapping[str, Mapping[str, Kind]]  # of the arguments of each tool, in its schema's order


def argument_kinds(tools: Sequence[Tool]) -> dict[str, dict[str, Kind]]:
    """Of each tool. An argument that no schema speaks of is text."""
    return {tool.function.name: _kinds(tool.function.parameters) for tool in tools}


def no_texts(kinds: Kinds) -> dict[str, frozenset[str]]:
    """Of each tool the arguments that are no text."""
    return {
        name: frozenset(key for key, kind in of_tool.items() if kind != "text")
        for name, of_tool in kinds.items()
    }


def _kinds(parameters: Mapping[str, Any] | None) -> dict[str, Kind]:
    properties = (parameters or {}).get("properties")
    if not isinstance(properties, dict):
        return {}
    return {key: _kind(schema) for key, schema in properties.items()}


def _kind(schema: object) -> Kind:
    if is_text(schema):
        return "text"
    return "word" if is_word(schema) else "json"


def is_word(schema: object) -> bool:
    """Whether it is a word that Python spells otherwise, and nothing else is asked of it."""
    return (
        isinstance(schema, Mapping)
        and schema.get("type") in ("boolean", "null")
        and not schema.keys() - {"type"} - SAYS_NOTHING
    )


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
