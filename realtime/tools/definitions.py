"""The definitions of a tool's schema, beside the parts of it that are written one by one.

A part is a schema by itself then, and brings what it speaks of: as the tool's own schema has it, and no more,
since each of many parts brings it again. It knows no spelling.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from realtime.tools.lark import quoted

PLACES = ("$defs", "definitions")
MOST_BROUGHT = 256 << 10  # bytes, by all parts of a tool
_REFERENCE = re.compile(r"#/(\$defs|definitions)/([^/]+)(/.*)?", re.DOTALL)

Schema = Mapping[str, Any]
Key = tuple[str, str]  # its place, and its name


class UnspellableError(Exception):
    """A schema that this spelling cannot hold to: the rest of a sentence."""


class Definitions:
    def __init__(self, schema: Schema) -> None:
        """`schema`: the tool's own."""
        self._schema = schema
        self._room = MOST_BROUGHT
        # Kept here, and by no function that knows this: the schema would stay until garbage is looked for.
        self._sizes: dict[Key, int] = {}
        self._references: dict[Key, list[Key]] = {}

    def whole(self, reference: str) -> Any:
        """One that is referred to, and not a part of it."""
        key, rest = self._key(reference)
        if rest:
            raise _refused(reference)
        return self._at(key)

    def beside(self, part: Schema) -> dict[str, Any]:
        """The part, with those that it speaks of, and that they do. What it defines itself nothing refers to:
        a reference begins at the tool's schema."""
        keys = dict.fromkeys(self._spoken_of(part))  # in an order: equal tools make equal grammars
        waiting = list(keys)
        while waiting:
            more = [key for key in self._spoken_of_by(waiting.pop()) if key not in keys]
            keys |= dict.fromkeys(more)
            waiting += more
        self._room -= sum(map(self._size, keys))
        if self._room < 0:
            raise UnspellableError(
                "this model's way of writing them has definitions written again and again, in more than "
                f"{MOST_BROUGHT} bytes"
            )
        brought = {key: value for key, value in part.items() if key not in PLACES}
        for place, name in keys:
            brought.setdefault(place, {})[name] = self._at((place, name))
        return brought

    def _spoken_of(self, part: Any) -> Iterator[Key]:
        waiting = [part]
        while waiting:
            value = waiting.pop()
            if isinstance(value, list):
                waiting += value
            elif isinstance(value, Mapping):
                waiting += [one for key, one in value.items() if value is not part or key not in PLACES]
                if isinstance(reference := value.get("$ref"), str):
                    yield self._key(reference)[0]

    def _key(self, reference: str) -> tuple[Key, str]:
        found = _REFERENCE.fullmatch(reference)
        if found is None:
            raise _refused(reference)
        name = found[2].replace("~1", "/").replace("~0", "~")
        if name not in self._schema.get(found[1], ()):
            raise _refused(reference)
        return (found[1], name), found[3] or ""

    def _at(self, key: Key) -> Any:
        place, name = key
        return self._schema[place][name]

    def _spoken_of_by(self, key: Key) -> list[Key]:
        if key not in self._references:
            self._references[key] = list(self._spoken_of(self._at(key)))
        return self._references[key]

    def _size(self, key: Key) -> int:
        if key not in self._sizes:
            self._sizes[key] = len(key[1]) + len(msgspec.json.encode(self._at(key)))
        return self._sizes[key]


def _refused(reference: str) -> UnspellableError:
    return UnspellableError(f"`$ref` is to {quoted(reference)}, which is none of their `$defs`")
