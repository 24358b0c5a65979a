"""Tools out of Python: what a server is told of a function or a type, and a function called as a model asked.

Knows functions and their hints; knows no stream and no server.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec import Meta, Struct

from midstream.docstrings import read_docstring
from midstream.protocol import NamedTool, Tool
from midstream.schemas import Schema, from_json, json_schema
from midstream.spans import Call

Function = Callable[..., Any]


class JsonTool(Struct, frozen=True, kw_only=True):
    """A function of which a JSON schema says the arguments, and which takes them as JSON has them: for what
    has no hints of Python's, such as the tools of another server."""

    name: str
    function: Function
    parameters: Schema
    description: str | None = None


ToolLike = Tool | Mapping[str, Any] | JsonTool | Function
ToolChoiceLike = str | NamedTool | Mapping[str, Any] | Function
_MODES = ("auto", "none", "required")


class BadCall(ValueError):
    """The model called what there is not, or with arguments that do not fit. The message may be told to
    it."""


def tool_of(source: ToolLike) -> Tool:
    """What the server is told: of a function, its name, its docstring and the hints of its parameters; of a
    type (a dataclass, a TypedDict, a struct, a pydantic model) its name, its docstring and its fields. What
    is a tool as OpenAI's API has it goes as it is.

    Raises TypeError for a function or a type that cannot be told as JSON.
    """
    if isinstance(source, Tool):
        return source
    if isinstance(source, Mapping):
        return msgspec.convert(dict(source), Tool)
    if isinstance(source, JsonTool):
        told = {"name": source.name, "description": source.description, "parameters": source.parameters}
        return msgspec.convert({"function": told}, Tool)
    name = tool_name(source)
    described = read_docstring(_documentation(source))
    function = {
        "name": name,
        "description": described.description or None,
        "parameters": json_schema(source if isinstance(source, type) else _arguments(source)),
    }
    return msgspec.convert({"function": function}, Tool)


def tool_name(source: ToolLike) -> str:
    """The name by which a model calls it. Raises TypeError for what has none."""
    if isinstance(source, Tool):
        return source.function.name
    if isinstance(source, Mapping):
        return str(source["function"]["name"])
    name = source.name if isinstance(source, JsonTool) else getattr(source, "__name__", None)
    if not isinstance(name, str):
        raise TypeError(f"{source!r} is no function that could be a tool: it has no name")
    return name


def tool_choice_of(choice: ToolChoiceLike) -> object:
    """As the protocol has it: the name of a tool, or the tool itself, stands for having to call that one."""
    if isinstance(choice, NamedTool | Mapping) or choice in _MODES:
        return choice
    name = choice if isinstance(choice, str) else tool_name(choice)
    return {"type": "function", "function": {"name": name}}


def run_call(call: Call, functions: Iterable[Function | JsonTool]) -> Any:
    """Call that one of the functions which the model has called, with its arguments as the hints have them,
    and return what it returns: of an async function, what is to be awaited. Of a type, a value of it.

    Raises BadCall where the model is at fault; `call.answer(str(error))` tells it so.
    """
    named = {tool_name(function): function for function in functions}
    if call.name not in named:
        raise BadCall(f"there is no tool {call.name!r}; there are {', '.join(named)}")
    function = named[call.name]
    try:
        given = call.parsed
        if isinstance(function, JsonTool):
            return_of = function.function
        elif isinstance(function, type):
            return from_json(call.arguments, function)
        else:
            arguments = from_json(call.arguments, _arguments(function))
            given = {name: getattr(arguments, name) for name in given}
            return_of = function
    except ValueError as error:
        raise BadCall(f"the arguments of {call.name} do not fit: {error}") from None
    return return_of(**given)


def _arguments(function: Function) -> type[Struct]:
    """The parameters of a function as the fields of a struct."""
    name, hints = tool_name(function), get_type_hints(function, include_extras=True)
    described = read_docstring(_documentation(function)).parameters
    fields: list[Any] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise TypeError(f"{name}: a model names its arguments, so {parameter} cannot be one")
        hint = _with_description(hints.get(parameter.name, Any), described.get(parameter.name))
        if parameter.default is parameter.empty:
            fields.append((parameter.name, hint))
        else:  # the function has it for itself, whatever it is
            fields.append((parameter.name, hint, msgspec.field(default_factory=lambda: None)))
    return msgspec.defstruct(name, fields, kw_only=True, forbid_unknown_fields=True)


def _with_description(hint: Any, described: str | None) -> Any:
    """The hint, with the words of its own annotation or, where it has none, those of the docstring."""
    own: Sequence[Any] = getattr(hint, "__metadata__", ())
    words = next((one for one in own if isinstance(one, str)), described)
    return Annotated[hint, Meta(description=words)] if words else hint


def _documentation(source: Function) -> str | None:
    """Its docstring, where somebody has written one: a dataclass makes one up."""
    text = vars(source).get("__doc__") if isinstance(source, type) else source.__doc__
    return None if text is None or text.startswith(f"{source.__name__}(") else text
