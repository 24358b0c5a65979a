"""What no type describes: schemas, tools and arguments may be any JSON, and a megabyte of it a million
objects, which take a third of a second to make while everybody waits. How many there may be is estimated by
the bytes, before any is made; and MessagePack may have a million numbers as keys.

Pure. It knows encodings, and not what is said in them.
"""

from __future__ import annotations

import re
from math import isinf

from msgspec import MsgspecError, Raw, msgpack

MOST_VALUES = 128 << 10  # as many as the longest tools may have characters: what fits there is not refused

_EDGE = re.compile(rb"[eE][+-]?0*[23][0-9][0-9]")

# In MessagePack, bytes that begin objects, lists and short strings, or go on in a text that is not ASCII.
_BEGINNINGS = bytes([*range(0x80, 0xC0), *range(0xDC, 0xE0)])


def most_values(said: bytes | str, *, text: bool) -> int:
    """As many as there may be at most, about. `text`: in JSON, where each has a comma or a bracket before it,
    and a key, which is dearer, takes four characters more. Of three characters of JSON no more than two can
    be such bytes of MessagePack."""
    data = said.encode(errors="replace") if isinstance(said, str) else said
    if text:
        return _count(data, b",[{:") + 3 * data.count(b":")
    return 3 * _count(data, _BEGINNINGS) // 2


def _count(data: bytes, some: bytes) -> int:
    """Of half a million commas as quickly as of none."""
    return len(data) - len(data.translate(None, some))


def quick_float(written: str) -> float:
    """Of a number in JSON that has no type. The largest and the smallest take msgspec 15 microseconds each,
    and those of one frame seconds."""
    value = float(written)
    if isinf(value):
        raise ValueError("Number out of range")  # as msgspec says it
    return value


def edge_numbers(said: bytes) -> int:
    """About how many of those there are."""
    return len(_EDGE.findall(said))


def too_many(values: int) -> str:
    return f"has {values} values, or nearly, beside text, messages and tokens; it may have {MOST_VALUES}"


# In MessagePack: what may begin a map of a thousand keys and more; how many bytes a value has by its first, 0
# where that is not all that says so; and how many of those that follow say how long it is.
_LARGE_MAP = re.compile(rb"\xde[\x04-\xff]|\xdf")
_FIXED = [1] * 0x80 + [0] * 0x20 + [*range(1, 33)] + [1] * 4 + [0] * 6 + [5, 9, 2, 3, 5, 9, 2, 3, 5, 9]
_SIZES = [*_FIXED, 3, 4, 6, 10, 18, *([0] * 7), *([1] * 0x20)]
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNTS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_MOST_FIELDS = 64  # of a frame, more than there are


def may_have_large_map(packed: bytes) -> bool:
    """Whether MessagePack may have a map of more than a thousand keys."""
    return _LARGE_MAP.search(packed) is not None


def fields_of(packed: bytes) -> dict[str, Raw] | None:
    """Of a map with a few, each said once."""
    first = packed[0]
    count = _count_at(packed, 0) if 0x80 <= first < 0x90 or first in (0xDE, 0xDF) else 0
    if not 0 < count <= _MOST_FIELDS:
        return None
    try:
        fields = msgpack.decode(packed, type=dict[str, Raw])
    except (MsgspecError, ValueError, RecursionError):
        return None
    return fields if len(fields) == count else None


def _count_at(packed: bytes, at: int) -> int:
    length = _COUNTS.get(packed[at])
    return int.from_bytes(packed[at + 1 : at + 1 + length]) if length else packed[at] & 0xF


def wrong_keys(packed: bytes, many: int) -> str | None:
    """Whether MessagePack has a map of more than so many keys, which are a thousand or more, and one of them
    no string: whoever chooses numbers can have each meet all others in a dictionary, which would take seconds
    to make. What is not whole is read as far as it goes."""
    at, values, end = 0, 0, len(packed)
    left, large = 1, False  # values of what is being read, keys among them, and whether it is such a map
    outer: list[tuple[int, bool]] = []
    while at < end:
        while not left:
            if not outer:
                return None
            left, large = outer.pop()
        first = packed[at]
        if large and not left % 2 and not (0xA0 <= first < 0xC0 or 0xD9 <= first < 0xDC):
            return f"has an object of more than {many} keys of which one is no string"
        left -= 1
        if size := _SIZES[first]:
            at += size
        elif length := _LENGTHS.get(first):
            of_type = 0xC7 <= first < 0xCA  # one byte more
            at += 1 + length + of_type + int.from_bytes(packed[at + 1 : at + 1 + length])
        else:
            count = _count_at(packed, at)
            at += 1 + _COUNTS.get(first, 0)
            outer.append((left, large))
            is_map = first < 0x90 or first > 0xDD
            left, large = (2 * count, count > many) if is_map else (count, False)
        values += 1
        if values > MOST_VALUES:
            return too_many(values)
    return None
