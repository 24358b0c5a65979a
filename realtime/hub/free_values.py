"""The free values of a frame, which may be anything that its encoding has: schemas, and arguments as objects.

They are told again to whoever listens, in either encoding, and kept for other gateways. What one of these
cannot say is refused before it is taken: later it would be a failure amid everybody's events. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import UNSET

from midstream import protocol
from midstream.protocol import Params, Past, PastAdjust, StreamFrame
from realtime.refusal import Refusal
from realtime.stream.amendment import LONGEST
from realtime.text.chat_template import TextError
from realtime.text.grammar import DEPTH, SCHEMA_BYTES, check_shape

BYTES_A_CHARACTER = 4  # at most, in UTF-8
_SCHEMA = "params.grammar.json_schema"


def check(frame: StreamFrame) -> None:
    """But for a past, which may have many. Raises Refusal."""
    if isinstance(frame, protocol.Start | protocol.Adjust):
        _check_schemas([frame.params])
    if isinstance(frame, protocol.Amend) and isinstance(frame.arguments, dict):
        _check_arguments(frame.arguments)


def _check_arguments(arguments: dict[str, Any]) -> None:
    """What is much too long is not written as text, which takes four times as long as to measure it."""
    size = _size(arguments, "arguments")
    if size > BYTES_A_CHARACTER * LONGEST:
        raise Refusal(
            "invalid_params",
            f"`arguments` have {size} bytes as JSON; an amend may have {LONGEST} characters: rewind, and "
            "inject them.",
        )


def check_past(past: Past) -> None:
    """Raises Refusal."""
    _check_schemas(step.params for step in past.steering if isinstance(step, PastAdjust))


def _check_schemas(params: Iterable[Params]) -> None:
    for each in params:
        if each.grammar and each.grammar.json_schema is not UNSET:
            _check_schema(each.grammar.json_schema)


def _check_schema(schema: Any) -> None:
    """One that is too long is not looked into."""
    size = _size(schema, _SCHEMA)
    if size > SCHEMA_BYTES:
        raise Refusal("invalid_params", f"`{_SCHEMA}` has {size} bytes; it may have {SCHEMA_BYTES}.")
    try:
        check_shape(schema, _SCHEMA)
    except TextError as error:
        raise Refusal("invalid_params", str(error)) from None


def _size(value: Any, field: str) -> int:
    """In bytes, as JSON."""
    try:
        msgspec.msgpack.encode(value)
        return len(msgspec.json.encode(value))
    except RecursionError:
        raise Refusal("invalid_params", f"`{field}` is nested deeper than {DEPTH} levels.") from None
    except OverflowError:
        raise Refusal("invalid_params", f"`{field}` has a number of more than 64 bits in it.") from None
    except (TypeError, ValueError):
        raise Refusal("invalid_params", f"`{field}` has something in it that is not JSON.") from None
