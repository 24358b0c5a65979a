"""How much a grammar may force at once, as its source says: what is looked ahead in, and what is not."""

from __future__ import annotations

import random
from typing import Any

import pytest

from engine.foresight.source import is_foreseen
from midstream.protocol import Grammar
from realtime.text.grammar import OutputRules, source_of, source_of_lark, source_with
from realtime.tools.call_grammar import CallGrammar, HeldTool
from tests.fakes.grammars import MANY, made_schema
from tests.fakes.held_calls import HeldModel
from tests.fakes.spelt_calls import SPELT

TREE: dict[str, Any] = {
    "$ref": "#/$defs/node",
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "string", "pattern": "^[a-z]{1,20}$"},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                "next": {"anyOf": [{"$ref": "#/$defs/node"}, {"type": "null"}]},
            },
            "required": ["value", "children"],
            "additionalProperties": False,
        }
    },
}
ARGUMENTS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 14},
        "note": {"type": "string", "maxLength": 200},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city"],
}
TERM: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {"kind": {"type": "string", "const": "number"}, "value": {"type": "number"}},
            "required": ["kind", "value"],
            "additionalProperties": False,
        },
        {
            "type": "object",
            "properties": {"kind": {"const": "minus"}, "of": {"$ref": "#"}},
            "required": ["kind", "of"],
            "additionalProperties": False,
        },
    ]
}
JSON_IN_LARK = """
start: value
value: "{" (pair ("," pair)*)? "}" | "[" (value ("," value)*)? "]" | STRING | NUMBER  // and words
     | "true" | "false"
pair: STRING ":" value
STRING: /"[^"\\\\\\x00-\\x1f]*"/
NUMBER: "-"? /[0-9]+/
"""
FORESEEN = {
    "a tree": Grammar(json_schema=TREE),
    "terms within terms": Grammar(json_schema=TERM),
    "anything": Grammar(json_schema=True),
    "many properties": Grammar(
        json_schema={"properties": {f"p{at}": {"type": "string"} for at in range(900)}}
    ),
    "a long constant": Grammar(json_schema={"const": "x" * 60_000}),
    "JSON in Lark": Grammar(lark=JSON_IN_LARK),
    "a schema in Lark": Grammar(lark='start: "a" | call\ncall: "<call>" %json {"type": "object"} "</call>"'),
    "an expression of its own": Grammar(regex="(ab|c)+(d(ef)*){2,9}"),
    **{str(grammar): grammar for grammar in MANY if "stop=" not in str(grammar)},
}
# Which of them force much is known to those alone who try.
UNTOLD = {
    "much": Grammar(lark=f'start: x{{700}}\nx: "{"y" * 100}"'),
    "much in a schema": Grammar(
        json_schema={
            "type": "array",
            "items": {"$ref": "#/$defs/a"},
            "minItems": 700,
            "$defs": {"a": {"const": "y" * 100}},
        }
    ),
    "twice as much, again and again": Grammar(
        lark="start: r0\n" + "\n".join(f"r{at}: r{at + 1} r{at + 1}" for at in range(20)) + '\nr20: "y"'
    ),
    "a terminal that may go on over what follows": Grammar(lark='start: /a(xz)*/ "xw"'),
    "a rule that has an end for whoever could get there": Grammar(lark='start: A ("xz")* "xw"\nA: /a/'),
    "a character that is none of several": Grammar(lark='start: /[a]*/ "a"'),
    "characters that none are": Grammar(lark='start: /[a-c&&c]*/ "c"'),
    "what is left of several at once": Grammar(lark="start: T\nT: /(aa)*b/ & /(aaa)*b/"),
    "all that nothing is left out of": Grammar(lark="start: T\nT: /(?s:.*)/ & ~/(?s:a*[^a].*|,.*)/"),
    "levels that end in much": Grammar(lark='start: "(" start ", and so on)" | "x"'),
    "separators of a client's": Grammar(
        lark='start: %json {"items": {"const": 1}, "x-guidance": {"item_separator": ", and so"}}'
    ),
    "what is held to several": Grammar(
        json_schema={"allOf": [{"minItems": 900}, {"items": {"const": "y" * 990}}], "type": "array"}
    ),
    "a property that is held to several": Grammar(
        json_schema={
            "properties": {"ab": {"type": "array", "minItems": 900}},
            "patternProperties": {"^a": {"items": {"const": "y" * 990}}},
        }
    ),
    "a count that is written otherwise": Grammar(lark='start: /a(xz){ 1,}/ "xw"'),
    "characters of which there are none": Grammar(lark=f'start: (/[ab]\\P{{any}}/ | "{"y" * 300}"){{900}}'),
    "a count behind zeros": Grammar(regex="(abcd){00000000030000}"),
    "a name that stands close to an expression": Grammar(
        lark=f'start: /[ab]/big\nbig: x{{300}}\nx: "{"y" * 300}"'
    ),
    "a schema that is a word": Grammar(
        lark=f'start: "a" %json true big // {{"type": "null"}}\nbig: x{{300}}\nx: "{"y" * 300}"'
    ),
    "what is to be as short as it can": Grammar(lark=f'start: a{{900}}\na[lazy]: "{"x" * 300}" ("a" | "b")*'),
    "a number before digits": Grammar(lark='start: %json {"minimum": 0, "maximum": 1, "type": "number"} "0"'),
    "numbers that nothing parts": Grammar(
        lark='start: %json {"items": {"type": "number"}, "x-guidance": {"item_separator": "0"}}'
    ),
    "texts that cannot be spelt": Grammar(
        lark='start: %json {"type": "array", "items": {"anyOf": [{"const": "\\""}, {"const": "xyz"}]}, '
        '"x-guidance": {"json_allowed_escapes": "n"}}'
    ),
    "an older draft": Grammar(
        json_schema={
            "$schema": "http://json-schema.org/draft-07/schema#",
            "type": "array",
            "minItems": 900,
            "prefixItems": [True] * 900,
            "items": {"const": "y" * 990},
        }
    ),
    **{
        f"a way that nobody can take: {name}": Grammar(
            json_schema={"type": "array", "minItems": 900, "items": item}
        )
        for name, item in {
            "false": {"anyOf": [False, {"const": "y" * 990}]},
            "bounds": {"anyOf": [{"type": "string", "minLength": 3, "maxLength": 1}, {"const": "y" * 990}]},
            "another type": {"enum": [1, "y" * 990], "type": "string"},
            "the only type": {"type": ["array"], "minItems": 30, "items": {"const": "y" * 990}},
        }.items()
    },
    "what may be skipped": Grammar(lark='start: "a" "b"\n%ignore /x/'),
    "an option": Grammar(lark='%llguidance {"no_forcing": true}\nstart: "a"'),
    "nothing that is one": Grammar(lark="start: (("),
}


