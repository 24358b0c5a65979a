"""The requests of OpenAI's API, as types, and the parsing of a body into one of them.

The sampling fields are the protocol's own `Params`, with its ranges. A field that would change the answer,
and that this server does not know, is refused by name; one that changes nothing is left out of account. It
knows neither streams nor responses.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from midstream.protocol import (
    MAX_INDEX,
    MAX_MILLISECONDS,
    MAX_TOOL_CALLS,
    CallId,
    MessageToolCall,
    Milliseconds,
    Params,
    RequestId,
    TextPart,
    TokenId,
    ToolChoice,
    Tools,
)
from realtime.codec import FEW_BIASES, explain_error, said_and_path
from realtime.http.bodies_and_headers import MOST_FIELDS, TooManyFieldsError, few_fields, fields_of
from realtime.http.openai.errors import FieldRefusal
from realtime.refusal import Refusal, shortened
from realtime.untyped import MOST_VALUES, most_values, quick_float, too_many

CHOICE_LIMIT, MESSAGE_LIMIT = 128, 4096  # of one request

MaxTokens = Annotated[int, Meta(ge=1, le=MAX_INDEX)]


class StreamOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    include_usage: bool = False
    include_obfuscation: bool = False  # bytes without meaning, of which there are none here


class Body(Params, kw_only=True, forbid_unknown_fields=True):
    """What both kinds of request have; the last six are our own."""

    model: str | None = None
    n: Annotated[int, Meta(ge=1, le=CHOICE_LIMIT)] = 1
    stream: bool = False
    stream_options: StreamOptions = msgspec.field(default_factory=StreamOptions)
    priority: Annotated[int, Meta(ge=-8, le=8)] = 0
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_MILLISECONDS)] | None = None
    request_id: RequestId | None = None
    on_disconnect: Literal["cancel", "pause", "continue"] | None = None
    grace_ms: Milliseconds | None = None
    on_cold: Literal["wait", "refuse"] = "wait"


class Turn(Struct, kw_only=True, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_calls: Annotated[list[MessageToolCall], Meta(max_length=MAX_TOOL_CALLS)] | None = None
    tool_call_id: CallId | None = None
    reasoning_content: str | None = None


class TextFormat(Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    pass


class JsonObjectFormat(Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    pass


class NamedSchema(Struct, kw_only=True, forbid_unknown_fields=True):
    """What is made is always held to the schema, `strict` or not."""

    name: str = ""
    description: str | None = None
    schema: dict[str, Any] = {}
    strict: bool | None = None


class JsonSchemaFormat(Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    json_schema: NamedSchema


ResponseFormat = TextFormat | JsonObjectFormat | JsonSchemaFormat


class ChatBody(Body, kw_only=True, forbid_unknown_fields=True):
    messages: Annotated[list[Turn], Meta(min_length=1, max_length=MESSAGE_LIMIT)]
    max_completion_tokens: MaxTokens | UnsetType = UNSET
    logprobs: bool = False  # here it is a switch, and the number has another name
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    response_format: ResponseFormat = msgspec.field(default_factory=TextFormat)
    tools: Tools = msgspec.field(default_factory=list)
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True


class TextBody(Body, kw_only=True, forbid_unknown_fields=True):
    prompt: Raw
    best_of: Annotated[int, Meta(ge=1, le=CHOICE_LIMIT)] | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """One or many, each a text or token ids. How deep anything may be nested hangs on how deep we are
        ourselves where it is read."""
        with suppress(RecursionError):
            return self._prompts
        raise FieldRefusal("prompt", "`prompt` is nested too deeply.")

    @property
    def _prompts(self) -> list[str | list[int]]:
        with suppress(msgspec.ValidationError):
            return [msgspec.json.decode(self.prompt, type=str)]
        with suppress(msgspec.ValidationError):
            tokens = msgspec.json.decode(self.prompt, type=list[TokenId])
            return [tokens] if tokens else []
        with suppress(msgspec.ValidationError):
            _items("prompt", self.prompt, CHOICE_LIMIT)
            return msgspec.json.decode(self.prompt, type=list[str | list[TokenId]])
        raise FieldRefusal(
            "prompt",
            "`prompt` must be a string, a list of strings, token ids, or a list of lists of token ids.",
        )


def _items(name: str, said: Raw, most: int) -> list[Raw]:
    """Of a list, none of them looked into. Raises ValidationError where it is none."""
    try:
        few = msgspec.json.decode(said, type=_FEW[most])
    except msgspec.ValidationError:
        if bytes(memoryview(said)[:1]) != b"[":
            raise
        items = []
    else:
        items = [value for value in msgspec.structs.astuple(few) if value is not UNSET]
    if not items:
        raise FieldRefusal(name, f"`{name}` must be a list of 1 to {most} items.")
    return items


def _few(most: int) -> type[Struct]:
    """A list of so many values at most, as a type: reading one ends at the first that is too many, where a
    megabyte of empty ones would become 20 MiB of a list."""
    fields = [(f"at_{index}", Raw | UnsetType, UNSET) for index in range(most)]
    return msgspec.defstruct("Few", fields, array_like=True, forbid_unknown_fields=True)


_FEW = {most: _few(most) for most in (CHOICE_LIMIT, MESSAGE_LIMIT)}


def _anything(value: Raw) -> bool:
    return True


def _is(*values: Any) -> Callable[[Raw], bool]:
    def is_one(value: Raw) -> bool:
        with suppress(msgspec.MsgspecError):  # 1e999 is none of them
            return len(bytes(value)) < 100 and msgspec.json.decode(value) in values
        return False

    return is_one


# Fields that we need not know, as long as their value asks for nothing.
_HARMLESS: dict[str, Callable[[Raw], bool]] = {
    "echo": _is(False),
    "functions": _is([]),
    "metadata": _anything,
    "modalities": _is(["text"]),
    "parallel_tool_calls": _anything,  # without tools
    "prompt_cache_key": _anything,
    "prompt_cache_options": _anything,
    "prompt_cache_retention": _anything,
    "response_format": _is({"type": "text"}),  # of a text completion
    "safety_identifier": _anything,
    "service_tier": _anything,
    "store": _is(False),
    "suffix": _is(""),
    "tool_choice": _is("none", "auto"),
    "tools": _is([]),
    "user": _anything,
}
# What OpenAI's package has put beside the `content` of an answer that it was asked to parse.
_SAID_BY_CONTENT = "parsed"
_NULL = Raw(b"null")
_NOTHING = (_NULL, Raw(b"[]"))

B = TypeVar("B", bound=Body)


def read(kind: type[B], data: bytes) -> B:
    """The request that a body is. What is null is not there."""
    asked = {name: value for name, value in fields_of(data).items() if value != _NULL}
    _refuse_unknown(kind, asked)
    known = {name: asked[name] for name in asked if name in kind.__struct_fields__}
    _check_values(known)
    return _converted(kind, known)


def _refuse_unknown(kind: type[Body], asked: dict[str, Raw]) -> None:
    for name in asked.keys() - set(kind.__struct_fields__):
        if name not in _HARMLESS:
            raise _unsupported(name)
        if not _HARMLESS[name](asked[name]):
            raise FieldRefusal(
                name, f"`{name}` is not supported with this value: leave it out.", "unsupported"
            )


def _check_values(asked: dict[str, Raw]) -> None:
    counted = {name: bytes(value) for name, value in asked.items() if name not in ("messages", "prompt")}
    values = most_values(b",".join(counted.values()), text=True)
    if values > MOST_VALUES:
        longest = max(counted, key=lambda name: len(counted[name]))
        raise FieldRefusal(longest, f"The request {too_many(values)}.")


def _converted(kind: type[B], asked: dict[str, Raw]) -> B:
    said: dict[str, Any] = dict(asked)
    if "messages" in asked:
        with suppress(msgspec.ValidationError):  # told below
            turns = _items("messages", asked["messages"], MESSAGE_LIMIT)
            said["messages"] = [_turn(at, turn) for at, turn in enumerate(turns)]
    try:
        if "logit_bias" in asked:
            msgspec.json.decode(msgspec.json.encode({"logit_bias": asked["logit_bias"]}), type=FEW_BIASES)
        decoder: msgspec.json.Decoder[B] = msgspec.json.Decoder(kind, float_hook=quick_float)
        return decoder.decode(msgspec.json.encode(said))
    except msgspec.ValidationError as error:
        _, path = said_and_path(error)
        refusal = explain_error(kind, error, "request")
        missing = re.search(r"missing the field `(\w+)`", refusal.message, re.IGNORECASE)
        param = path or (missing[1] if missing else "")
        raise FieldRefusal(param, refusal.message, refusal.code) from None
    except RecursionError:
        raise Refusal("invalid_frame", "The body is nested too deeply.") from None


def _turn(at: int, turn: Raw) -> Raw | dict[str, Raw]:
    """A message without what says nothing: clients send back whole messages that they were given."""
    try:
        whole = few_fields(turn)
    except msgspec.ValidationError:
        return turn
    except TooManyFieldsError:
        message = f"`messages[{at}]` has more than {MOST_FIELDS} fields."
        raise FieldRefusal(f"messages[{at}]", message) from None
    said = {name: value for name, value in whole.items() if name == "content" or value not in _NOTHING}
    said.pop(_SAID_BY_CONTENT, None)
    for name in said.keys() - set(Turn.__struct_fields__):
        raise _unsupported(f"messages[{at}].{name}")
    return said


def _unsupported(field: str) -> FieldRefusal:
    param = shortened(field)
    return FieldRefusal(param, f"`{param}` is not supported by this server: leave it out.", "unsupported")
