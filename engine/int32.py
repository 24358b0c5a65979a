"""Tokens as bytes: 32 bits each, the least byte first, on whatever machine."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterable


def int32(tokens: Iterable[int]) -> bytes:
    numbers = array("i", tokens)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()


def of_int32(data: bytes) -> array[int]:
    numbers = array("i", data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers
