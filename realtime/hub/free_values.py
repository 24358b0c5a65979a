"""The free values of a frame, which may be anything that its encoding has: schemas, and arguments as objects.

They are told again to whoever listens, in either encoding, and kept for other gateways. What one of these
cannot say is refused as it comes: later it would be a failure amid everybody's events. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from midstream import protocol
from midstream.protocol import Params, PastAdjust, StreamFrame
from realtime.refusal import Refusal
from realtime.text.chat_template import TextError
from realtime.text.grammar import SCHEMA_BYTES, check_shape

_SCHEMA = "params.grammar.json_schema"


def check(frame: StreamFrame) -> None:
    """Raises Refusal."""
    for schema in _schemas(frame):
        _check(schema, _SCHEMA)
        size = len(msgspec.json.encode(schema))  # a look at each of its values takes a hundred times as long
        if size > SCHEMA_BYTES:
            raise Refusal("invalid_params", f"`{_SCHEMA}` has {size} bytes; it may have {SCHEMA_BYTES}.")
        try:
            check_shape(schema, _SCHEMA)
        except TextError as error:
            raise Refusal("invalid_params", str(error)) from None
    if isinstance(frame, protocol.Amend) and isinstance(frame.arguments, dict):
        _check(frame.arguments, "arguments")


def _schemas(frame: StreamFrame) -> Iterator[Any]:
    params = list[Params]()
    if isinstance(frame, protocol.Start | protocol.Adjust):
        params.append(frame.params)
    if isinstance(frame, protocol.Start) and frame.past is not None:
        params += [step.params for step in frame.past.steering if isinstance(step, PastAdjust)]
    return (
        each.grammar.json_schema for each in params if each.grammar and each.grammar.json_schema is not UNSET
    )


def _check(value: Any, field: str) -> None:
    try:
        msgspec.json.encode(value)
        msgspec.msgpack.encode(value)
    except OverflowError:
        raise Refusal("invalid_params", f"`{field}` has a number of more than 64 bits in it.") from None
    except (TypeError, ValueError, RecursionError):
        raise Refusal("invalid_params", f"`{field}` has something in it that is not JSON.") from None