@pytest.mark.parametrize("name", FORESEEN)
def test_what_forces_little_is_looked_ahead_in(name: str) -> None:
    assert is_foreseen(source_of(FORESEEN[name]))


@pytest.mark.parametrize("name", UNTOLD)
def test_what_forces_much_or_cannot_be_told_is_not(name: str) -> None:
    assert not is_foreseen(source_of(UNTOLD[name]))


def test_schemas_made_by_chance_are() -> None:
    assert all(
        is_foreseen(source_of(Grammar(json_schema=made_schema(random.Random(at))))) for at in range(200)
    )


@pytest.mark.parametrize("answer", ["", None, "@answer"])
@pytest.mark.parametrize("name", SPELT)
def test_so_are_tools_however_a_model_writes_them(name: str, answer: str | None) -> None:
    tools = [HeldTool("weather", ARGUMENTS), HeldTool("stop", {"type": "object", "properties": {}})]
    if name == "deepseek_v32":
        del tools[1]  # a call that has no end but one that its list's end begins like
    lark = CallGrammar(
        HeldModel(name, single=True).pieces.spelling, tools, answer=answer, parallel=True
    ).lark()
    typed = source_with(OutputRules(None, lark), Grammar(json_schema=TREE))
    assert is_foreseen(typed if answer else source_of_lark(lark))
