"""Grammars for tests: some as a client sends them, in the engine's words, and JSON schemas made by chance."""

from __future__ import annotations

import random
from typing import Any

from engine import api
from engine.structure.mask import ALLOWED
from engine.structure.matcher import Matcher
from engine.structure.vocabulary import Vocabulary
from midstream.protocol import Grammar
from realtime.text.grammar import source_of

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 99},
        "kind": {"enum": ["alpha", "beta", "gamma"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}
LIST = {
    "type": "array",
    "items": {"type": "integer", "minimum": 0, "maximum": 9},
    "minItems": 2,
    "maxItems": 6,
}
MANY = [
    Grammar(json_schema=PERSON),
    Grammar(json_schema=PERSON, whitespace=True),
    Grammar(json_schema=LIST),
    Grammar(regex=r"(yes|no)(, (yes|no)){0,4}\."),
    Grammar(choice=["red", "green", "reddish green", "🙂"]),
    Grammar(lark='start: sum\nsum: NUMBER ("+" NUMBER){1,4}\nNUMBER: /[1-9][0-9]?/'),
    Grammar(lark='start: said "!"{2}\nsaid[max_tokens=7]: /[a-d, ]{1,30}/'),
    Grammar(lark='start: said more\nsaid[stop="d"]: /[a-d]{1,30}/\nmore: /[e-h, ]{2,9}/'),
]


def told(grammar: Grammar, *, force: bool = True) -> api.Grammar:
    """As an engine is told of it."""
    return api.Grammar(source_of(grammar), force)


def matches(grammar: Grammar, tokens: list[int], vocabulary: Vocabulary) -> bool:
    """Whether they are all of a text, with its end token."""
    matcher = Matcher(source_of(grammar), vocabulary)
    return matcher.fits(tokens) and tokens[-1] in vocabulary.ends


def walk(matcher: Matcher, steps: int, chance: random.Random, ends: frozenset[int]) -> list[int]:
    """Tokens that a matcher allowed, one after the other, as far as it went."""
    tokens: list[int] = []
    while len(tokens) < steps and not ends.intersection(tokens):
        allowed = _allowed(matcher.mask())
        tokens.append(chance.choice(allowed))
        matcher.accept(tokens[-1:])
    return tokens


def _allowed(mask: bytes | None) -> list[int]:
    assert mask is not None
    return [token for token, byte in enumerate(mask) if byte == ALLOWED]


def made_schema(chance: random.Random, depth: int = 3) -> dict[str, Any]:
    """A schema whose documents end: strings and lists have bounds, and nothing but what is named is in
    objects."""
    kinds = ["string", "integer", "boolean", "enum", "null", "number"]
    kind = chance.choice(kinds + (["object", "object", "array", "anyOf"] if depth else []))
    match kind:
        case "string":
            return {"type": "string", "maxLength": chance.randint(0, 12)}
        case "integer":
            least = chance.randint(-50, 50)
            return {"type": "integer", "minimum": least, "maximum": least + chance.randint(0, 999)}
        case "number":
            return {
                "type": "number",
                "minimum": 0,
                "exclusiveMaximum": chance.randint(1, 100),
                "multipleOf": 0.5,
            }
        case "enum":
            values = ["a", "b c", 'quo"te', "ünï", 1, -2.5, True, None]
            return {"enum": chance.sample(values, chance.randint(1, 5))}
        case "array":
            least = chance.randint(0, 2)
            most = least + chance.randint(0, 2)
            return {
                "type": "array",
                "items": made_schema(chance, depth - 1),
                "minItems": least,
                "maxItems": most,
            }
        case "anyOf":
            return {"anyOf": [made_schema(chance, depth - 1) for _ in range(chance.randint(1, 3))]}
        case "object":
            names = [f"{chance.choice(['name', 'id', 'x y', 'Größe', 'k'])}{at}" for at in range(4)]
            names = names[: chance.randint(1, 4)]
            return {
                "type": "object",
                "properties": {name: made_schema(chance, depth - 1) for name in names},
                "required": chance.sample(names, chance.randint(0, len(names))),
                "additionalProperties": False,
            }
    return {"type": kind}
