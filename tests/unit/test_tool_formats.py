"""Calls and reasoning in every known format: the same is told however the text was cut into tokens, whatever
its strings hold, and what was cut off is never told as a call. Every cut is tried in
`bench/reliability/formats.py`.
"""

from __future__ import annotations

import ast
import itertools
import re
from typing import Any, cast

import pytest

from realtime.tools.call_reader import LONGEST_NAME, LONGEST_UNTOLD
from realtime.tools.formats import BY_NAME, TOOL_FORMATS, find, find_reasoning
from realtime.tools.marks import Marks
from realtime.tools.parts import Arguments, CallBegun, CallEnded, Content
from realtime.tools.span_reader import SpanReader
from realtime.tools.spelling import spelling_of
from tests.fakes.cut_calls import CALLS, EVERY, OFFERED, cuts_of, is_told, pieces_of, sample
from tests.fakes.spelt_calls import BARE, DSML, SPELT, THINK, Pieces, Told, told

FEW = {"stride": 5, "pairs": 15, "at_random": 15}


def _beyond(text: str, shown: str) -> str:
    """What of `shown` is not the beginning of the text."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, shown, strict=False))
    return shown[len(list(same)) :]


@pytest.mark.parametrize(("name", "single"), EVERY)
def test_the_same_is_told_under_any_cut(name: str, single: bool) -> None:
    text, calls = sample(name)
    pieces = pieces_of(name, single=single)
    first = told(pieces.reader(OFFERED), pieces.tokens(text))
    assert is_told(calls, first), first.said
    for cuts in cuts_of(len(text.encode()), **FEW):
        assert told(pieces.reader(OFFERED), pieces.tokens(text, cuts)).said == first.said, cuts


@pytest.mark.parametrize(("name", "single"), EVERY)
def test_what_is_cut_off_is_no_call(name: str, single: bool) -> None:
    text, calls = sample(name)
    form, pieces = BY_NAME[name], pieces_of(name, single=single)
    tokens = pieces.tokens(text)
    reader, so_far = pieces.reader(OFFERED), Told()
    for index, token in enumerate(tokens):
        ending = reader.copy().flush()
        assert not any(isinstance(part, CallBegun | CallEnded) for part in ending), "an end makes no call"
        shown = so_far.content + "".join(part.text for part in ending if isinstance(part, Content))
        rest = _beyond("On <itDone <t", shown).rstrip("\ufffd")
        marks = (*form.opens, *form.sections, *form.fills, THINK.open)
        if single:
            marks = tuple(mark.replace(DSML, "") for mark in marks)  # within one: it shows as nothing
        begun = (mark.startswith(rest) for mark in marks)
        assert any(begun), "no part of a call becomes content, but of a delimiter that was cut off"
        assert so_far.whole == calls[: len(so_far.whole)]
        so_far.add(reader.feed(token, index))
    assert so_far.whole == calls


@pytest.mark.parametrize(("name", "single"), EVERY)
def test_a_call_spans_its_tokens(name: str, single: bool) -> None:
    """Behind a rewind to where it began nothing of it is left; and at its end it was whole."""
    text, _ = sample(name)
    pieces = pieces_of(name, single=single)
    tokens = pieces.tokens(text)
    for at, (_, _, index, end) in enumerate(told(pieces.reader(OFFERED), tokens).calls):
        for reached, whole in ((index, at), (end - 1, at), (end, at + 1)):
            assert len(told(pieces.reader(OFFERED), tokens[:reached]).whole) == whole
        rest = told(pieces.reader(OFFERED), [*tokens[:index], *pieces.tokens("7 done")])
        assert len(rest.calls) == at
        assert rest.content.endswith("7 done")


@pytest.mark.parametrize(("name", "single"), EVERY)
def test_a_copy_goes_on_where_it_was_made(name: str, single: bool) -> None:
    text, _ = sample(name)
    pieces = pieces_of(name, single=single)
    tokens = pieces.tokens(text, range(0, 1000, 3))
    first = told(pieces.reader(OFFERED), tokens)
    reader, before = pieces.reader(OFFERED), Told()
    for index, token in enumerate(tokens):
        again, all_of_it = reader.copy(), Told()
        again.feed(tokens[-1], index)  # what one does is nothing to the other
        again, all_of_it.content, all_of_it.reasoning = reader.copy(), before.content, before.reasoning
        all_of_it.calls = [list(call) for call in before.calls]
        for later in range(index, len(tokens)):
            if index % 9 == 0:
                all_of_it.add(again.feed(tokens[later], later))
        if index % 9 == 0:
            all_of_it.add(again.flush())
            assert all_of_it.said == first.said
        before.add(reader.feed(token, index))
        lengths = reader.lengths
        assert (lengths.content, lengths.reasoning) == (len(before.content), len(before.reasoning))
        assert lengths.calls == len(before.calls)
        assert not before.calls or lengths.arguments == len(before.calls[-1][1])
        assert lengths.open == bool(before.calls and before.calls[-1][3] is None)


@pytest.mark.parametrize("name", BARE)
def test_an_answer_that_is_calls_alone_needs_no_delimiter(name: str) -> None:
    pieces = Pieces(name, single=False)
    text = BARE[name](CALLS)
    for cuts in cuts_of(len(text.encode()), **FEW):
        assert told(pieces.reader(OFFERED), pieces.tokens(text, cuts)).whole == CALLS


@pytest.mark.parametrize(
    "text",
    ['{"city": "Paris"}', '{"name": "other", "parameters": {}}', "{}", "[1, 2]", "[other(a=1)]", "[find"],
)
@pytest.mark.parametrize("name", BARE)
def test_and_an_answer_that_only_looks_like_one_is_content(name: str, text: str) -> None:
    pieces = Pieces(name, single=False)
    whole = told(pieces.reader(OFFERED), pieces.tokens(" " + text + " so"))
    assert (whole.content, whole.calls) == (" " + text + " so", [])


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>hello</tool_call>",
        "<tool_call>\n[1]",
        '<tool_call>{"arguments": {}}',
        '<tool_call>{"name": 7, "arguments": {}}',
        '<tool_call>{"what": 1, "name": "find"}',
        "<tool_call <tool_call>x",
        "a < b, c << d, <t<to<too",
        "<|tool_call>",
    ],
)
def test_what_turns_out_to_be_no_call_is_content(text: str) -> None:
    pieces = Pieces("hermes", single=False)
    for cuts in cuts_of(len(text), **FEW):
        assert told(pieces.reader(OFFERED), pieces.tokens(text + "!", cuts)).content == text + "!"


def test_a_single_token_is_known_by_its_id_alone() -> None:
    """Text that spells it alike, as a model that writes about itself does, is text."""
    pieces = Pieces("hermes", single=True)
    spelt = [*pieces.tokens("The tag "), pieces.token(b"<tool_call>"), *pieces.tokens(" opens a call.")]
    assert told(pieces.reader(OFFERED), spelt).said == ("The tag <tool_call> opens a call.", "", [])


def test_a_call_that_breaks_off_has_no_end() -> None:
    pieces = Pieces("hermes", single=True)
    broken = '<tool_call>{"name": "find", "arguments": {"q": 1</tool_call>'
    whole = '<tool_call>{"name": "stop", "arguments": {}}</tool_call>'
    said = told(pieces.reader(OFFERED), pieces.tokens(broken + "\n" + whole))
    assert said.said == ("", "", [("find", '{"q": 1', False), ("stop", "{}", True)])


@pytest.mark.parametrize("single", [True, False])
def test_keys_that_stand_bare_may_have_blanks_before_them(single: bool) -> None:
    pieces = Pieces("gemma4", single=single)
    text = '<|tool_call>call:find{ q:<|"|>a b<|"|>,\n  deep:{ a:1, b:[{c:2}, { d:3 }]}, n:4 }<tool_call|>'
    said = told(pieces.reader(OFFERED), pieces.tokens(text))
    given = {"q": "a b", "deep": {"a": 1, "b": [{"c": 2}, {"d": 3}]}, "n": 4}
    assert said.whole == [("find", given)]


def test_without_tools_what_is_spelt_like_a_call_is_content() -> None:
    pieces = Pieces("hermes", single=False)
    text = SPELT["hermes"](CALLS)
    assert told(pieces.reader(None), pieces.tokens("<think>x</think>" + text)).said == (text, "x", [])


@pytest.mark.parametrize(
    ("arguments", "given"),
    [('"{\\"a\\": 1}"', {"a": 1}), ('{"a": 1}, "id": "x", "type": "function"', {"a": 1})],
)
def test_arguments_within_a_string_and_what_stands_beside_them(arguments: str, given: dict[str, Any]) -> None:
    pieces = Pieces("hermes", single=False)
    text = f'<tool_call>{{"arguments": {arguments}, "name": "find"}}</tool_call>'
    assert told(pieces.reader(OFFERED), pieces.tokens(text)).whole == [("find", given)]
    nested = (
        f'<tool_call>{{"type": "function", "function": {{"name": "find", "arguments": {given!r}}}}}'.replace(
            "'", '"'
        )
    )
    assert told(pieces.reader(OFFERED), pieces.tokens(nested)).whole == [("find", given)]


def test_reasoning_that_the_prompt_opened() -> None:
    pieces = Pieces("hermes", single=True)
    prompt = pieces.tokens("<think>\n")
    assert told(pieces.reader(OFFERED, prompt), pieces.tokens("so\n</think>\n\nYes")).said == (
        "Yes",
        "so",
        [],
    )


def test_a_header_that_the_prompt_opened() -> None:
    pieces = Pieces("harmony", single=True, reasoning=None)
    prompt = pieces.tokens("<|start|>assistant")
    call = ' to=functions.find<|channel|>commentary json<|message|>{"q": 1}<|call|>'
    assert told(pieces.reader(OFFERED, prompt), pieces.tokens(call)).whole == [("find", {"q": 1})]
    plain = "<|channel|>final<|message|>Yes<|return|>"
    assert told(pieces.reader(None, prompt), pieces.tokens(plain)).said == ("Yes", "", [])


def test_what_is_injected_is_part_of_calls_alone() -> None:
    pieces = Pieces("hermes", single=True)
    reader, said = pieces.reader(OFFERED), Told()
    said.add(reader.feed(pieces.tokens("<think>")[0], 0))
    said.add(reader.inject(pieces.tokens("enough</think>Well, "), 1))
    said.add(reader.inject(pieces.tokens('<tool_call>{"name": "find", "arguments": {"q": "'), 1))
    for index, token in enumerate(pieces.tokens('Par"}}</tool_call>'), 1):
        said.add(reader.feed(token, index))
        if index == 3:
            said.add(reader.inject(pieces.tokens("is"), 4))
    assert said.said[0:2] == ("", "")
    assert said.whole == [("find", {"q": "Paris"})]
    assert said.calls[0][2:] == [1, 7]


@pytest.mark.parametrize("text", ["\n ", "<too", '{"na'])
def test_what_the_end_alone_says_is_said_once(text: str) -> None:
    """Where it is asked for again: a stream that begins with its past has been told it already."""
    pieces = Pieces("llama3_json", single=False, reasoning=None)
    reader, told = pieces.reader({"find": frozenset()}), Told()
    for token in pieces.tokens(text):
        told.add(reader.feed(token, 0))
    told.add(reader.flush())
    told.add(reader.flush())
    assert told.content == text


def test_another_turn_begins_anew() -> None:
    pieces = Pieces("hermes", single=True)
    reader, said = pieces.reader(OFFERED), Told()
    for index, token in enumerate(pieces.tokens('<tool_call>{"name": "find", "arguments": {"q": 1')):
        said.add(reader.feed(token, index))
    reader.begin_turn(pieces.tokens("<think>\n"), 60)
    for index, token in enumerate(pieces.tokens("so</think>Yes"), 60):
        said.add(reader.feed(token, index))
    assert said.said == ("Yes", "so", [("find", '{"q": 1', False)])


@pytest.mark.parametrize("name", SPELT)
def test_a_name_has_a_limit(name: str) -> None:
    """What opens and never names a call is given back, and not held for ever."""
    pieces = pieces_of(name, single=True)
    opened = SPELT[name]([("find", {})]).partition("find")[0]
    reader = pieces.reader(OFFERED)
    held = [reader.feed(token, at) for at, token in enumerate(pieces.tokens(opened + "x" * 1200))]
    given_back = "".join(part.text for parts in held for part in parts if isinstance(part, Content))
    assert "x" * 500 in given_back


@pytest.mark.parametrize("name", [form.name for form in TOOL_FORMATS if form.body == "named"])
def test_a_header_is_looked_at_no_longer_than_it_is(name: str) -> None:
    """Whatever blanks, lines and names stand in it: where it cost more, this would not end."""
    header = BY_NAME[name].header
    parts = (" ", "a", ":1", "[CALL_ID]", "<|channel|>", BY_NAME["deepseek_v31"].header.ends[0])
    for one, other in itertools.product(parts, repeat=2):
        text = f" {one * 9000}{other * 9000}\n {one * 9000}`"
        for pattern in filter(None, (header.name, header.reasoning)):
            re.search(pattern, text.strip())


@pytest.mark.parametrize("name", ["kimi_k2", "deepseek_v3", "deepseek_v31"])
def test_a_header_of_many_delimiters_is_given_back(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a token, and much text to look at, again wherever it may end."""
    pieces = pieces_of(name, single=True)
    form, looked = BY_NAME[name], list[int]()
    search = re.search

    def counted(pattern: str, text: str) -> re.Match[str] | None:
        looked.append(len(text))
        return search(pattern, text)

    monkeypatch.setattr("realtime.tools.named_call.re.search", counted)
    end = form.header.ends[0]
    delimiter = form.opens[0] if end == "\n" else end
    text = form.opens[0] + "a\nb" + f"{delimiter}`{end}" * 150
    said = told(pieces.reader(OFFERED), pieces.tokens(text))
    assert max(looked) <= LONGEST_NAME
    assert said.calls == []


