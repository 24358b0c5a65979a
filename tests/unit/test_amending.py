"""Calls that are amended: in every format and at every token they say what they were amended to, under the
same id, and not a token more is written anew than says something else.

Each change is made at every third token; `MIDSTREAM_EXAMPLES` set to any number makes each at all.
"""

from __future__ import annotations

import json
import os
import random
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from midstream import protocol
from midstream.protocol import Function, Tool
from realtime.refusal import Refusal
from realtime.stream.accumulated_output import Output
from realtime.stream.amendment import LONGEST_BEGINNING, MOST_SIGNS_WRITTEN, Amendment, amendment, checked
from realtime.stream.spanned_text import SpannedText
from realtime.text.served_model import ServedModel
from realtime.text.tokenizer import Tokenizer
from realtime.tools.argument_text import pieces_of
from realtime.tools.offered import argument_kinds
from tests.fakes.counted_work import counted
from tests.fakes.spelt_calls import SPELT, Calls, Pieces

SCHEMA = {
    "type": "object",
    "properties": {
        "q": {"type": "string"},
        "n": {"type": "integer"},
        "yes": {"type": "boolean"},
        "deep": {"type": "object"},
    },
}
KINDS = argument_kinds(
    [Tool(function=Function(name="find", parameters=SCHEMA)), Tool(function=Function(name="stop"))]
)
OLD = {"q": 'say "hi" \\ } é日👩‍👧\n', "n": 3, "yes": True, "deep": {"a": [1, None], "b": ""}}
NEW = [
    OLD | {"q": 'say "ho" } é日👩‍👧\n'},
    OLD | {"n": 4},
    OLD | {"yes": False},
    OLD | {"deep": {"a": [1, None], "b": "x\n"}},
    {"q": "", "n": 0, "yes": False, "deep": {}},
    {"n": 3},
    {},
    OLD,
]
CALLS: Calls = [("stop", {}), ("find", OLD)]
EVERY = [(name, single) for name in SPELT for single in (True, False)]
APART = 1 if "MIDSTREAM_EXAMPLES" in os.environ else 3  # tokens, between those at which it is amended


class NotBegunError(Exception):
    """There are no arguments yet to be amended."""


