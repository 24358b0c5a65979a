"""The grammar of a call's arguments, by the schema of its tool: as its format spells them.

Where that is JSON the matcher knows the schema itself. Elsewhere arguments are written one by one, in the
schema's order, and this says how each kind of value is. What a spelling has no room for is refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from realtime.tools.definitions import PLACES, Definitions, Schema, UnspellableError
from realtime.tools.formats import ToolFormat
from realtime.tools.lark import ANY, Lark, one_of, quoted, slashed
from realtime.tools.offered import SAYS_NOTHING, is_text, is_word
from realtime.tools.same_json import same_value

_KEY = "/[a-zA-Z_][a-zA-Z0-9_]{0,63}/"  # of an argument that no schema names
# What is read here of an object that is written in parts.
_OF_OBJECTS = frozenset({"type", "properties", "required", "additionalProperties", "x-guidance", *PLACES})
_OF_TEXTS = frozenset({"type", "minLength", "maxLength", "pattern"})
_OF_CHOICES = frozenset({"type", "enum", "const"})
_KINDS = ("string", "number", "integer", "boolean", "null", "array", "object")
_OF_LISTS = frozenset({"type", "items", "minItems", "maxItems"})
_PLAIN = ("number", "integer", "boolean", "null")
_OF_OTHERS = (_OF_OBJECTS | _OF_TEXTS | _OF_LISTS) - {"type", "x-guidance"}  # of no plain value


class ArgumentGrammar:
    """Of one model's format. `schema`: the tool's own, whose definitions its parts refer to."""

    def __init__(self, tools: ToolFormat, lark: Lark, schema: Schema) -> None:
        self._tools = tools
        self._lark = lark
        self._definitions = Definitions(schema)
        self._schema = schema
        self._named: dict[str, str] = {}  # rules of definitions, which may speak of themselves

    def rule(self) -> str:
        try:
            return self._rule()
        except (AttributeError, KeyError, RecursionError, TypeError, ValueError):
            raise UnspellableError("they are no JSON schema") from None

    def _rule(self) -> str:
        kinds = self._schema.get("type", "object")
        if kinds != "object" and "object" not in kinds:
            raise UnspellableError("they are no object")
        if self._tools.body in ("json", "named"):
            return self._lark.json({**self._schema, "type": "object"})
        return self._lark.rule(self._object(self._schema, self._argument, self._tools.writing.comma))

    def _argument(self, key: str, schema: Any) -> str:
        """`key`: as it stands in a rule."""
        spelt = self._tools.writing.argument.replace("IS_TEXT", "true" if is_text(schema) else "false")
        before, _, rest = spelt.partition("KEY")
        between, _, behind = rest.partition("VALUE")
        match self._tools.body:
            case "tagged" if is_text(schema):
                value = self._text(schema, behind.rstrip())
                behind = behind[len(behind.rstrip()) :]
            case "tagged":
                value = self._json(schema)
            case "pythonic":
                value = self._python(schema)
            case _:
                value = self._braced(schema)
        parts = (self._written(before), key, self._written(between), value, self._written(behind))
        return " ".join(filter(None, parts))

    def _written(self, text: str) -> str:
        return self._lark.written(text)

    # -- objects, whose parts are written one by one -------------------------------------------------

    def _object(self, schema: Schema, pair: Callable[[str, Any], str], comma: str) -> str:
        """What stands between its braces."""
        self._check(schema, _OF_OBJECTS)
        properties = schema.get("properties") or {}
        required = dict.fromkeys(schema.get("required") or ())  # each key is looked for in it
        properties = {**properties, **{key: True for key in required if key not in properties}}
        others = schema.get("additionalProperties", True)
        if not properties and others is not False:
            any_pair = self._lark.rule(pair(_KEY, others))  # said twice, and within it another may be
            more = f"({quoted(comma)} {any_pair})*" if comma else f"({any_pair})*"
            return f"({any_pair} {more})?" if comma else more
        pairs = [(pair(self._key(key), value), key in required) for key, value in properties.items()]
        return self._sequence(pairs, comma)

    def _sequence(self, pairs: list[tuple[str, bool]], comma: str) -> str:
        """In this order, those that are not required perhaps, with commas between them."""
        if not comma:
            return " ".join(one if needed else f"({one})?" for one, needed in pairs)
        first, more = "", ""  # what may follow where nothing is written yet, and where something is
        for one, needed in reversed(pairs):
            begun = f"{one} {more}".strip()
            following = f"{quoted(comma)} {begun}"
            first = self._lark.rule(begun) if needed else self._perhaps(begun, first)
            more = self._lark.rule(following) if needed else self._perhaps(following, more)
        return first

    def _perhaps(self, one: str, other: str) -> str:
        return self._lark.rule(f"{one} | {other}" if other else f"({one})?")

    def _key(self, key: str) -> str:
        ends = (self._tools.tags.key_end, self._tools.tags.other_key_end)
        fits = {
            "pythonic": key.isidentifier(),
            "braced": bool(re.fullmatch(r"[^\s}:][^:]*", key)) and self._tools.quote not in key,
            "tagged": key == key.strip() and bool(key) and not any(end in key for end in ends if end),
        }
        if not fits[self._tools.body] or len(key) > 400:
            raise UnspellableError(f"this model has no way to write the key {quoted(key)}")
        return quoted(key)

    # -- values ------------------------------------------------------------------------------------

    def _json(self, schema: Any) -> str:
        if isinstance(schema, bool):
            schema = {} if schema else {"enum": []}
        return self._lark.json(self._definitions.beside(schema))

    def _python(self, schema: Any) -> str:
        """Words as Python has them, and all else as JSON, which Python reads."""
        if is_word(schema):
            return '("True" | "False")' if schema["type"] == "boolean" else '"None"'
        return self._json(schema)

    def _text(self, schema: Any, end: str) -> str:
        """A text that stands as it is, and what ends it."""
        schema = schema if isinstance(schema, Mapping) else {}
        if "enum" in schema or "const" in schema:
            return one_of([_before(choice, self._written(end)) for choice in self._choices(schema)])
        self._check(schema, _OF_TEXTS)
        least, most = _bounds(schema, "minLength", "maxLength")
        bounds = [f"/(?s:.{{{least},{most}}})/"] if least or most != "" else []
        patterns = [_searched(schema["pattern"])] if "pattern" in schema else []
        body = " & ".join(bounds + patterns)
        return self._lark.until(end, f"({body})" if body else ANY, empty=not (least or patterns))

    # -- values whose texts stand between delimiters of the model's own ------------------------------

    def _braced(self, schema: Any) -> str:
        if not isinstance(schema, Mapping):
            return self._any() if schema else self._json(schema)
        if "$ref" in schema:
            return self._definition(schema)
        if "enum" in schema or "const" in schema:
            return one_of([self._spelt(value) for value in self._choices(schema)])
        if "anyOf" in schema:
            self._check(schema, {"anyOf"})
            return one_of([self._braced(one) for one in schema["anyOf"]])
        match schema.get("type"):
            case list():
                return one_of([self._braced(_of_kind(schema, kind)) for kind in _kinds_in(schema)])
            case "string":
                quote = self._tools.quote
                return f"{self._written(quote)} {self._text(schema, quote)}"
            case "array":
                return self._list(schema)
            case "object":
                inner = self._object(schema, self._pair, ",")
                return f'"{{" {inner} "}}"'
            case None:
                self._check(schema, set())
                return self._any()
        return self._json(schema)

    def _pair(self, key: str, schema: Any) -> str:
        return f'{key} ":" {self._braced(schema)}'

    def _list(self, schema: Schema) -> str:
        self._check(schema, _OF_LISTS)
        item = self._lark.rule(self._braced(schema.get("items", True)))
        least, most = _bounds(schema, "minItems", "maxItems")
        if most == 0:
            return '"[]"'
        more = f'("," {item}){{{max(least - 1, 0)},{most and most - 1}}}'
        return f'"[" {item} {more} "]"' if least else f'"[" ({item} {more})? "]"'

    def _definition(self, schema: Schema) -> str:
        self._check(schema, {"$ref"})
        target = self._definitions.whole(schema["$ref"])
        if schema["$ref"] not in self._named:
            name = self._named[schema["$ref"]] = self._lark.new_name()
            self._lark.define(name, self._braced(target))
        return self._named[schema["$ref"]]

    def _any(self) -> str:
        """Any value at all."""
        if "" not in self._named:
            name = self._named[""] = self._lark.new_name()
            kinds = ["string", "number", "boolean", "null"]
            pair = f'{_KEY} ":" {name}'
            self._lark.define(
                name,
                one_of(
                    [
                        *(self._braced({"type": kind}) for kind in kinds),
                        f'"[" ({name} ("," {name})*)? "]"',
                        f'"{{" ({pair} ("," {pair})*)? "}}"',
                    ]
                ),
            )
        return self._named[""]

    def _spelt(self, value: Any) -> str:
        quote = self._written(self._tools.quote)
        match value:
            case str():
                if self._tools.quote in value:
                    raise UnspellableError(f"this model has no way to write {quoted(value)}")
                return f"{quote} {_before(value, quote)}"
            case dict() | list():
                raise UnspellableError("`enum` and `const` have values in them that are no plain ones")
        return self._json({"const": value})

    def _choices(self, schema: Schema) -> list[Any]:
        """The values that are named, as far as they are of the schema's type."""
        self._check(schema, _OF_CHOICES)
        named: list[Any] = [schema["const"]] if "const" in schema else schema["enum"]
        kinds = _kinds_in(schema)
        values = [one for one in named if not _kinds_of(one).isdisjoint(kinds)]
        if "const" in schema and "enum" in schema:  # and no enum with itself, which may have very many
            values = [one for one in values if any(same_value(one, other) for other in schema["enum"])]
        if not values:
            raise UnspellableError("`enum` and `const` leave no value of their `type`")
        return values

    def _check(self, schema: Schema, known: frozenset[str] | set[str]) -> None:
        unknown = sorted(schema.keys() - known - SAYS_NOTHING)
        if unknown:
            raise UnspellableError(f"this model's way of writing them cannot be held to `{unknown[0]}`")