def test_blanks_are_no_name() -> None:
    pieces = pieces_of("deepseek_v31", single=True)
    begin, end = BY_NAME["deepseek_v31"].opens[0], BY_NAME["deepseek_v31"].header.ends[0]
    assert told(pieces.reader(OFFERED), pieces.tokens(f"{begin} {end}{{}}")).calls == []


ENDLESS = {"blanks": " \n", "lists": "[[1,", "numbers": "1", "quotes": "'", "opened": '{"', "text": "a"}


@pytest.mark.parametrize("repeated", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("name", SPELT)
def test_what_is_waited_for_has_an_end(name: str, repeated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever a call breaks off, and whatever follows for ever: little of it is held, under any cut."""
    for place, limit in (("json_call", "VALUE"), ("pythonic_call", "VALUE"), ("tagged_call", "VALUE")):
        monkeypatch.setattr(f"realtime.tools.{place}.LONGEST_{limit}", 700)
    for place in ("span_reader", "json_call"):
        monkeypatch.setattr(f"realtime.tools.{place}.LONGEST_UNTOLD", 700)
    pieces = pieces_of(name, single=False)
    call = SPELT[name]([("find", {"q": "one", "n": [1]})])
    for end in range(len(call) // 3, len(call), 7):
        text = call[:end] + repeated * (3000 // len(repeated))
        reader, fed = pieces.reader(OFFERED), Told()
        for index, token in enumerate(pieces.tokens(text, range(0, len(text.encode()), 60))):
            fed.add(reader.feed(token, index))
        gap = reader.held == len(reader._blanks)  # they are said, or left out, as soon as anything follows
        assert reader.held < 1600 or gap, call[:end]
        fed.add(reader.flush())
        if end % 5 == 0:
            assert told(pieces.reader(OFFERED), pieces.tokens(text)).said == fed.said


@pytest.mark.parametrize("name", SPELT)
def test_no_more_is_said_with_a_token_than_what_is_held_may_come_to(name: str) -> None:
    """Delimiters that are a character each, and what JSON escapes: guards read ahead where that is much."""
    pieces = pieces_of(name, single=True)
    call = SPELT[name]([("find", {"q": "one", "n": [1]})])
    widest = pieces.spelling.delimiters.widest
    for end in range(3, len(call), 3):
        for within in (pieces.single[0] * 60, '"\x01' * 60):
            reader = pieces.reader(OFFERED)
            for index, token in enumerate(pieces.tokens(call[:end] + within + call[end:])):
                most = widest * (reader.held + len(pieces.bytes[token]) + 2)
                texts = (part for part in reader.feed(token, index) if isinstance(part, Content | Arguments))
                assert sum(len(part.text) for part in texts) <= most, call[:end]


def test_what_python_alone_can_read_is_short_or_a_string(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads some ten thousand characters in a tenth of a second, amid everybody's events."""
    read, reads = list[str](), ast.literal_eval

    def evaluated(spelt: str) -> object:
        read.append(spelt)
        return reads(spelt)

    monkeypatch.setattr("ast.literal_eval", evaluated)
    pieces = pieces_of("pythonic", single=False)
    for value, whole in (("[" + "1," * 5000 + "]", False), ("[True]", True), ("'it\\'s'", True)):
        so_far = told(pieces.reader(OFFERED), pieces.tokens(f"[find(q={value})]"))
        assert bool(so_far.whole) is whole, value[:20]
    so_far = told(pieces.reader(OFFERED), pieces.tokens("[find(q='" + "it\\'s " * 2000 + "')]"))
    assert so_far.whole
    assert max(len(spelt) for spelt in read if spelt.startswith("[")) < 2100


@pytest.mark.parametrize("form", TOOL_FORMATS, ids=lambda form: form.name)
def test_each_format_is_found_by_its_marks(form: Any) -> None:
    for marks in form.found_by:
        assert find(" ".join(["{% if tools %}", *marks])) is form
    assert find("{{ messages }} <tool_call>") is None


@pytest.mark.parametrize(
    ("template", "asked", "name", "in_template"),
    [
        ("{{ tools }} <tool_call>", "auto", "hermes", True),
        ("{{ tools }} [TOOL_CALLS]", "auto", "mistral", True),
        ("{{ tools }} in a way of its own", "auto", "hermes", False),
        ("{{ tools }} in a way of its own", "phi4", "phi4", True),
        ("{{ messages }}", "auto", "hermes", False),
        ("{{ messages }}", "phi4", "hermes", False),
        ("{{ messages }} <|channel|> <|message|>", "auto", "harmony", False),
    ],
)
def test_which_format_a_model_is_read_by(template: str, asked: str, name: str, in_template: bool) -> None:
    spelling = spelling_of(template, asked, pieces={}, added={}, special=frozenset(), leading_spaces=0)
    assert (spelling.tools.name, spelling.in_template) == (name, in_template)


def test_so_is_reasoning() -> None:
    assert find_reasoning("{% if '</think>' in content %}<think>") == THINK
    assert find_reasoning("{{ messages }}") is None


def test_characters_in_pieces_and_broken_ones() -> None:
    pieces = Pieces("hermes", single=True)
    tokens = [pieces.token(bytes([byte])) for byte in "é<".encode()] + [pieces.token(b"\xe6\x97")]
    reader: SpanReader = pieces.reader(OFFERED)
    assert told(reader, tokens + pieces.tokens("<think>") + [pieces.token(b"\xe6")]).said == ("é<�", "�", [])


@pytest.mark.parametrize("single", [True, False])
@pytest.mark.parametrize("before", ["", THINK.open + "so", THINK.open, THINK.open + THINK.close])
def test_endless_blanks_are_not_held_without_end(before: str, single: bool) -> None:
    """Each token would cost as much as all before it: and what nobody will be told is not held at all."""
    pieces = Pieces("hermes", single=single)
    reader, said = pieces.reader(OFFERED), Told()
    text = before + " \n" * LONGEST_UNTOLD + "x"
    for index, token in enumerate(pieces.tokens(text, range(0, len(text), 64))):
        said.add(reader.feed(token, index))
        assert reader.held <= LONGEST_UNTOLD + len(before)
    said.add(reader.flush())
    blanks = "" if before.endswith(">") else " \n" * LONGEST_UNTOLD
    told_in = said.reasoning if THINK.open in before and THINK.close not in before else said.content
    assert told_in == before.removeprefix(THINK.open).removeprefix(THINK.close) + blanks + "x"


@pytest.mark.parametrize("single", [True, False])
def test_endless_lines_before_a_name_are_not_held(single: bool) -> None:
    """What is put in beside the output has no bound of its own, and with each line all before it was read."""
    pieces = Pieces("glm", single=single)
    reader, said = pieces.reader(OFFERED), Told()
    text = SPELT["glm"]([("find", {"q": "one"})])
    opened, _, rest = text.partition("find")
    tokens = pieces.tokens(opened)
    for index, token in enumerate(tokens):
        said.add(reader.feed(token, index))
    said.add(reader.inject(pieces.tokens("\n" * 1000), len(tokens)))
    assert reader.held < 100
    for index, token in enumerate(pieces.tokens("find" + rest), len(tokens)):
        said.add(reader.feed(token, index))
    said.add(reader.flush())
    assert [call[0] for call in said.whole] == ["find"]


@pytest.mark.parametrize("name", ["lfm2", "mistral"])
def test_what_stands_between_calls_is_looked_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each comma all that stood behind it was, in search of a delimiter."""
    looked_at, plain_until = list[int](), Marks.plain_until

    def counted(marks: Marks, mode: str, text: str, at: int, *end: int) -> int:
        until = plain_until(marks, mode, text, at, *end)
        looked_at.append(until - at)
        return until

    monkeypatch.setattr(Marks, "plain_until", counted)
    pieces = pieces_of(name, single=True)
    reader = pieces.reader(OFFERED)
    call = SPELT[name]([("find", {"q": "one"})])
    tokens = pieces.tokens(call[: call.rindex("]")])
    for index, token in enumerate(tokens):
        reader.feed(token, index)
    looked_at.clear()
    reader.inject([pieces.token(b" ," * 500)], len(tokens))
    assert sum(looked_at) <= 1000


@pytest.mark.parametrize("name", ["hermes", "harmony", "gemma4", "lfm2"])
def test_what_is_written_between_brackets_is_read_in_runs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Character by character, an amend of a long call had everybody wait."""
    calls = [("find", {"n": [1, 2.5] * 500})]
    pieces = pieces_of(name, single=True)
    text = SPELT[name](calls)
    reader, said, steps = pieces.reader({"find": {"n"}}), Told(), counted_steps(pieces, monkeypatch)
    before = text.index("1")
    for index, token in enumerate(pieces.tokens(text, [before, text.rindex("5") + 1])):
        said.add(reader.feed(token, index))
    assert said.whole == calls
    assert len(steps) < len(text) - 4000 // 2


@pytest.mark.parametrize("name", ["hermes", "harmony", "lfm2", "glm", "qwen3_coder"])
@pytest.mark.parametrize("text", ['\\"', "\n", "</a"], ids=["escapes", "lines", "tags"])
def test_what_stands_in_a_string_is_read_in_runs(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever may end it or be escaped there: 16,000 such characters in an amend had everybody wait."""
    calls = [("find", {"q": text * 500})]
    pieces = pieces_of(name, single=False)
    steps = counted_steps(pieces, monkeypatch)
    spelt = SPELT[name](calls).encode()
    said = told(pieces.reader(OFFERED), pieces.tokens(spelt.decode(), [len(spelt) // 2]))
    assert said.whole == calls
    assert len(steps) < 300


@pytest.mark.parametrize("name", [name for name in SPELT if BY_NAME[name].tags.value_end])
def test_what_is_too_long_breaks_off_where_it_does_under_any_cut(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it has what looks like its end: that is held until it is known to be none."""
    monkeypatch.setattr("realtime.tools.tagged_call.LONGEST_VALUE", 64)
    pieces = pieces_of(name, single=False)
    almost = BY_NAME[name].tags.value_end[:-2] + "-"
    for before in range(30, 70):
        number = int("1" * before)
        text = SPELT[name]([("find", {"n": number})]).replace(f"{number}", f"{number}{almost * 3}")
        at_once = told(pieces.reader(OFFERED), pieces.tokens(text, []))
        assert at_once.said == told(pieces.reader(OFFERED), pieces.tokens(text)).said, before


@pytest.mark.parametrize(("name", "behind"), [("lfm2", ","), ("glm", "find\n")])
def test_blanks_before_an_argument_are_read_in_runs(
    name: str, behind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [("find", {"q": "a", "r": "b"})]
    pieces = pieces_of(name, single=False)
    before, found, rest = SPELT[name](calls).partition(behind)
    steps = counted_steps(pieces, monkeypatch)
    text = before + found + "\n" * 1000 + rest
    assert told(pieces.reader(OFFERED), pieces.tokens(text, [])).whole == calls
    assert len(steps) < 300


def counted_steps(pieces: Pieces, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The characters that readers of calls read one by one from now on."""
    steps, kind = list[str](), cast(Any, type(pieces.spelling.call_reader("", {})))
    stepped = kind.step

    def step(call: Any, char: str) -> Any:
        steps.append(char)
        return stepped(call, char)

    monkeypatch.setattr(kind, "step", step)
    return steps
