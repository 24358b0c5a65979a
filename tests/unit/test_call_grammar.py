"""What a grammar of tools lets a model write around its calls: word by word, on a vocabulary of bytes."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from engine.structure.matcher import Matcher
from realtime.text.grammar import source_of_lark
from realtime.tools.argument_grammar import ArgumentGrammar
from realtime.tools.call_grammar import NO_ARGUMENTS, CallGrammar, HeldTool
from realtime.tools.definitions import UnspellableError
from tests.fakes.held_calls import HeldModel
from tests.fakes.spelt_calls import SPELT

STOP = [HeldTool("stop", NO_ARGUMENTS)]
CALL = '<tool_call>\n{"name": "stop", "arguments": {}}\n</tool_call>'
BARE = '{"name": "stop", "parameters": {}}'
CHANNEL = "<|channel|>analysis<|message|>Hm<|end|>"
TO_STOP = "<|channel|>commentary to=functions.stop <|constrain|>json<|message|>{}"


class Schema(dict[str, Any]):
    """Of which is known whether it is still there."""


@pytest.mark.parametrize("name", ["hermes", "glm"])
def test_the_schemas_that_a_grammar_was_made_of_are_not_kept_until_garbage_is_looked_for(name: str) -> None:
    """Each may have 128 KiB, in few objects: that is looked at for many of them, and else after minutes."""
    schema = Schema(properties={"a": {"$ref": "#/$defs/a"}}, **{"$defs": {"a": {"type": "string"}}})
    gone, spelling = weakref.ref(schema), HeldModel(name, single=True).pieces.spelling
    gc.collect()
    gc.disable()
    try:
        CallGrammar(spelling, [HeldTool("stop", schema)], answer="", parallel=True)
        del schema
        assert gone() is None
    finally:
        gc.enable()


def fits(name: str, text: str, *, whole: bool = True, single: bool = True, **asked: Any) -> bool:
    """Whether it may be written; `whole`: and nothing more. `single`: delimiters are tokens."""
    model = HeldModel(name, single=single)
    options: dict[str, Any] = {"answer": "", "parallel": True} | asked
    lark = CallGrammar(model.pieces.spelling, STOP, **options).lark()
    matcher = Matcher(source_of_lark(lark), model.vocabulary)
    ends = list(model.vocabulary.ends) if whole else []
    return matcher.fits([*model.tokens(text), *ends])


@pytest.mark.parametrize(
    ("text", "asked", "expected"),
    [
        (CALL, {}, True),
        (CALL + "\n" + CALL, {}, True),
        (CALL + "\n" + CALL, {"parallel": False}, False),
        ("<think>Hm</think>\n\n" + CALL, {}, True),
        ("Hm</think>\n\n" + CALL, {}, False),
        ("Hm</think>\n\n" + CALL, {"reasons": True}, True),
        (CALL, {"reasons": True}, False),
        ("Well, " + CALL, {}, False),
        ("", {}, False),
        (CALL.replace("stop", "other"), {}, False),
        (CALL.replace("{}", '{"a": 1}'), {}, False),
        ("Well, " + CALL + " Done.", {"answer": None}, True),
        ("Well, " + CALL + " Done.", {"answer": None, "parallel": False}, False),
        ("Well.", {"answer": None}, True),
        ("Well <think>Hm " + CALL, {"answer": None}, False),
        ("Well <think>Hm</think>" + CALL, {"answer": None}, True),
        ("<think>Hm", {"answer": None}, True),
        ("Hm", {"answer": None, "reasons": True}, True),
        (CALL, {"answer": '"yes"'}, True),
        ("<think>Hm</think>yes", {"answer": '"yes"'}, True),
        ("no", {"answer": '"yes"'}, False),
        ("yes" + CALL, {"answer": '"yes"'}, False),
    ],
)
def test_around_calls(text: str, asked: dict[str, Any], expected: bool) -> None:
    assert fits("hermes", text, **asked) is expected


@pytest.mark.parametrize("name", SPELT)
@pytest.mark.parametrize("tool", ["NAME", "ARGUMENTS", "GET_NUMBER", "KEY.VALUE", "IS_TEXT"])
def test_a_tool_may_have_the_name_of_what_stands_in_the_table(name: str, tool: str) -> None:
    model, tools = HeldModel(name, single=True), [HeldTool(tool, NO_ARGUMENTS)]
    tokens = model.write(tools, Random(name), answer="", parallel=False)
    assert tokens is not None
    assert model.read(tokens, tools).whole == [(tool, {})]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (BARE, True),
        ("<|python_tag|>" + BARE, True),
        ("So " + BARE, True),  # which is text
        ('{"name": "stop", "parameters": {"a": 1}}', False),
        ('{ "name" :"stop"', False),
        ('{"name": "other", "parameters": {"a": 1}}', True),
        ("<|python_tag|>{}", False),
    ],
)
def test_an_answer_that_begins_like_a_call_is_one(text: str, expected: bool) -> None:
    assert fits("llama3_json", text, answer=None) is expected


@pytest.mark.parametrize(
    ("text", "asked", "expected"),
    [
        (CHANNEL + "<|start|>assistant" + TO_STOP, {}, True),
        (TO_STOP + "<|call|>", {}, True),
        (CHANNEL, {}, False),
        (CHANNEL, {"answer": None}, True),
        (CHANNEL + "<|start|>assistant<|channel|>final<|message|>Yes", {"answer": None}, True),
        ("<|channel|>final<|message|>Yes", {}, False),
        ("<|channel|>final<|message|>yes", {"answer": '"yes"'}, True),
        ("<|channel|>final<|message|>no", {"answer": '"yes"'}, False),
        (TO_STOP.replace("stop", "other"), {"answer": None}, False),
        (" to=functions.other<|channel|>commentary<|message|>{}", {"answer": None}, False),
    ],
)
def test_where_every_message_has_a_header(text: str, asked: dict[str, Any], expected: bool) -> None:
    assert fits("harmony", text, headed=True, **asked) is expected
    assert fits("harmony", "<|start|>assistant" + text, headed=False, **asked) is expected


@pytest.mark.parametrize("end", ["<|call|>", "<|return|>"])
def test_nothing_that_ends_a_message_stands_in_its_reasoning(end: str) -> None:
    """Where delimiters are spelt what came behind was read as an answer; where they are tokens it is text."""
    text = CHANNEL.replace("Hm", f"Hm{end}Hm") + "<|start|>assistant" + TO_STOP
    assert fits("harmony", text.replace(end, ""), single=False, headed=True)
    assert not fits("harmony", text, single=False, headed=True)


@pytest.mark.parametrize("name", ["gemma4", "functiongemma"])
@pytest.mark.parametrize(
    "around",
    [
        lambda schema: {"type": "object", "additionalProperties": schema},
        lambda schema: {"type": ["array", "array", "array"], "items": schema},
        lambda schema: {"type": ["array", "integer", "null"], "items": schema},
    ],
)
def test_a_schema_within_schemas_is_read_and_written_once(
    name: str, around: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else each level would double the grammar, or the time that it takes to make it."""
    read, reads, lengths = list[Any](), ArgumentGrammar._braced, []

    def braced(grammar: ArgumentGrammar, schema: Any) -> str:
        read.append(schema)
        return reads(grammar, schema)

    monkeypatch.setattr(ArgumentGrammar, "_braced", braced)
    for depth in (6, 12):
        schema: Any = {"type": "string", "enum": ["x" * 1000]}
        for _ in range(depth):
            schema = around(schema)
        tool = HeldTool("find", {"type": "object", "properties": {"q": schema}})
        spelling = HeldModel(name, single=True).pieces.spelling
        read.clear()
        lengths.append(len(CallGrammar(spelling, [tool], answer="", parallel=True).lark()))
        assert len(read) <= 4 * depth + 2
    assert lengths[1] < 2 * lengths[0]


