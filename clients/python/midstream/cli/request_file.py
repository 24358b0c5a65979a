"""The request file of `midstream run`: what it may say, and where it is wrong. Pure.

A JSON array of requests, or one request a line (JSONL). A request is what `Client.start` takes, its sampling
parameters beside the rest or under `params`, and `stream`, which may be false; or it is a line of OpenAI's
batch files. `docs/cli.md` says the same for people.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Meta, Struct

from midstream.options import StartOptions
from midstream.protocol import (
    MAX_MILLISECONDS,
    Grammar,
    Messages,
    Milliseconds,
    Params,
    RequestId,
    TokenId,
    ToolChoice,
    Tools,
)
from midstream.record_format import read_json, readable

S = TypeVar("S", bound=Struct)


class RequestFileError(Exception):
    """The file cannot be used; the message says where and why."""


class Request(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    request_id: RequestId | None = None
    messages: Messages | None = None
    prompt: str | list[TokenId] | None = None
    model: str | None = None
    params: Params = msgspec.field(default_factory=Params)
    tools: Tools | None = None
    tool_choice: ToolChoice = "auto"
    parallel_tool_calls: bool = True
    stream_interval: Annotated[int, Meta(ge=1, le=4096)] = 1
    priority: Annotated[int, Meta(ge=-8, le=8)] = 0
    timeout_ms: Annotated[int, Meta(ge=1, le=MAX_MILLISECONDS)] | None = None
    on_disconnect: Literal["cancel", "pause", "continue"] | None = None
    grace_ms: Milliseconds | None = None
    return_tokens: bool = False
    stream: bool = True

    @property
    def options(self) -> StartOptions:
        """As the keywords of `Client.start`."""
        fields = msgspec.to_builtins(self)
        params = fields.pop("params", {})
        fields.pop("stream", None)
        return cast(StartOptions, fields | params)

    @property
    def title(self) -> str:
        """Its last words, or what it continues."""
        if self.messages is not None:
            return "".join(self.messages[-1].texts)
        return self.prompt if isinstance(self.prompt, str) else f"{len(self.prompt or ())} tokens"


class BatchRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A line of OpenAI's batch files: what is to be asked of which endpoint. What the body may say is the
    server's to know."""

    custom_id: str
    method: Literal["POST"] = "POST"
    url: Annotated[str, Meta(pattern="^/v1/[!-~]+$")]
    body: dict[str, Any]

    @property
    def title(self) -> str:
        messages, prompt = self.body.get("messages"), self.body.get("prompt")
        content = messages[-1] if isinstance(messages, list) and messages else prompt
        content = content.get("content") if isinstance(content, dict) else content
        return content if isinstance(content, str) else self.custom_id


AnyRequest = Request | BatchRequest


def parse_requests(text: str, grammar: Grammar | None = None) -> list[AnyRequest]:
    """Every request of the file; those that name no grammar have this one.

    Raises RequestFileError for the first that is not right.
    """
    requests = [_request(value, place, grammar) for place, value in _values(text.removeprefix("\ufeff"))]
    if not requests:
        raise RequestFileError("there are no requests in it")
    for kind, name in ((Request, "request_id"), (BatchRequest, "custom_id")):
        names = Counter(getattr(request, name) for request in requests if isinstance(request, kind))
        for one, times in names.items():
            if one is not None and times > 1:
                raise RequestFileError(f"the {name} {one!r} is there twice: each must be another")
    return requests


def _values(text: str) -> list[tuple[str, Any]]:
    if text.lstrip().startswith("["):
        values = read_json(text, 1, RequestFileError)
        return [(f"request {number}", value) for number, value in enumerate(values, 1)]
    lines = enumerate(text.split("\n"), 1)
    return [
        (f"line {number}", read_json(line, number, RequestFileError))
        for number, line in lines
        if line.strip()
    ]


def _request(value: Any, place: str, grammar: Grammar | None) -> AnyRequest:
    try:
        msgspec.json.encode(value)
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON may name
        raise RequestFileError(f"{place}: {error}") from None
    if isinstance(value, dict) and "custom_id" in value:
        if grammar is not None:
            raise RequestFileError(
                f"{place}: a line of a batch has its grammar in its body's response_format"
            )
        batch = _convert(value, BatchRequest, place)
        if batch.body.get("stream"):
            raise RequestFileError(f"{place}, body: a line of a batch is answered whole: leave out `stream`")
        return batch
    request = _convert(_gathered(value, place), Request, place)
    if (request.messages is None) == (request.prompt is None):
        raise RequestFileError(f"{place}: it must have either `messages` or `prompt`")
    if grammar is not None and request.params.grammar is UNSET:
        request.params.grammar = grammar
    return request


def _gathered(value: Any, place: str) -> Any:
    """Sampling parameters may stand beside the other fields: they are put where the rest of them is."""
    if not isinstance(value, dict) or not isinstance(value.get("params", {}), dict):
        return value
    named = value.get("params", {})
    for name in named:
        if name not in Params.__struct_fields__:
            known = ", ".join(Params.__struct_fields__)
            raise RequestFileError(f"{place}, params: there is no `{name}`; there are {known}")
        if name in value:
            raise RequestFileError(f"{place}: `{name}` is there twice, beside `params` and in them")
    beside = {name: value[name] for name in value if name in Params.__struct_fields__}
    rest = {name: value[name] for name in value if name not in beside}
    return rest | {"params": named | beside} if beside else rest


def _convert(value: Mapping[str, Any], kind: type[S], place: str) -> S:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        what = readable(str(error))
        field, known, _ = what.partition(": Invalid enum value ")
        words = _words(get_type_hints(kind).get(field)) if known else []
        if words:
            what = f"{field}: it must be {' or '.join(words)}, not {value[field]}"
        raise RequestFileError(f"{place}: {what}") from None


def _words(hint: Any) -> list[str]:
    """Those that a field of this type may be, where it is a word."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    return [word for one in get_args(hint) for word in _words(one)]
