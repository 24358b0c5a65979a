"""The JSON Schemas of what is asked and answered over HTTP, made from the very types that decode and encode
it.

It knows the endpoints' types and how OpenAPI refers to a schema; it knows no path. The protocol's own types
stand under `stream.`, since OpenAI's have some of their names.
"""

from __future__ import annotations

import operator
from functools import reduce
from typing import Any, Literal, get_args

import msgspec

from midstream import protocol
from realtime.http.client_secret_endpoint import ClientSecretRequest, ClientSecretResponse
from realtime.http.follow_and_steer_endpoint import NOT_STEERING
from realtime.http.model_endpoint import ModelRequest
from realtime.http.openai.requests import ChatBody, TextBody
from realtime.http.openai.response_types import (
    ChatChoice,
    ChatChunkChoice,
    CompletionObject,
    Model,
    ModelList,
    TextChoice,
)
from realtime.observability.listing import Listing
from realtime.stream.outbox import OutgoingEvent

_AT = "#/components/schemas/"
_OF_STREAMS = "stream."

Schema = dict[str, Any]


class ChatCompletion(CompletionObject, kw_only=True):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]  # type: ignore[assignment]  # one kind: nobody writes to it through `CompletionObject`


class ChatCompletionChunk(CompletionObject, kw_only=True):
    object: Literal["chat.completion.chunk"]
    choices: list[ChatChunkChoice]  # type: ignore[assignment]  # see above


class Completion(CompletionObject, kw_only=True):
    """In chunks it has the same form as whole."""

    object: Literal["text_completion"]
    choices: list[TextChoice]  # type: ignore[assignment]  # see above


_BODIES = [
    ChatBody,
    TextBody,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    ModelList,
    Model,
    ClientSecretRequest,
    ClientSecretResponse,
    Listing,
    ModelRequest,
    protocol.CatalogModel,
]
_STEERING = [kind for kind in get_args(protocol.StreamFrame) if not issubclass(kind, NOT_STEERING)]
_STEERED = [
    protocol.Paused,
    protocol.Resumed,
    protocol.Adjusted,
    protocol.Injected,
    protocol.Approved,
    protocol.Rewound,
    protocol.Final,
]
_FOLLOWED = [kind for kind in get_args(protocol.ServerEvent) if issubclass(kind, OutgoingEvent)]
_PROMPTS = (str, list[str], list[protocol.TokenId], list[list[protocol.TokenId]])


def ref(name: str) -> Schema:
    return {"$ref": _AT + name}


def schemas() -> dict[str, Schema]:
    _, bodies = msgspec.json.schema_components(_BODIES, ref_template=_AT + "{name}")
    bodies["TextBody"]["properties"]["prompt"] = {"anyOf": [msgspec.json.schema(kind) for kind in _PROMPTS]}
    return bodies | _of_streams()


def _of_streams() -> dict[str, Schema]:
    unions = {"Frame": _STEERING, "Reply": _STEERED, "Event": _FOLLOWED}
    told, kinds = msgspec.json.schema_components(
        [reduce(operator.or_, union) for union in unions.values()], ref_template=_AT + _OF_STREAMS + "{name}"
    )
    for frame in _STEERING:
        del kinds[frame.__name__]["properties"]["request_id"]  # the path says it
        kinds[frame.__name__]["required"].remove("request_id")
    named = kinds | dict(zip(unions, told, strict=True))
    return {_OF_STREAMS + name: schema for name, schema in named.items()}
