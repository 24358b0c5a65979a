"""What things weigh: about how many bytes a frame, an event or parameters take in memory, read off their
types, so that a field which is added weighs from then on.

A text that is told is kept as UTF-8 beside itself, and takes more from then on: whoever puts a weight on an
account keeps it, and takes off the same, whatever the thing weighs by then. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from sys import getsizeof
from typing import Any, get_args

import msgspec
from msgspec import Struct, inspect

from midstream.protocol import Grammar, Ready, ServerEvent, StreamFrame

# As measured: a place in a list, with some that are spare, and a number there or in a field.
SLOT_BYTES, NUMBER_BYTES = 9, 28
TOKEN_ID_BYTES = SLOT_BYTES + NUMBER_BYTES
TEXT_BYTES, STRUCT_BYTES, LIST_BYTES, PAIR_BYTES, BIAS_BYTES = 49, 16, 64, 56, 120
GRAMMAR_BYTES = 400  # of what is kept with one
# Of what is JSON: a character, and beside that what stands for a value, a quote, a name, a list, an object.
WRITTEN_BYTES = 5
SIGNS = {b",": 32, b'"': 24, b":": 80, b"[": 64, b"{": 128}
UNWRITTEN_BYTES = 8 << 20  # of what JSON may be unable to say: about as much as what fills a long frame
LONGEST_GRAMMAR = 64 << 10  # characters

Weigh = Callable[[Any], int]


def weight(thing: Struct) -> int:
    return _weigher(type(thing))(thing)


def text_bytes(text: str) -> int:
    """Of what is not ASCII with what is added once it is told."""
    return TEXT_BYTES + len(text) if text.isascii() else 5 * getsizeof(text) // 2


def value_bytes(value: object) -> int:
    """Of what JSON can say. What it cannot is refused, perhaps only when its turn comes."""
    try:
        written = msgspec.json.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return UNWRITTEN_BYTES
    return WRITTEN_BYTES * len(written) + sum(each * written.count(sign) for sign, each in SIGNS.items())


def grammar_length(grammar: Grammar) -> int:
    """About how many characters it has, as it would be written."""
    return _measured(grammar)[0]


def _grammar_bytes(grammar: Grammar) -> int:
    return _measured(grammar)[1]


def _measured(grammar: Grammar) -> tuple[int, int]:
    """Looked at once, and kept with it: it stands in many parameters, one after the other."""
    known: tuple[int, int] | None = vars(grammar).get("measured")
    if known is None:
        size = GRAMMAR_BYTES + _of_struct(Grammar)(grammar)
        known = vars(grammar)["measured"] = _length(grammar), size
    return known


def _length(grammar: Grammar) -> int:
    """What cannot be written is as long as what is too long."""
    try:
        return len(msgspec.json.encode(grammar))
    except (TypeError, ValueError, OverflowError, RecursionError):
        return LONGEST_GRAMMAR + 1


# -- by types ------------------------------------------------------------------------------------------


@cache
def _weigher(kind: type) -> Weigh:
    return _grammar_bytes if kind is Grammar else _of_struct(kind)


@cache
def _of_struct(kind: type) -> Weigh:
    info = inspect.type_info(kind)
    assert isinstance(info, inspect.StructType)
    least = STRUCT_BYTES + kind.__basicsize__ + sum(_number_bytes(field.type) for field in info.fields)
    fields = [(field.name, weighers.get) for field in info.fields if (weighers := _weighers(field.type))]
    if not fields:
        return lambda _: least

    def weigh(struct: object) -> int:
        size = least
        for name, weigher in fields:
            value = getattr(struct, name)
            if more := weigher(type(value)):
                size += more(value)
        return size

    return weigh


def _weighers(kind: inspect.Type) -> Mapping[type, Weigh]:
    """By the type of a value: what it takes beside its place, and a number. Raises TypeError where a type of
    fields is none of these: whoever adds one says here what it weighs."""
    match kind:
        case inspect.Metadata(type=inner):
            return _weighers(inner)
        case inspect.UnionType(types=options):
            return {cls: weigh for option in options for cls, weigh in _weighers(option).items()}
        case inspect.StrType():
            return {str: text_bytes}
        case inspect.ListType(item_type=item):
            return {list: _of_list(item)}
        case inspect.DictType(key_type=inspect.IntType()):
            return {dict: lambda biases: LIST_BYTES + BIAS_BYTES * len(biases)}
        case inspect.DictType(value_type=inspect.AnyType()):
            return {dict: value_bytes}
        case inspect.StructType(cls=cls):
            return {cls: _weigher(cls)}
        case inspect.TupleType() if not any(map(_weighers, kind.item_types)):
            return {}
        case (
            inspect.IntType()
            | inspect.FloatType()
            | inspect.BoolType()
            | inspect.NoneType()
            | inspect.LiteralType()
        ):
            return {}
    raise TypeError(kind)


def _of_list(item: inspect.Type) -> Weigh:
    each, weighers = SLOT_BYTES + _number_bytes(item), _weighers(item)
    if not weighers:
        return lambda values: LIST_BYTES + each * len(values)
    if len(weighers) == 1:
        (weigh,) = weighers.values()
        return lambda values: LIST_BYTES + each * len(values) + sum(map(weigh, values))
    return lambda values: (
        LIST_BYTES + each * len(values) + sum(weighers[type(value)](value) for value in values)
    )


def _number_bytes(kind: inspect.Type) -> int:
    """Of what may be a number, or is a few of them."""
    match kind:
        case inspect.IntType() | inspect.FloatType():
            return NUMBER_BYTES
        case inspect.UnionType(types=options):
            return max(map(_number_bytes, options))
        case inspect.TupleType(item_types=items):
            return PAIR_BYTES + sum(map(_number_bytes, items))
    return 0


# Now, and not with the first of each, for which everybody would wait: it takes some ms.
for _kind in get_args(StreamFrame | ServerEvent):
    if _kind is not Ready:  # which no stream tells
        _weigher(_kind)
