"""Options of `start` and `adjust`, as typed keywords, and the frames made of them.

The asynchronous and the synchronous client share these definitions. What a field means and which values are
in range is said by `midstream.protocol`; a value that the server would refuse is refused here, by the same
exception, before anything is sent.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Required, TypedDict, TypeVar, cast

import msgspec

from midstream.errors import from_code
from midstream.protocol import Credit, Fork, Frame, Grammar, Guard, Message, Params, Start
from midstream.schemas import json_schema
from midstream.tools import ToolChoiceLike, ToolLike, tool_choice_of, tool_of

F = TypeVar("F", bound=Frame)
S = TypeVar("S", bound=msgspec.Struct)

DEFAULT_WINDOW = 64
MessageLike = Message | Mapping[str, Any]
_ENCODERS = (msgspec.json.Encoder(), msgspec.msgpack.Encoder())


class GrammarOptions(TypedDict, total=False):
    """What output must be: one of the first four. `whitespace`: JSON may have some. `force=False`: tokens to
    which it leaves no choice are sampled all the same."""

    json_schema: Mapping[str, Any] | bool
    regex: str
    lark: str
    choice: Sequence[str]
    whitespace: bool
    force: bool


GuardLike = Guard | Mapping[str, Any]
GrammarLike = GrammarOptions | Grammar | type


class ParamOptions(TypedDict, total=False):
    """Sampling parameters. `temperature=0` is greedy; `logprobs`: how many alternatives to report a token.
    `grammar`: what output must be, a Python type standing for its JSON schema; in an adjust, None takes it
    away. `guards`: what output is held to, and what becomes of what breaks it."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    max_tokens: int
    stop: str | Sequence[str]
    seed: int
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    logprobs: int | None
    ignore_eos: bool
    min_tokens: int
    reasoning_tokens: int | None
    grammar: GrammarLike | None
    guards: Sequence[GuardLike] | None


class ForkOptions(TypedDict, total=False):
    """A stream, and the output token before which it is forked: behind all that was sent, where none is
    said."""

    request_id: Required[str]
    at: int


class StartOptions(ParamOptions, total=False):
    """What a stream may be started with: `messages` or `prompt` (text or token ids), and what is to differ.

    `stream_interval`: tokens in a chunk. `return_tokens`: chunks carry token ids. `priority`: from -8 to 8.
    `timeout_ms`: the longest that the stream may live. `on_disconnect`: what becomes of it when the
    connection breaks. `on_cold`: whether it waits for a model that is to be loaded, or is refused.
    `request_id`: a name of one's own, up to 128 characters; a random one by default.
    `tools`: what the model may call: Python functions, types whose fields are the arguments, or what OpenAI's
    API has. `tool_choice`: "auto", "none", "required", or the one that is to be called, by its name or
    itself. `on_tool_call`: whether it ends with its calls, waits for their results (`Stream.tool_result`), or
    goes on meanwhile. `approvals`: the tools whose calls wait for `Stream.approve`, or True for all.
    `whole_arguments`: no string, number or word among a call's arguments is told in parts.
    `fork`: in place of a prompt, the stream as which it begins; `Client.fork` is shorter.
    """

    request_id: str
    messages: Sequence[MessageLike]
    prompt: str | Sequence[int]
    model: str | None
    stream_interval: int
    priority: int
    timeout_ms: int | None
    on_disconnect: Literal["cancel", "pause", "continue"]
    grace_ms: int | None
    on_cold: Literal["wait", "refuse"]
    return_tokens: bool
    tools: Sequence[ToolLike]
    tool_choice: ToolChoiceLike
    parallel_tool_calls: bool
    on_tool_call: Literal["finish", "pause", "continue"]
    tool_hold_ms: int | None
    approvals: bool | Sequence[str]
    whole_arguments: bool
    fork: ForkOptions | Fork


class CreditOptions(TypedDict, total=False):
    """Explicit credit to begin with: tokens that may come unasked, and that may be decoded beyond those."""

    limit: int
    prefetch: int


CreditLike = Literal["auto"] | CreditOptions | Credit


def frame(kind: type[F], **fields: object) -> F:
    """A frame of the protocol from plain values. None stands for a field left out.

    What no encoding can say (half of a surrogate pair, what is nested without end) is refused: kept until its
    answer, it would fail every reconnecting.
    """
    made = _convert({name: value for name, value in fields.items() if value is not None}, kind)
    try:
        for encoder in _ENCODERS:
            encoder.encode(made)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise from_code("invalid_frame", f"this `{kind.__name__.lower()}` cannot be sent: {error}") from None
    return made


def start_frame(options: StartOptions) -> Start:
    """The `start` frame for these keywords, sorted into its own fields and the sampling parameters."""
    given = cast(dict[str, Any], options)
    params = {name: value for name, value in given.items() if name in Params.__struct_fields__}
    fields = {name: value for name, value in given.items() if name not in params}
    check_names("start", fields, StartOptions.__annotations__)
    if fields.get("tools") is not None:
        fields["tools"] = [tool_of(tool) for tool in fields["tools"]]
    if fields.get("tool_choice") is not None:
        fields["tool_choice"] = tool_choice_of(fields["tool_choice"])
    return frame(Start, **({"request_id": uuid.uuid4().hex} | fields), params=plain_params(params))


def plain_params(params: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling parameters as the protocol has them: a type among them is the grammar of its schema."""
    grammar = params.get("grammar")
    if grammar is None or isinstance(grammar, Mapping | Grammar):
        return dict(params)
    return {**params, "grammar": {"json_schema": json_schema(grammar)}}


def explicit_credit(credit: CreditOptions | Credit | None, window: int, interval: int) -> Credit:
    """What a stream starts with: its window, but for pure pull, which decodes nothing unasked."""
    limit = window if window > interval else 0
    if isinstance(credit, Credit):
        return credit
    return _convert({"limit": limit, **(credit or {})}, Credit)


def check_names(method: str, given: Mapping[str, object], known: Mapping[str, object]) -> None:
    """A name misspelt must not pass in silence: the protocol ignores fields that it does not know."""
    for name in given:
        if name not in known:
            raise TypeError(f"{method}() got an unexpected keyword argument {name!r}")


def _convert(fields: dict[str, object], kind: type[S]) -> S:
    try:
        return msgspec.convert(fields, kind)
    except msgspec.ValidationError as error:
        code = "invalid_params" if "$.params" in str(error) else "invalid_frame"
        raise from_code(code, str(error)) from None
