"""The AsyncAPI 3 document of the WebSocket, made from the very types that decode and encode it.

It knows the protocol's types and how AsyncAPI writes them down; it serves nothing.
"""

from __future__ import annotations

import inspect
from typing import Any, get_args

import msgspec

from midstream import protocol

_REF = "#/components/schemas/{name}"
_ABOUT = (
    "One WebSocket carries any number of streams of model output. While a stream runs, its client says how "
    "much it is ready for, pauses and resumes it, changes its sampling parameters, puts text into it, takes "
    "output back, or ends it; every answer says at which token it took effect."
)


def document(version: int) -> dict[str, Any]:
    frames, events = get_args(protocol.ClientFrame), get_args(protocol.ServerEvent)
    _, schemas = msgspec.json.schema_components([*frames, *events], ref_template=_REF)
    messages = {_name(kind): _message(kind) for kind in (*frames, *events)}
    return {
        "asyncapi": "3.0.0",
        "info": {
            "title": "Midstream",
            "version": f"{version}.0.0",
            "description": _ABOUT,
            "license": {"name": "Apache-2.0", "url": "https://www.apache.org/licenses/LICENSE-2.0"},
        },
        "defaultContentType": "application/json",
        "channels": {"realtime": _channel(list(messages))},
        "operations": {
            "hear": _operation("receive", "What a client may send.", frames),
            "say": _operation("send", "What the server sends.", events),
        },
        "components": {"messages": messages, "schemas": _with_named_discriminators(schemas)},
    }


def _channel(names: list[str]) -> dict[str, Any]:
    offered = {"type": "string", "enum": list(protocol.SUBPROTOCOLS), "default": protocol.JSON_SUBPROTOCOL}
    return {
        "address": "/v1/realtime",
        "description": "One object a message: JSON or MessagePack, by the subprotocol that is offered.",
        "messages": {name: {"$ref": f"#/components/messages/{name}"} for name in names},
        "bindings": {
            "ws": {
                "method": "GET",
                "headers": {"type": "object", "properties": {"Sec-WebSocket-Protocol": offered}},
            }
        },
    }


def _operation(action: str, summary: str, kinds: tuple[type, ...]) -> dict[str, Any]:
    return {
        "action": action,
        "summary": summary,
        "channel": {"$ref": "#/channels/realtime"},
        "messages": [{"$ref": f"#/channels/realtime/messages/{_name(kind)}"} for kind in kinds],
    }


def _message(kind: type) -> dict[str, Any]:
    message = {
        "name": _tag(kind),
        "title": kind.__name__,
        "payload": {"$ref": _REF.format(name=kind.__name__)},
    }
    said = kind.__dict__.get("__doc__")
    return message | ({"description": inspect.cleandoc(said)} if said else {})


def _with_named_discriminators(schema: Any) -> Any:
    """AsyncAPI has the property's name where OpenAPI has an object."""
    if isinstance(schema, list):
        return [_with_named_discriminators(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: _with_named_discriminators(value) for key, value in schema.items()}
    if isinstance(told := plain.get("discriminator"), dict) and "propertyName" in told:
        plain["discriminator"] = told["propertyName"]
    return plain


def _name(kind: type) -> str:
    return f"{'frame' if issubclass(kind, protocol.Frame) else 'event'}_{_tag(kind)}"


def _tag(kind: type) -> str:
    return str(kind.__struct_config__.tag)  # type: ignore[attr-defined]
