"""Values as they may come over the wire, made from types: of a struct each field in turn is filled with much
of what it may have, so that one that is added tomorrow is among them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

WIDE = "\U0001f600"  # takes four bytes, as all that stands with it
FREE: dict[str, Any] = {
    "objects": {},
    "lists": [],
    "objects of lists": {"a": []},
    "lists of objects": [{}],
    "objects with keys": {"some": 1, "more": 2, "keys": 3, "than": 4, "few": 5, "there": 6},
    "numbers": 300,
    "small numbers": 1,
    "floats": 1.5,
    "words": "ab",
    "narrow words": "\xe9t\xe9",
    "wide words": WIDE + "a",
    "texts": "x" * 500,
    "wide texts": "x" * 500 + WIDE,
    "very wide texts": WIDE * 200,
    "truths": True,
    "nothing": None,
}

Variant = tuple[str, Any]  # what it has much of, and the value


def variants(kind: Any, much: int = 8_000) -> Iterator[Variant]:
    """Of a type: values of it that take much, each otherwise; about so many bytes, as they are written."""
    return _variants(inspect.type_info(kind), much)


def _variants(kind: inspect.Type, much: int) -> Iterator[Variant]:
    kind = _said(kind)
    match kind:
        case inspect.StrType():
            yield from _texts(kind, much)
        case inspect.ListType():
            for name, item in _items(kind.item_type, much):
                yield f"{name}s", _many(item, much, kind.max_length)
        case inspect.DictType(key_type=inspect.IntType()):
            yield "biases", {str(token): 0.5 for token in range(100, 100 + min(much // 40, 150))}
        case inspect.DictType() | inspect.AnyType():
            yield from _free(much)
        case inspect.UnionType():
            for option in kind.types:
                yield from _variants(option, much)
        case inspect.StructType():
            yield from _filled(kind, much)


def _said(kind: inspect.Type) -> inspect.Type:
    return kind.type if isinstance(kind, inspect.Metadata) else kind


def _free(much: int) -> Iterator[Variant]:
    for name, value in FREE.items():
        yield name, {"many": _many(value, much)}
    yield "names", {f"name {number}": number for number in range(much // 20)}
    yield "wide names", {f"{WIDE}{number}": number for number in range(much // 20)}
    yield "deep", {"deep": _deep(20)}


def _texts(kind: inspect.StrType, much: int) -> Iterator[Variant]:
    most = min(kind.max_length or much, much)
    yield "text", "x" * most
    if kind.pattern is None and most > 1:
        yield "narrow text", "\xe9" * most
        yield "wide text", "x" * (most - 1) + WIDE
        yield "very wide text", WIDE * most
        yield "little text", "ab"


def _items(kind: inspect.Type, much: int) -> Iterator[Variant]:
    """Of a list: the least that each may be, too."""
    options = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    for option in options:
        yield "least", least(option)
        yield from _variants(option, much)


def _many(value: Any, much: int, most: int | None = None) -> list[Any]:
    count = max(1, much // max(2, len(msgspec.json.encode(value))))
    return [value] * min(count, most or count)


def _deep(depth: int) -> Any:
    return [[_deep(depth - 1)], 1] if depth else "end"


def _filled(kind: inspect.StructType, much: int) -> Iterator[Variant]:
    """Each field alone, and then all of them."""
    begun, everything = least(kind), dict[str, Any]()
    for field in kind.fields:
        for name, value in _variants(field.type, much):
            everything.setdefault(field.encode_name, value)
            yield f"{field.encode_name}: {name}", begun | {field.encode_name: value}
        for option in field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,):
            if isinstance(option, inspect.IntType | inspect.FloatType):
                everything.setdefault(field.encode_name, least(option))
    yield "everything", begun | everything


def least(kind: inspect.Type) -> Any:
    """The least that a value can be, as it is written."""
    match _said(kind):
        case inspect.StructType(fields=fields, tag_field=tag_field, tag=tag):
            tagged = {} if tag_field is None else {tag_field: tag}
            return tagged | {one.encode_name: least(one.type) for one in fields if one.required}
        case inspect.ListType(item_type=item, min_length=few):
            return [least(item)] * (few or 0)
        case inspect.TupleType(item_types=items):
            return [least(item) for item in items]
        case inspect.UnionType(types=options):
            return least(next(one for one in options if not isinstance(one, inspect.NoneType)))
        case inspect.DictType():
            return {}
        case plain:
            return _least_plain(plain)


def _least_plain(kind: inspect.Type) -> Any:
    match kind:
        case inspect.StrType():
            return "a" * (kind.min_length or 1)
        case inspect.IntType():
            return min(kind.le or 300, max(kind.ge or 0, 300))
        case inspect.FloatType():
            return min(kind.le or 1.0, 0.9)
        case inspect.BoolType():
            return False
        case inspect.LiteralType():
            return kind.values[0]
    return None