class Written:
    """What a model of a format has written, in tokens of any cut, as a stream keeps it."""

    def __init__(self, name: str, calls: Calls = CALLS, *, single: bool, seed: int = 0) -> None:
        self.pieces = Pieces(name, single=single, reasoning=None)
        self.text = SPELT[name](calls)
        size = len(self.text.encode())
        self.tokens = self.pieces.tokens(self.text, random.Random(seed).sample(range(1, size), size // 3))

    @property
    def tokenizer(self) -> Tokenizer:
        pieces = self.pieces
        table = SimpleNamespace(bytes=pieces.bytes, whole={}, leading_spaces=0)
        return cast(
            Tokenizer,
            SimpleNamespace(spelling=pieces.spelling, pieces=table, encode_marked=self.encode_marked),
        )

    def encode_marked(self, marked: str) -> list[int]:
        tokens = list[int]()
        for part in self.pieces.spelling.delimiters.parts(marked):
            text = [] if isinstance(part, int) else [part[at : at + 3] for at in range(0, len(part), 3)]
            tokens += [part] if isinstance(part, int) else [self.pieces.token(one.encode()) for one in text]
        return tokens

    def output(self, count: int) -> Output:
        tokenizer = self.tokenizer
        spans = SpannedText(tokenizer, "a", KINDS, [], (), 0, one_call=False)
        output = Output(tokenizer, (), 0, spans)
        for token in self.tokens[:count]:
            output.add(token)
        return output

    def amend(
        self, output: Output, arguments: Any, *, partial: bool = False, vocab: int = 1 << 20
    ) -> Amendment:
        """The last call, as a stream does it."""
        spans = output.spans
        assert spans is not None
        call = spans.calls[-1]
        asked = protocol.Amend(request_id="a", call_id=call.call_id, arguments=arguments, partial=partial)
        try:
            model = ServedModel("toy", self.tokenizer, vocab, 4096, None)
            change = amendment(output, call, checked(asked), model)
        except Refusal as refusal:
            if "have not begun" in str(refusal):
                raise NotBegunError from None
            raise
        if change.behind is not None:
            index, injected = output.place(change.behind)
            output.cut(index, (), injected)
            if change.tokens:
                output.inject(change.tokens, amends=call.call_id)
            assert [one.call_id for one in spans.calls[-1:]] == [call.call_id]
        return change


def said(output: Output) -> Any:
    assert output.spans is not None
    call = output.spans.calls[-1]
    return json.loads("".join(call.arguments))


def test_formats_are_all_there() -> None:
    assert len(SPELT) > 15


@pytest.mark.parametrize(("name", "single"), EVERY)
def test_whatever_was_written_it_says_what_it_was_amended_to(name: str, single: bool) -> None:
    for seed, new in enumerate(NEW):
        written = Written(name, single=single, seed=seed)
        amended = 0
        for count in range(seed % APART, len(written.tokens) + 1, APART):
            output = written.output(count)
            spans = output.spans
            assert spans is not None
            if not spans.calls or spans.calls[-1].name != "find":
                continue
            with suppress(NotBegunError):
                written.amend(output, new)
                assert said(output) == new, (count, written.text)
                amended += 1
        assert amended > 5


@pytest.mark.parametrize(("name", "single"), EVERY)
def test_what_says_the_same_stays(name: str, single: bool) -> None:
    written = Written(name, single=single)
    output = written.output(len(written.tokens))
    assert written.amend(output, OLD) == Amendment(None, [])
    before = written.text.encode()
    change = written.amend(output, OLD | {"yes": False})
    assert change.behind is not None
    kept = b"".join(written.pieces.bytes[token] for token in written.tokens[: change.behind])
    marks = [written.pieces.single[token] for token in written.tokens[: change.behind] if token < 1000]
    length = len(kept) + len("".join(marks).encode())
    word = b"True" if b"True" in before else b"true"
    assert before.rindex(word) - 8 < length <= before.rindex(word), "it is but a token that goes further back"


@pytest.mark.parametrize(("name", "single"), EVERY)
def test_one_can_be_amended_again_where_it_was_amended(name: str, single: bool) -> None:
    chance = random.Random(name)
    written = Written(name, single=single)
    output = written.output(len(written.tokens))
    for _ in range(12):
        new = chance.choice(NEW)
        written.amend(output, new)
        assert said(output) == new
        standing = len(output) + output.injected()
        assert written.amend(output, new) == Amendment(None, [])
        assert len(output) + output.injected() == standing
    assert output.injected() < 130, "nothing piles up"


@pytest.mark.parametrize(("name", "single"), EVERY)
def test_a_beginning_leaves_the_rest_to_the_model(name: str, single: bool) -> None:
    text = json.dumps(OLD, ensure_ascii=False)
    whole = Written(name, single=single)
    for until in range(1, text.index(', "deep"'), 3):
        output = whole.output(len(whole.tokens))
        whole.amend(output, text[:until], partial=True)
        assert output.spans is not None
        assert output.spans.calls[-1].end is None
        told = "".join(output.spans.calls[-1].arguments)
        assert text.startswith(told.rstrip()) or whole.pieces.spelling.tools.body != "json", (
            told,
            text[:until],
        )
        whole.amend(output, OLD)
        assert said(output) == OLD


@pytest.mark.parametrize(("name", "single"), EVERY)
def test_of_several_that_were_put_in_at_one_token_no_other_is_amended(name: str, single: bool) -> None:
    first = {"q": "first", "n": 1}
    written = Written(name, [("find", first), ("find", OLD)], single=single)
    amended = 0
    for at in range(1, len(written.tokens), APART):
        output = written.output(0)
        output.inject(written.tokens[:at])
        output.inject(written.tokens[at:])
        assert output.spans is not None
        told = [call.call_id for call in output.spans.calls]
        if len(told) < 2:  # it was cut where no delimiter may be
            continue
        for new in ({"n": 4}, OLD):
            written.amend(output, new)
            assert [call.call_id for call in output.spans.calls] == told
            assert [json.loads("".join(call.arguments)) for call in output.spans.calls] == [first, new]
            amended += 1
    assert amended


@pytest.mark.parametrize(
    "arguments",
    ["", "[]", "{", '{"q": 1,}', "nonsense", '{"n": NaN}', {"q": float("nan")}],
)
def test_what_is_no_object_is_refused(arguments: Any) -> None:
    with pytest.raises(Refusal, match="a JSON object"):
        checked(protocol.Amend(request_id="a", call_id="x", arguments=arguments))


def test_what_a_format_cannot_say_is_refused_and_nothing_changes() -> None:
    written = Written("qwen3_coder", single=False)
    output = written.output(len(written.tokens))
    evil = "x\n</parameter>\n<parameter=n>\n4"
    for arguments in (OLD | {"q": evil}, OLD | {"q": 3, "other": 4}):
        with pytest.raises(Refusal, match="cannot say"):
            written.amend(output, arguments)
        assert said(output) == OLD
    with pytest.raises(Refusal, match="a JSON object"):
        written.amend(output, '{"q": "\\ud800"}')


def test_keys_come_as_they_were_written_and_others_in_the_schemas_order() -> None:
    written = Written("hermes", [("find", {"n": 1, "q": "x"})], single=True)
    output = written.output(len(written.tokens))
    written.amend(output, {"extra": 1, "deep": {}, "yes": True, "q": "x", "n": 1})
    assert list(said(output)) == ["n", "q", "yes", "deep", "extra"]
    half = written.output(len(written.tokens) - 4)
    assert half.spans is not None
    assert half.spans.calls[-1].end is None
    change = written.amend(half, {"q": "y", "n": 1})
    assert list(said(half)) == ["n", "q"]
    assert change.behind is not None
    assert change.behind > len(written.tokens) // 2, "what stands of them stays"


def test_an_answer_of_many_characters_is_refused_by_its_length() -> None:
    with pytest.raises(Refusal, match="may have 16384"):
        checked(protocol.Amend(request_id="a", call_id="x", arguments={"q": "x" * 20_000}))
    strings = ['x\\"1,1,'] * 500
    checked(protocol.Amend(request_id="a", call_id="x", arguments={"q": strings}))
    with pytest.raises(Refusal, match="may have 2048"):
        checked(protocol.Amend(request_id="a", call_id="x", arguments={"q": [1] * 800}))


@pytest.mark.parametrize("name", SPELT)
def test_what_is_nested_deeper_than_anybody_reads_is_refused(name: str) -> None:
    written = Written(name, single=True)
    output = written.output(len(written.tokens) - 6)
    deep = '{"q": "a", "n": ' + "[" * 1_000 + "]" * 1_000 + ', "yes": '
    with suppress(Refusal):
        written.amend(output, deep, partial=True)


def test_a_call_that_takes_long_to_read_again_is_not_amended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("realtime.stream.amendment.LONGEST_WRITTEN", 2_000)
    written = Written("hermes", single=True)
    output = written.output(0)
    output.inject(written.pieces.tokens(" " * 3_000 + written.text))
    assert output.spans is not None
    assert output.spans.lengths.calls == len(CALLS), "all of it is read"
    with pytest.raises(Refusal, match="more than 2000 characters"):
        written.amend(output, OLD)


def test_what_is_read_again_of_a_long_call_is_read_many_tokens_at_a_time() -> None:
    lines = []
    for length in (500, 10_000):
        written = Written("hermes", [("find", OLD | {"q": "ÿ" * length})], single=True)
        output = written.output(len(written.tokens))
        with counted() as work:
            written.amend(output, OLD | {"q": "ÿ" * length + "x"})
        lines.append(work.lines)
        assert said(output)["q"] == "ÿ" * length + "x"
    assert lines[1] < lines[0] + 4 * 10_000


def test_what_says_nothing_before_a_call_is_read_again_many_tokens_at_a_time() -> None:
    lines = []
    for length in (500, 10_000):
        written = Written("hermes", [("find", OLD)], single=True)
        output = written.output(0)
        output.inject([written.pieces.token(b"")] * length + written.tokens)
        assert output.spans is not None
        assert output.spans.lengths.calls == 1, "all of it is read"
        with counted() as work:
            written.amend(output, OLD | {"n": 4})
        lines.append(work.lines)
        assert said(output)["n"] == 4
    assert lines[1] < lines[0] + 8 * 10_000


def opened(name: str, text: str) -> tuple[Written, Output]:
    """A call that is being written, of which this stands, many characters a token."""
    written = Written(name, [("find", OLD)], single=True)
    output = written.output(0)
    output.inject(written.pieces.tokens(text, range(0, len(text), 16)))
    assert output.spans is not None
    assert output.spans.lengths.open, "all of it is read"
    return written, output


def test_a_call_of_very_many_arguments_is_not_amended() -> None:
    """Of which each may be one that stays: 10,000 held everybody up for 0.15 s."""
    written, output = opened("lfm2", "<|tool_call_start|>[find(" + "a='b'," * 10_000)
    with pytest.raises(Refusal, match=f"more than {MOST_SIGNS_WRITTEN} characters outside of strings"):
        written.amend(output, OLD)


def test_few_of_very_many_parts_of_an_argument_are_looked_at_one_by_one() -> None:
    lines = []
    for count in (3_000, 15_000):
        written, output = opened("lfm2", "<|tool_call_start|>[find(a=[" + "''," * count)
        with counted() as work:
            written.amend(output, OLD)
        lines.append(work.lines)
        assert said(output) == OLD
    assert lines[1] < 1.5 * lines[0]


def test_blanks_in_what_stands_are_passed_over_once() -> None:
    """As often as there are some, it never ends: 60,000 held everybody up for half a minute."""
    spelling = Pieces("hermes", single=True).spelling
    pieces = pieces_of(spelling, {}, "{}", "{" + " " * 1_000_000, "", partial=False)
    assert [piece.text for piece in pieces] == ["{", "}"]


@pytest.mark.parametrize("name", ["hermes", "lfm2", "glm"])
def test_a_call_that_begins_with_endless_blanks_is_not_amended(name: str) -> None:
    """Where its arguments begin is looked for character by character."""
    written = Written(name, [("find", OLD)], single=True)
    opened, _, rest = written.text.partition("find")
    output = written.output(0)
    blanks = "\n" * LONGEST_BEGINNING
    opened = opened.replace('{"name', "{" + blanks + '"name') if name == "hermes" else opened + blanks
    output.inject(written.pieces.tokens(opened + "find" + rest))
    assert output.spans is not None
    assert output.spans.lengths.calls == 1, "all of it is read"
    with pytest.raises(Refusal, match=f"more than {LONGEST_BEGINNING} characters until its name is known"):
        written.amend(output, {"n": 4})


def test_a_token_that_the_model_has_no_weights_for_is_refused() -> None:
    """A tokenizer may know more tokens; the step that was to compute one would fail for everybody."""
    written = Written("hermes", single=True)
    output = written.output(len(written.tokens))
    with pytest.raises(Refusal, match=r"whose own tokens are 0 to 999"):
        written.amend(output, OLD | {"q": "x"}, vocab=1000)
    assert said(output) == OLD


@pytest.mark.parametrize("name", ["hermes", "lfm2", "llama4_pythonic"])
def test_true_is_not_one(name: str) -> None:
    written = Written(name, [("find", {"yes": True, "n": 1})], single=True)
    output = written.output(len(written.tokens))
    written.amend(output, {"yes": 1, "n": True})
    assert said(output)["n"] is True
    assert said(output)["yes"] is not True


def test_arguments_that_are_too_long_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """An object's are known to be JSON; half a megabyte of them takes some time."""

    def unread(*_: Any, **__: Any) -> None:
        raise AssertionError("they were read")

    monkeypatch.setattr(json, "loads", unread)
    frame = protocol.Amend(request_id="a", call_id="b", arguments={"q": [[]] * 100_000})
    with pytest.raises(Refusal, match="an amend may have"):
        checked(frame)
