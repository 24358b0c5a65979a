"""The request file of `midstream run`: what it may say, and where it is wrong. Pure.

A JSON array of requests, or one request a line (JSONL). A request is a `start` frame of the protocol without
its `type`, and `stream`, which may be false. `docs/cli.md` says the same for people.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, cast

import msgspec
from msgspec import Meta, Struct

from midstream.options import StartOptions
from midstream.protocol import Messages, Params, RequestId, TokenId
from midstream.record_format import readable


class RequestFileError(Exception):
    """The file cannot be used; the message says where and why."""


class Request(Struct, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    request_id: RequestId | None = None
    messages: Messages | None = None
    prompt: str | list[TokenId] | None = None
    model: str | None = None
    params: Params = msgspec.field(default_factory=Params)
    priority: Annotated[int, Meta(ge=-8, le=8)] = 0
    timeout_ms: Annotated[int, Meta(ge=1, le=86_400_000)] | None = None
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


def parse_requests(text: str) -> list[Request]:
    """Every request of the file. Raises RequestFileError for the first that is not right."""
    requests = [_request(value, place) for place, value in _values(text.removeprefix("\ufeff"))]
    if not requests:
        raise RequestFileError("there are no requests in it")
    names = [request.request_id for request in requests if request.request_id is not None]
    for name in names:
        if names.count(name) > 1:
            raise RequestFileError(f"the request_id {name!r} is there twice: each must be another")
    return requests


def _values(text: str) -> list[tuple[str, Any]]:
    if text.lstrip().startswith("["):
        return [(f"request {number}", value) for number, value in enumerate(_json(text, 1), 1)]
    lines = enumerate(text.split("\n"), 1)
    return [(f"line {number}", _json(line, number)) for number, line in lines if line.strip()]


def _json(text: str, first_line: int) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        line = first_line + error.lineno - 1
        raise RequestFileError(f"line {line}, column {error.colno}: this is not JSON: {error.msg}") from None
    except RecursionError:
        raise RequestFileError(f"line {first_line}: it is nested too deep") from None


def _request(value: Any, place: str) -> Request:
    try:
        request = msgspec.convert(value, Request)
    except msgspec.ValidationError as error:
        raise RequestFileError(f"{place}: {readable(str(error))}") from None
    if (request.messages is None) == (request.prompt is None):
        raise RequestFileError(f"{place}: it must have either `messages` or `prompt`")
    for name in value.get("params", {}):
        if name not in Params.__struct_fields__:
            known = ", ".join(Params.__struct_fields__)
            raise RequestFileError(f"{place}, params: there is no `{name}`; there are {known}")
    return request
