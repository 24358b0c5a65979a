"""What is packed to be kept: in as many bytes as it has. An encoder leaves room behind what it has written,
up to half as much again, which nobody sees and nobody counts."""

from __future__ import annotations

import msgspec

_encode = msgspec.msgpack.Encoder().encode


def packed(thing: object) -> bytes:
    return bytes(memoryview(_encode(thing)))
