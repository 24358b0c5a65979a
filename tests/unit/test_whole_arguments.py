"""Arguments that are told in whole tokens of JSON: never a part of one, however they are written and wherever
the output goes back to, and in the end all of them."""

from __future__ import annotations

import json
import random
import re
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import api, toy_model
from midstream import protocol
from midstream.protocol import Credit, Function, Message, Params, Tool, ToolArguments, ToolCallDone
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer
from realtime.tools.whole_json import WholeTokens, whole_length
from tests.fakes.folded_spans import FoldedSpans
from tests.fakes.lone_stream import LoneStream
from tests.fakes.spelt_calls import SPELT, Calls
from tests.unit.test_stream_approvals import amend, appended

TEMPLATE = "{% if tools %}<tool_call>{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}"
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "number"}}}
TOOLS = [Tool(function=Function(name=name, parameters=SCHEMA)) for name in ("find", "stop")]
CALLS: Calls = [
    ("find", {"q": 'say "hi" \\ } é日 12', "n": -12.5, "yes": True, "deep": {"a": [1, None, "x"], "b": ""}}),
    ("stop", {}),
    ("find", {"n": 7}),
]
EOS = api.Finish("eos")
LEXEME = re.compile(r'"(?:[^"\\]|\\.)*"|[^\s"{}\[\],:]+|.', re.DOTALL)


def ends(text: str) -> set[int]:
    """Behind its tokens."""
    return {0, *(found.end() for found in LEXEME.finditer(text))}


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(
    json_values,
    st.sampled_from([None, 1]),
    st.booleans(),
    st.lists(st.integers(min_value=1, max_value=9)),
)
def test_in_any_pieces_no_token_is_cut_and_nothing_is_left(
    value: Any, indent: int | None, ascii_alone: bool, sizes: list[int]
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_alone)
    tokens, told, at = WholeTokens(), "", 0
    for size in [*sizes, *[3] * len(text)]:
        told += tokens.take(text[at : at + size])
        at = min(at + size, len(text))
        assert text.startswith(told)
        assert len(told) in ends(text)
        assert len(told) == whole_length(text[:at]) == at - tokens.held, "as much as can be told"
        assert WholeTokens(text[:at]).held == tokens.held
    assert told + tokens.take_rest() == text


@given(st.text('1t"\\\\,: }', max_size=12), st.lists(st.integers(min_value=1, max_value=4)))
def test_what_is_no_json_is_told_as_far_as_one_who_hears_it_at_once_is(text: str, sizes: list[int]) -> None:
    tokens, told, at = WholeTokens(), "", 0
    for size in [*sizes, *[1] * len(text)]:
        told += tokens.take(text[at : at + size])
        at = min(at + size, len(text))
        assert told == text[: whole_length(text[:at])]
        assert WholeTokens(text[:at]).held == tokens.held
    assert told + tokens.take_rest() == text


def model(tool_format: str) -> ServedModel:
    definition = json.loads((toy_model.FOLDER / "tokenizer.json").read_text())
    tokenizer = Tokenizer(definition, TEMPLATE, tool_format=tool_format)
    return ServedModel("toy", tokenizer, vocab=toy_model.VOCAB, context=4096, fingerprint="toy")


def lone(model: ServedModel, *, whole: bool = True, **more: Any) -> LoneStream:
    asked = {"messages": [Message(role="user", content="Hi")], "tools": TOOLS, "whole_arguments": whole}
    credit = Credit(limit=4000)
    return LoneStream(model=model, credit=credit, on_disconnect="continue", asked=asked, **more)


def write(one: LoneStream, tokens: list[int]) -> None:
    one.stream.receive_news(api.News(7, index=one.index, tokens=tokens), one.now)
    one.index += len(tokens)


def end(one: LoneStream, client: FoldedSpans) -> FoldedSpans:
    one.answer(finish=EOS)
    client.read(one.take())
    return client


def plainly(model: ServedModel, tokens: list[int]) -> list[FoldedSpans]:
    """What is told of the first so many of them otherwise."""
    one, client = lone(model, whole=False), FoldedSpans()
    known = [deepcopy(client)]
    for token in tokens:
        write(one, [token])
        client.read(one.take())
        known.append(deepcopy(client))
    return known


def check(client: FoldedSpans, plain: FoldedSpans, complete: FoldedSpans) -> None:
    """It has all that is whole, and nothing else."""
    for told, known, of in zip(client.calls, plain.calls, complete.calls, strict=False):
        assert len(told["arguments"]) in ends(of["arguments"])
        cut = known["arguments"] if known["end"] else known["arguments"][: whole_length(known["arguments"])]
        assert (told["name"], told["arguments"], told["end"]) == (known["name"], cut, known["end"])
    assert len(client.calls) == len(plain.calls)
    assert (client.content, client.reasoning) == (plain.content, plain.reasoning)