def _bounds(schema: Schema, least: str, most: str) -> tuple[int, int | Literal[""]]:
    """Of a number of things, which is endless where nothing is said."""
    found = schema.get(least, 0), schema.get(most, "")
    if not all(isinstance(one, int) and one >= 0 for one in found if one != ""):
        raise ValueError(found)
    return found


def _kinds_in(schema: Schema) -> list[str]:
    """Those that its `type` names, or all: for each the schema is written. What is none may be very many."""
    kinds = schema.get("type", _KINDS)
    kinds = [kinds] if isinstance(kinds, str) else list(dict.fromkeys(kinds))
    if not set(_KINDS).issuperset(kinds):
        raise ValueError(kinds)
    return kinds


def _of_kind(schema: Schema, kind: str) -> Schema:
    """Without what says nothing of that: else each of several kinds would write again what lies within."""
    others = _OF_OTHERS if kind in _PLAIN else ()
    return {**{key: value for key, value in schema.items() if key not in others}, "type": kind}


def _before(text: str, end: str) -> str:
    """A text that is no delimiter, whatever it spells, and what ends it."""
    return f"{quoted(text)} {end}" if text else end


def _kinds_of(value: Any) -> set[str]:
    """Of JSON's types those that this is of."""
    match value:
        case bool():
            return {"boolean"}
        case int():
            return {"integer", "number"}
        case float():
            return {"integer", "number"} if value.is_integer() else {"number"}
        case str():
            return {"string"}
        case None:
            return {"null"}
    return {"array", "object"}


def _searched(pattern: str) -> str:
    """A text in which this is found: a pattern is met anywhere, unless it says where."""
    begins, ends = pattern.startswith("^"), pattern.endswith("$") and not pattern.endswith("\\$")
    if "|" in pattern:
        begins = ends = False  # each of its parts would have its own
    inner = slashed(pattern[begins : len(pattern) - ends])
    return f"/(?s:{'' if begins else '.*'})(?:{inner})(?s:{'' if ends else '.*'})/"
