"""What a model is held to by its tools: which of them, in which choice, and what nobody can be held to."""

from __future__ import annotations

import json
from typing import Any

import pytest

from engine import toy_model
from midstream import protocol
from midstream.protocol import Function, Grammar, Message, NamedFunction, NamedTool, Params, Tool, ToolChoice
from realtime.hub.output_rules import output_rules
from realtime.refusal import Refusal
from realtime.text.grammar import OutputRules
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer
from tests.fakes.simulated_client import start

FORMATS = ["hermes", "harmony", "pythonic", "gemma4", "qwen3_coder"]
GOOD = {"type": "object", "properties": {"q": {"enum": ["sought"]}}, "required": ["q"]}
NO_SCHEMAS: list[Any] = [
    {"type": 7},
    {"type": "string"},
    {"required": 5},
    {"properties": {"a": {"type": "string", "pattern": "(?=look)"}}},
    {"properties": {"a": {"type": "array", "minItems": "1}) TEXT"}}},
    {"properties": {"a": {"$ref": "#/$defs/none"}}},
    {"properties": {"a": {"enum": 5}}},
    {"properties": {"a": {"if": {}}}},
    {"properties": {"a": {"anyOf": [{"not": {}}]}}},
    {"properties": {"a": {"type": "array", "items": {"type": "string", "maxLength": -1}}}},
    {"allOf": [{"if": {}}]},
]
# And what only some spellings have room for.
PECULIAR: list[Any] = [
    {"properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {"$ref": "#/$defs/a"}}},
    {"properties": {"a:b }": {"type": "integer"}}},
    {"properties": {" ": {}, "</parameter>": {}, "=": {}}},
    {"properties": {"a": {"type": "string", "pattern": r"a\/b|c/d$"}}},
    {"properties": {"a": {"enum": ['<|"|>', "</parameter>\n", "[TOOL_CALLS]", ""]}}, "required": ["a"]},
    {
        "properties": {"a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/t"}}}},
        "$defs": {"t": {"anyOf": [{"type": "null"}, {"type": "array", "items": {"$ref": "#/$defs/t"}}]}},
    },
    {"properties": {"a": {"type": "array", "items": {"const": 1}, "maxItems": 0}, "b": {"const": None}}},
    {"properties": {"a": True}, "required": ["a", "unnamed"]},
    {"additionalProperties": {"type": "integer"}},
]


def model(name: str, *, grammars: bool = True) -> ServedModel:
    definition = json.loads((toy_model.FOLDER / "tokenizer.json").read_text())
    tokenizer = Tokenizer(definition, "{{ tools }}{{ messages }}", tool_format=name)
    return ServedModel("toy", tokenizer, toy_model.VOCAB, 4096, "fp", grammars=grammars)


def tool(name: str, schema: Any, *, strict: bool | None = None) -> Tool:
    return Tool(function=Function(name=name, parameters=schema, strict=strict))


def rules(
    served: ServedModel, *tools: Tool, choice: ToolChoice = "auto", **params: Any
) -> OutputRules | None:
    frame: protocol.Start = start(
        prompt=None,
        messages=[Message(role="user", content="Hi")],
        tools=list(tools),
        tool_choice=choice,
        params=Params(**params),
    )
    return output_rules(frame, [], served)


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("schema", [*NO_SCHEMAS, *PECULIAR], ids=json.dumps)
def test_a_schema_from_anywhere_is_held_to_or_let_be(name: str, schema: Any) -> None:
    """Where it is strict it may be refused, by a sentence that names it."""
    served = model(name)
    held = rules(served, tool("a", GOOD), tool("b", schema))
    assert held is not None
    assert held.alone is not None
    refused = refusal_of(served, tool("a", GOOD), tool("b", schema, strict=True))
    if refused is None:
        assert schema not in NO_SCHEMAS
    else:
        assert refused.code == "invalid_params"
        assert "`tools[1].function.parameters` cannot be" in refused.message
        assert schema not in PECULIAR or name != "hermes"


def refusal_of(served: ServedModel, *tools: Tool) -> Refusal | None:
    try:
        rules(served, *tools, choice="required")
    except Refusal as refusal:
        return refusal
    return None


