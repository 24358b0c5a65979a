"""How the messages of `engine/api.py` go through gRPC: by which method, and as what bytes.

`listening/engine_link.proto` says it to those who make a client from it. Its two messages have one field, and
are written and read here, so that neither side needs more than gRPC itself.
"""

from __future__ import annotations

from collections.abc import Iterable

SERVICE, METHOD = "midstream.engine.v1.EngineLink", "Join"

_TOKEN, _SCHEME = "authorization", "Bearer "
_FIELD = b"\x0a"  # number 1, of bytes
_LONGEST_LENGTH = 10  # bytes, as protobuf has it


def showing(token: str) -> list[tuple[str, str]]:
    """The metadata that a call begins with."""
    return [(_TOKEN, _SCHEME + token)]


def shown(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """The token in them, if there is one."""
    return str(dict(metadata).get(_TOKEN, "")).removeprefix(_SCHEME)


def wrapped(message: bytes) -> bytes:
    """As protobuf's message with one field of bytes."""
    length, left = bytearray(), len(message)
    while left > 0x7F:
        length.append(left & 0x7F | 0x80)
        left >>= 7
    length.append(left)
    return b"".join((_FIELD, length, message))


def unwrapped(data: bytes) -> bytes:
    """ValueError where it is no such message."""
    length, at = 0, 1
    while at < len(data) and at <= _LONGEST_LENGTH:
        length |= (data[at] & 0x7F) << 7 * (at - 1)
        at += 1
        if data[at - 1] <= 0x7F:
            break
    if data[:1] != _FIELD or length == 0 or len(data) - at != length:
        raise ValueError("it is no message with one field of bytes")
    return data[at:]
