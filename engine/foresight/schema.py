"""How many bytes a JSON schema may force in one run. Behind a value of JSON nothing comes that could be more
of it, so that wherever there is a choice a text may take the shortest way to its end."""

from __future__ import annotations

import json
import re
from typing import Any

from engine.foresight.regex import longest_in_regex
from engine.foresight.run import (
    MANY,
    Expression,
    Rules,
    UnknownError,
    Work,
    in_order,
    one_of,
    repeated,
    rule,
    spelt,
)

_ELSEWHERE = frozenset(("$ref", "allOf", "anyOf", "oneOf"))
_OF_NUMBERS = frozenset(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"))
_OF_OTHERS = "minLength maxLength pattern format items prefixItems minItems maxItems properties required"
_OF_VALUES = _OF_NUMBERS.union(
    _OF_OTHERS.split(), ("patternProperties", "additionalProperties", "const", "enum")
)
_OF_READERS = (
    "title description default examples deprecated readOnly writeOnly $schema $comment $defs definitions"
)
_KNOWN = _ELSEWHERE.union(_OF_VALUES, _OF_READERS.split(), ("type", "x-guidance"))
_WHITESPACE = re.compile(r"\[(?:\\x(?:20|0A|0D|09))+\]\{1,[0-9]+\}")
_SEPARATOR = re.compile("[,:] ?")  # any other may be a number's
SHORT, DIGITS = 16, 700  # bytes of a plain value, with what stands around it; of a number that has bounds
A_CHAR = 6  # bytes, as a string may have it
CLOSED = 2


def longest_in_schema(schema: Any, work: Work) -> int:
    """Raises UnknownError, or what comes of it where it is no schema."""
    return Rules(_Schema(schema, work).rules, work).longest("#")


class _Schema:
    def __init__(self, whole: Any, work: Work) -> None:
        self._whole, self._work = whole, work
        self.rules: dict[str, Expression] = {}
        self._rule("#")

    def _rule(self, name: str) -> Expression:
        if name not in self.rules:
            self.rules[name] = rule(name)  # where it speaks of itself
            self.rules[name] = self._value(self._found(name))
        return rule(name)

    def _found(self, name: str) -> Any:
        head, *keys = name.split("/")
        if head != "#" or "%" in name:
            raise UnknownError
        found = self._whole
        for key in keys:
            if isinstance(found, dict) and any(isinstance(found.get(name), str) for name in ("$id", "id")):
                raise UnknownError  # what is within it speaks of other places
            found = found[int(key) if isinstance(found, list) else key.replace("~1", "/").replace("~0", "~")]
        return found

    def _value(self, schema: Any) -> Expression:
        self._work.more()
        if isinstance(schema, bool):
            return _json(SHORT, is_sure=schema)
        if schema.keys() - _KNOWN or _holds_at_once(schema):
            raise UnknownError
        _check_options(schema.get("x-guidance", {}))
        parts = [self._rule(schema["$ref"])] if "$ref" in schema else []
        parts += [self._value(one) for one in schema.get("allOf", ())]
        parts += [one_of([*map(self._value, schema[key])]) for key in ("anyOf", "oneOf") if key in schema]
        if parts:
            return in_order(parts)
        if "const" in schema or "enum" in schema:
            values = schema.get("enum") or [schema["const"]]
            is_text = schema.get("type") == "string" and all(isinstance(value, str) for value in values)
            is_sure = len(_OF_VALUES & schema.keys()) == 1 and ("type" not in schema or is_text)
            return one_of(
                [_constant(one, is_sure=is_sure and isinstance(one, str | bool | None)) for one in values]
            )
        return self._of_kind(schema)

    def _of_kind(self, schema: Any) -> Expression:
        kinds = schema.get("type", [*self._reads, "null"])
        kinds = {kinds} if isinstance(kinds, str) else {*kinds}
        ways = [read(schema) for name, read in self._reads.items() if name in kinds]
        others, is_free = kinds - self._reads.keys(), _OF_NUMBERS.isdisjoint(schema)
        if others:
            is_sure = is_free or not others.isdisjoint(("null", "boolean"))
            ways.append(_json(SHORT if is_free else DIGITS, is_sure=is_sure))
        return one_of(ways)

    @property
    def _reads(self) -> dict[str, Any]:
        return {"object": self._object, "array": self._array, "string": _string}

    def _object(self, schema: Any) -> Expression:
        named, needed = schema.get("properties", {}), dict.fromkeys(schema.get("required", ()))
        patterns = schema.get("patternProperties", {})
        other = in_order(
            [*map(self._value, patterns.values()), self._value(schema.get("additionalProperties", True))]
        )
        parts = [_json(SHORT, is_sure=True)]
        for name in dict.fromkeys([*named, *needed]):
            pair = in_order(
                [_constant(name, is_sure=True), self._value(named[name]) if name in named else other]
            )
            parts.append(pair if name in needed else _perhaps(pair))
        key = _json(SHORT + sum(A_CHAR * longest_in_regex(pattern) for pattern in patterns))
        others = repeated(in_order([key, other]), 0, is_free=True)
        return in_order([*parts, others, _json(CLOSED, is_sure=True)])

    def _array(self, schema: Any) -> Expression:
        least = schema.get("minItems", 0)
        item = in_order([_json(SHORT, is_sure=True), self._value(schema.get("items", True))])
        # Older drafts do not know of these.
        first = [in_order([self._value(one), item]) for one in schema.get("prefixItems", ())]
        parts = [*first[:least], *map(_perhaps, first[least:])]
        others = repeated(item, max(0, least - len(first)), is_free=True)
        bracket = _json(SHORT, is_sure="maxItems" not in schema)
        return in_order([bracket, *parts, others, _json(CLOSED, is_sure=True)])


def _string(schema: Any) -> Expression:
    """Where no expression says how it is any character may come."""
    expressions = [schema[key] for key in ("pattern", "format") if key in schema]
    if not expressions:
        return _json(SHORT, is_sure="maxLength" not in schema)
    size = sum(map(longest_in_regex, expressions)) + schema.get("minLength", 0)
    return _json(A_CHAR * min(size + DIGITS, schema.get("maxLength", MANY)) + SHORT)


def _perhaps(part: Expression) -> Expression:
    return repeated(part, 0, 1, is_free=True)


def _json(size: int, *, is_sure: bool = False) -> Expression:
    return spelt(size, is_sure=is_sure)


def _constant(value: Any, *, is_sure: bool) -> Expression:
    text = json.dumps(value).replace("\x7f", "\\u007f")
    return _json(len(text) + len(re.findall("[0-9]e", text)) * DIGITS + SHORT, is_sure=is_sure)


def _check_options(options: Any) -> None:
    known = {"item_separator": _SEPARATOR, "key_separator": _SEPARATOR, "whitespace_pattern": _WHITESPACE}
    others = options.keys() - known.keys() - {"whitespace_flexible"}
    if others or not all(known[key].fullmatch(options[key]) for key in known.keys() & options.keys()):
        raise UnknownError


def _holds_at_once(schema: dict[str, Any]) -> bool:
    """Whether a value is held to several schemas or expressions: nobody knows which ways are left then."""
    elsewhere = sum(len(schema["allOf"]) if key == "allOf" else 1 for key in _ELSEWHERE & schema.keys())
    patterns = len(schema.get("patternProperties", ()))
    return (
        elsewhere > 1
        or (elsewhere > 0 and not _OF_VALUES.isdisjoint(schema))
        or patterns > 1
        or (patterns > 0 and "properties" in schema)
        or ("pattern" in schema and "format" in schema)
    )
