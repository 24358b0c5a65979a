"""What no type describes: schemas, tools and arguments may be any JSON, and a megabyte of it a million
objects, which take a third of a second to make while everybody waits. How many there may be is estimated by
the bytes, before any is made.

Pure. It knows encodings, and not what is said in them.
"""

from __future__ import annotations

MOST_VALUES = 128 << 10  # as many as the longest tools may have characters: what fits there is not refused

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


def too_many(values: int) -> str:
    return f"has {values} values, or nearly, beside text, messages and tokens; it may have {MOST_VALUES}"
