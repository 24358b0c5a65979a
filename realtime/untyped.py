"""What no type describes: schemas, tools and arguments may be any JSON, and a megabyte of it a million
objects, which take a third of a second to make while everybody waits. How many there may be is estimated by
the bytes, before any is made; and MessagePack may have a million numbers as keys.

Pure. It knows encodings, and not what is said in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from math import isinf

from msgspec import MsgspecError, Raw, msgpack

MOST_VALUES = 128 << 10  # as many as the longest tools may have characters: what fits there is not refused

# What numbers are written with in JSON, every digit as a zero: so they are counted in a tenth of the time.
_WRITTEN = bytes.maketrans(b"123456789+E", b"000000000-e")
_FLOAT = 3  # values more: so much longer it takes to read one

# In MessagePack, bytes that begin objects, lists and short strings, or go on in a text that is not ASCII.
_BEGINNINGS = bytes([*range(0x80, 0xC0), *range(0xDC, 0xE0)])


def most_values(said: bytes | str, beside: Iterable[bytes] = (), *, text: bool) -> int:
    """As many as there may be at most, about, without what stands in the parts `beside`. `text`: in JSON,
    where each has a comma or a bracket before it, and a key, which is dearer, takes four characters more, as
    does a number with a point or an exponent. Of three characters of JSON no more than two can be such bytes
    of MessagePack."""
    data = said.encode(errors="replace") if isinstance(said, str) else said
    parts = list(beside)
    if not text:
        return 3 * (_count(data, _BEGINNINGS) - sum(_count(part, _BEGINNINGS) for part in parts)) // 2
    values = _count_json(data) - sum(map(_count_json, parts))
    if values > MOST_VALUES // (1 + _FLOAT):  # or all might be floats
        values += _FLOAT * (_floats(data) - sum(map(_floats, parts)))
    return values


def _count_json(data: bytes) -> int:
    return _count(data, b",[{:") + 3 * data.count(b":")


def _floats(data: bytes) -> int:
    written = data.translate(_WRITTEN)
    return sum(map(written.count, (b"0.0", b"0e0", b"0e-0")))


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
    """How many have exponents of three digits, as those have, or of more."""
    written = said.translate(_WRITTEN)
    return written.count(b"0e000") + written.count(b"0e-000")


def too_many(values: int) -> str:
    return f"has {values} values, or nearly, beside text, messages and tokens; it may have {MOST_VALUES}"


# In MessagePack: what may begin a map of a thousand keys and more; by its first byte, how many bytes a value
# has, 0 where that is not all that says so, and how many values there are in it; and how many of the bytes
# that follow say how long it is.
_LARGE_MAP = re.compile(rb"\xde[\x04-\xff]|\xdf")
_FIXED = [*([1] * 0xA0), *range(1, 33), *([1] * 4), *([0] * 6), 5, 9, 2, 3, 5, 9, 2, 3, 5, 9]
_SIZES = [*_FIXED, 3, 4, 6, 10, 18, *([0] * 7), *([1] * 0x20)]
_WITHIN = [*([0] * 0x80), *range(0, 32, 2), *range(16), *([0] * 0x60)]
_LENGTHS = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xC7: 1, 0xC8: 2, 0xC9: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
_COUNTS = {0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_LONG = 2  # values more, of what is long or large: so much longer it takes to pass over it
MOST_PASSED = MOST_VALUES // 2  # one by one, which takes longer than to make them: as many as fit into tools
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
    """Whether MessagePack, of one value or several, has a map of more than so many keys, which are a thousand
    or more, and one of them no string: whoever chooses numbers can have each meet all others in a dictionary,
    which would take seconds to make. What is not whole is read as far as it goes."""
    at, values, end = 0, 0, len(packed)
    keys, due = 0, end + 1  # of such a map that is being read, and the values before the next of them
    outer: list[tuple[int, int]] = []
    while at < end:
        first = packed[at]
        if not due:
            while not (keys or due):
                keys, due = outer.pop()
            if not due:
                if not (0xA0 <= first < 0xC0 or 0xD9 <= first < 0xDC):
                    return f"has an object of more than {many} keys of which one is no string"
                keys, due = keys - 1, 2
        due -= 1
        values += 1
        if size := _SIZES[first]:
            at += size
            due += _WITHIN[first]
        elif length := _LENGTHS.get(first):
            of_type = 0xC7 <= first < 0xCA  # one byte more
            at += 1 + length + of_type + int.from_bytes(packed[at + 1 : at + 1 + length])
            values += _LONG
        else:
            count = _count_at(packed, at)
            at += 1 + _COUNTS[first]
            values += _LONG
            is_map = first > 0xDD
            if is_map and count > many:
                outer.append((keys, due))
                keys, due = count, 0
            else:
                due += 2 * count if is_map else count
        if values > MOST_PASSED:
            return (
                f"has more than {MOST_PASSED} values, and an object of more than {many} keys or what looks so"
            )
    return None