@pytest.mark.parametrize(("strict", "held"), [(None, 2), (True, 2), (False, 1)])
def test_who_says_nothing_is_held_and_who_says_no_is_not(strict: bool | None, held: int) -> None:
    other = {"type": "object", "properties": {"q": {"enum": ["sought too"]}}}
    found = rules(model("hermes"), tool("a", GOOD), tool("b", other, strict=strict))
    assert found is not None
    assert (found.alone or "").count("sought") == held


def test_where_nobody_is_held_there_is_no_grammar() -> None:
    free = tool("a", GOOD, strict=False)
    assert rules(model("hermes"), free) is None
    assert rules(model("hermes"), free, choice="required") is not None
    assert rules(model("hermes"), free, grammar=Grammar(choice=["yes"])) is not None
    assert rules(model("hermes"), tool("a", GOOD), choice="none") is None


def test_a_name_leaves_that_tool_alone() -> None:
    named = NamedTool(function=NamedFunction(name="b"))
    held = rules(model("hermes"), tool("a", NO_SCHEMAS[0]), tool("b", GOOD), choice=named)
    assert held is not None
    assert '\\"b\\"' in (held.alone or "")
    assert '\\"a\\"' not in (held.alone or "")


def test_where_no_grammar_can_be_followed() -> None:
    served = model("hermes", grammars=False)
    assert rules(served, tool("a", GOOD)) is None
    for asked in ({"choice": "required"}, {}):
        with pytest.raises(Refusal, match="no grammar can follow"):
            rules(served, tool("a", GOOD, strict=True), **asked)  # type: ignore[arg-type]


def test_calls_that_begin_as_an_answer_might_go_without_a_grammar() -> None:
    for name, refused in (("llama3_json", True), ("pythonic", True), ("hermes", False), ("mistral", False)):
        if refused:
            with pytest.raises(Refusal, match="begin as an answer might"):
                rules(model(name), tool("a", GOOD), grammar=Grammar(choice=["yes"]))
        else:
            assert rules(model(name), tool("a", GOOD), grammar=Grammar(choice=["yes"])) is not None


# -- what an argument that is written by itself brings of its tool's definitions -----------------------------

PARTED = ["qwen3_coder", "pythonic"]
DEEP = {"type": "object", "properties": {"b": {"$ref": "#/definitions/c"}}}


@pytest.mark.parametrize("name", PARTED)
def test_it_brings_what_it_speaks_of_and_no_more(name: str) -> None:
    schema = {
        "properties": {f"a{at}": {"type": "integer", "maximum": at} for at in range(100)}
        | {"d": {"$ref": "#/$defs/a~1b", "$defs": {"a/b": {"const": "another"}}}},
        "$defs": {"a/b": DEEP, "long": {"description": "said once" * 1000}},
        "definitions": {"c": {"enum": ["sought"]}},
    }
    found = rules(model(name), tool("f", schema, strict=True), choice="required")
    assert found is not None
    grammar = found.alone or ""
    assert "sought" in grammar
    assert "another" not in grammar, "a reference begins at the tool's schema"
    assert "said once" not in grammar


@pytest.mark.parametrize("name", PARTED)
@pytest.mark.parametrize("reference", ["#", "#/properties/a", "#/$defs", "other.json"])
def test_what_it_cannot_bring_is_refused(name: str, reference: str) -> None:
    """Within the part alone some of these would say something else."""
    inner = {"a": {"type": "integer"}, "c": {"$ref": reference}}
    schema = {"properties": {"a": {"type": "boolean"}, "b": {"type": "object", "properties": inner}}}
    refused = refusal_of(model(name), tool("f", schema, strict=True))
    assert refused is not None
    assert reference in refused.message


@pytest.mark.parametrize("name", PARTED)
def test_what_many_bring_has_a_limit(name: str) -> None:
    schema = {
        "properties": {f"a{at}": {"$ref": "#/$defs/t", "title": str(at)} for at in range(900)},
        "$defs": {"t": {"enum": [str(at) for at in range(1000)]}},
    }
    refused = refusal_of(model(name), tool("f", schema, strict=True))
    assert refused is not None
    assert "262144 bytes" in refused.message
