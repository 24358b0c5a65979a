"""By which a stream's engine and the gateway that adopts it can tell that they mean the same commands."""

from __future__ import annotations

import zlib

import msgspec
from msgspec.structs import replace

from engine import api

_encode = msgspec.msgpack.Encoder().encode


def digest(command: api.AnyCommand, before: int) -> int:
    """Of a stream's commands with this one: by whatever number a gateway calls it, the same."""
    return zlib.crc32(_encode(replace(command, stream=0)), before)