@pytest.mark.parametrize("tool_format", sorted(SPELT))
def test_in_every_format_wherever_it_goes_back_to(tool_format: str) -> None:
    served, tokens = model(tool_format), list(SPELT[tool_format](CALLS).encode())
    plain = plainly(served, tokens)
    assert len(plain[-1].calls) == 3
    for seed in range(3):
        chance, one, client = random.Random(seed), lone(served), FoldedSpans()
        one.admit()
        while one.index < len(tokens):
            write(one, tokens[one.index : one.index + chance.randrange(1, 20)])
            match chance.randrange(6):
                case 0:
                    client.read(one.take())
                    to = chance.randrange(max(0, one.index - 30), one.index + 1)
                    one.steer(protocol.Rewind(request_id="a", to=to))
                    one.answer(api.Truncated(to))
                case 1:
                    client.read(one.take())
                    one.stream.acknowledge(client.index, client.seq)
                    one.detach()
                    client.read(one.attach(chance.choice([-1, client.seq])))
                case 2:
                    one.lose_engine()
                    one.new_engine()
                    one.admit()
            client.read(one.take())
            check(client, plain[one.index], plain[-1])
        assert end(one, client).said == plain[-1].said


@pytest.mark.parametrize("tool_format", ["hermes", "qwen3_coder", "lfm2"])
def test_a_fork_has_whole_ones_too(tool_format: str) -> None:
    served, tokens = model(tool_format), list(SPELT[tool_format](CALLS).encode())
    plain = plainly(served, tokens)
    parent = lone(served)
    write(parent, tokens)
    parent.take()
    for at in range(0, len(tokens), 7):
        context = parent.stream.fork("b", at, Params())
        asked = {"fork": protocol.Fork(request_id="a"), "whole_arguments": True}
        one, client = (
            LoneStream(model=served, credit=Credit(limit=4000), context=context, asked=asked),
            FoldedSpans(),
        )
        client.read(one.take())
        check(client, plain[at], plain[-1])
        one.index = at
        write(one, tokens[at:])
        client.read(one.take())
        check(client, plain[-1], plain[-1])


def test_an_amended_call_goes_on_where_its_listener_is() -> None:
    served = model("hermes")
    one, client = lone(served), FoldedSpans()
    write(one, list(b'<tool_call>{"name": "find", "arguments": {"q": "Par'))
    client.read(one.take())
    assert client.calls[0]["arguments"] == '{"q": '
    amend(one, client.calls[0]["id"], '{"q": "Pa', partial=True)
    appended(one)
    client.read(one.take())
    assert client.calls[0]["arguments"] == '{"q": '
    write(one, list(b'ul", "n": 12'))
    client.read(one.take())
    assert client.calls[0]["arguments"] == '{"q": "Paul", "n": '
    write(one, list(b"3}}</tool_call>"))
    assert end(one, client).calls[0]["arguments"] == '{"q": "Paul", "n": 123}'


def test_a_call_that_another_turn_cut_off_is_told_anew_as_it_was_told() -> None:
    one, known, fresh = lone(model("hermes")), FoldedSpans(), FoldedSpans()
    write(one, list(b'<tool_call>{"name": "find", "arguments": {"q": "Par'))
    said = [Message(role="user", content="No!")]
    one.steer(protocol.Inject(request_id="a", messages=said, tokens=list(b"No!")))
    one.answer(api.Appended(one.index, 3))
    write(one, list(b'<tool_call>{"name": "stop", "arguments": {}}</tool_call>'))
    known.read(one.take())
    one.stream.acknowledge(one.index, known.seq)
    fresh.read(one.attach(-1))
    assert [call["arguments"] for call in known.calls] == ['{"q": ', "{}"]
    assert fresh.said == known.said


def test_what_a_guard_finds_it_finds_as_soon_as_ever() -> None:
    guard = protocol.Guard(name="g", do="rewind", regex="Paris")
    one, client = lone(model("hermes"), guards=[guard]), FoldedSpans()
    begun = '<tool_call>{"name": "find", "arguments": {"q": "to '
    write(one, list(f"{begun}Paris".encode()))
    events = one.take()
    (guarded,) = [event for event in events if isinstance(event, protocol.Guarded)]
    assert guarded.index == len(begun)
    one.answer(api.Truncated(guarded.index))
    client.read([*events, *one.take()])
    write(one, list(b'Oslo"}}</tool_call>'))
    assert end(one, client).calls[0]["arguments"] == '{"q": "to Oslo"}'


def test_arguments_that_are_no_object_are_told_too() -> None:
    one = lone(model("hermes"))
    write(one, list(b'<tool_call>{"name": "find", "arguments": 12}</tool_call>'))
    *_, arguments, done = (event for event in one.take() if isinstance(event, ToolArguments | ToolCallDone))
    assert isinstance(arguments, ToolArguments)
    assert arguments.delta == "12"
    assert isinstance(done, ToolCallDone)
