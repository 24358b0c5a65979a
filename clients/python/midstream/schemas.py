"""JSON schemas of Python types, and values of these types out of JSON.

A type is whatever msgspec knows (its own structs, dataclasses, TypedDicts, NamedTuples, enums, containers,
plain types), or a pydantic model, which is known by its methods: pydantic itself is not imported. Objects are
closed: what a model writes has the fields that are named, and no other.
"""

from __future__ import annotations

from typing import Any, TypeVar, cast, get_origin

import msgspec

from midstream.errors import ParseError

T = TypeVar("T")
Schema = dict[str, Any]
_TEMPLATE = "#/$defs/{name}"


def json_schema(kind: Any) -> Schema:
    """The schema of a type, whole in itself. Raises TypeError for a type that JSON cannot spell."""
    definitions: Schema = {}

    def of_model(model: type) -> Schema:
        if not _is_pydantic(model):
            raise TypeError(f"{model!r} is no type of which a JSON schema can be made")
        schema: Schema = model.model_json_schema(ref_template=_TEMPLATE.replace("name", "model"))  # type: ignore[attr-defined]
        definitions.update(schema.pop("$defs", {}))
        return schema

    (schema,), named = msgspec.json.schema_components((kind,), schema_hook=of_model, ref_template=_TEMPLATE)
    definitions |= named
    name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
    if name in definitions and not _refers(definitions, name):
        schema = definitions.pop(name)
    whole = schema | ({"$defs": definitions} if definitions else {})
    return cast(Schema, _closed(whole))


def from_json(text: str | bytes, kind: type[T]) -> T:
    """A value of this type. Raises ValueError where the text is none; what is wrong is in its words."""
    try:
        return msgspec.json.decode(text, type=kind, dec_hook=_validated)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def answer_of(text: str, kind: type[T], finish_reason: str) -> T:
    """A value of this type that a model has written. Raises ParseError where that is none."""
    try:
        return from_json(text, kind)
    except ValueError as error:
        name = getattr(kind, "__name__", str(kind))
        why = str(error) if finish_reason == "stop" else f"it ended before it was whole ({finish_reason})"
        message = f"the answer is no {name}: {why}"
        raise ParseError(message, text=text, finish_reason=finish_reason) from None


def from_value(value: object, kind: type[T]) -> T:
    """The same of JSON that has been read already."""
    return msgspec.convert(value, kind, dec_hook=_validated)


def to_json(value: object) -> str:
    """As JSON, whatever of it is a pydantic model."""
    return msgspec.json.encode(value, enc_hook=_dumped).decode()


def result_text(result: object) -> str:
    """As a model is told it: a text as it is, of whatever kind of text, anything else as JSON."""
    return str.__str__(result) if isinstance(result, str) else to_json(result)


def _validated(kind: type, value: object) -> object:
    if not _is_pydantic(kind):
        raise TypeError(f"{kind!r} is no type that can be read from JSON")
    return kind.model_validate(value)  # type: ignore[attr-defined]


def _dumped(value: object) -> object:
    if not _is_pydantic(type(value)):
        raise TypeError(f"{value!r} cannot be written as JSON")
    return value.model_dump(mode="json")  # type: ignore[attr-defined]


def _is_pydantic(kind: object) -> bool:
    return isinstance(get_origin(kind) or kind, type) and hasattr(kind, "model_json_schema")


def _refers(schema: object, name: str) -> bool:
    """Whether anything in here refers to this definition, as that of a tree does to itself."""
    if isinstance(schema, dict):
        return schema.get("$ref") == f"#/$defs/{name}" or any(_refers(one, name) for one in schema.values())
    return isinstance(schema, list) and any(_refers(one, name) for one in schema)


def _closed(schema: object) -> object:
    """The same, with no room for properties that it does not name."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    literal = {"default", "const", "enum", "examples"}  # values, and no schemas, whatever they look like
    closed = {name: one if name in literal else _closed(one) for name, one in schema.items()}
    if schema.get("type") == "object" and "properties" in schema:
        closed.setdefault("additionalProperties", False)
    return closed