def held_to(name: str, schema: dict[str, Any], text: str) -> bool:
    """Whether an argument `a` with this schema may be this text."""
    model = HeldModel(name, single=True)
    tool = HeldTool("f", {"type": "object", "properties": {"a": schema}, "required": ["a"]})
    lark = CallGrammar(model.pieces.spelling, [tool], answer="", parallel=False).lark()
    spelt = {"gemma4": f"<|tool_call>call:f{{a:{text}}}<tool_call|>", "qwen3_coder": coded(text)}
    return Matcher(source_of_lark(lark), model.vocabulary).fits(model.tokens(spelt[name]))


def coded(value: str) -> str:
    return f"<tool_call>\n<function=f>\n<parameter=a>\n{value}\n</parameter>\n</function>\n</tool_call>"


@pytest.mark.parametrize(
    ("schema", "values", "others"),
    [
        ({"type": "string", "enum": ["x", "y", None, 1]}, ["x", "y"], ["z", "null", "1"]),
        ({"type": "string", "const": "x"}, ["x"], ["y"]),
        ({"enum": ["x", "y"], "const": "x", "type": ["string"]}, ["x"], ["y"]),
        ({"type": "integer", "enum": [1, 2.0, "x", True]}, ["1", "2"], ["x", "true"]),
        ({"type": ["integer", "null"], "enum": [1, None, False]}, ["1", "null"], ["false"]),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", ["gemma4", "qwen3_coder"])
def test_a_value_that_is_named_is_of_its_type_too(
    name: str, schema: dict[str, Any], values: list[str], others: list[str]
) -> None:
    quote = '<|"|>' if name == "gemma4" else "" if schema["type"] == "string" else '"'
    values, others = (
        [f"{quote}{one}{quote}" if one in "xyz" else one for one in some] for some in (values, others)
    )
    assert [one for one in values + others if held_to(name, schema, one)] == values


class Compared(str):
    """A text of which it is counted how often it is compared with another."""

    __slots__ = ()
    times = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)


@pytest.mark.parametrize("name", ["gemma4", "qwen3_coder"])
def test_each_of_many_values_and_keys_is_compared_with_a_few(name: str) -> None:
    """And not with all others: there may be ten thousands."""
    some = [Compared(f"a{number}") for number in range(300)]
    value = {"type": "string", "enum": some}
    tool = HeldTool("f", {"type": "object", "properties": {"a": value}, "required": some})
    Compared.times = 0
    CallGrammar(HeldModel(name, single=True).pieces.spelling, [tool], answer="", parallel=False)
    assert Compared.times < 10 * len(some)


@pytest.mark.parametrize("spelt", ["<tool_call>", "<|im_end|>", "<|tool_call>", '"', ""])
@pytest.mark.parametrize("name", ["gemma4", "qwen3_coder", "glm"])
def test_a_value_that_spells_a_delimiter_is_text(name: str, spelt: str) -> None:
    model = HeldModel(name, single=True)
    schema = {"type": "object", "properties": {"a": {"type": "string", "enum": [spelt]}}, "required": ["a"]}
    tools = [HeldTool("f", schema)]
    tokens = model.write(tools, Random(name), answer="", parallel=False)
    assert tokens is not None
    assert model.read(tokens, tools).whole == [("f", {"a": spelt})]
    opened = model.pieces.added[model.form.opens[0]]
    assert tokens.count(opened) == 1


@pytest.mark.parametrize("beside", [{"items": {"enum": ["x" * 50]}}, {"enum": [1, 2]}, {}])
def test_kinds_that_there_are_none_of_are_refused_and_not_each_written(beside: dict[str, Any]) -> None:
    """With each of thousands all that stands beside them was written again."""
    kinds = ["array", "integer", *(f"kind{at}" for at in range(2000))]
    spelling = HeldModel("gemma4", single=True).pieces.spelling
    tool = HeldTool("find", {"type": "object", "properties": {"q": {"type": kinds, **beside}}})
    with pytest.raises(UnspellableError, match="no JSON schema"):
        CallGrammar(spelling, [tool], answer="", parallel=True)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "enum": ["x"]},
        {"type": "string", "enum": ["x"], "minLength": 2},
        {"enum": ["x"], "const": "y"},
    ],
    ids=str,
)
def test_what_leaves_no_value_or_says_more_is_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(UnspellableError):
        held_to("gemma4", schema, "")
