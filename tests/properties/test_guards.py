"""Guards: a pattern finds what Python's own expressions find, however its text is cut; what it finds begins
where the shortest match does; a value is read out of JSON as it means; and guards that went back are as ones
that never went there."""

from __future__ import annotations

import json
import re
from array import array
from bisect import bisect_right
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from midstream import protocol
from midstream.protocol import Budget, Guard
from realtime.guards.acts import Acts
from realtime.guards.guards import Guards
from realtime.guards.json_path import ValueReader, decoded, parsed
from realtime.guards.pattern import START, Pattern

LETTERS = "abAB1_ .\nß"
CHARACTERS = st.sampled_from(
    ["a", "b", "A", ".", "[ab]", "[^a]", r"\w", r"\W", r"\d", r"\s", "(?i:B)", "(?s:.)", "[A-B1]", "ß"]
)
ASSERTIONS = st.sampled_from([r"\b", r"\B", "^", "(?m:^)", r"\A", r"\Z", "(?m:$)"])


def _grown(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    group = inner.map("(?:{})".format)
    counts = st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,2}", "{2,}", "*?", "{0}"])
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.tuples(inner, inner).map("|".join).map("(?:{})".format),
        st.tuples(group, counts).map("".join),
    )


EXPRESSIONS = st.recursive(st.one_of(CHARACTERS, CHARACTERS, ASSERTIONS), _grown, max_leaves=8)
TEXTS = st.text(LETTERS, min_size=1, max_size=12)


def found(pattern: Pattern, pieces: list[str]) -> int:
    """Before which character that ends which is found first, or -1."""
    state, at = START, 0
    for piece in pieces:
        state, here = pattern.find(state, piece)
        if here >= 0:
            return at + here
        at += len(piece)
    return at if pattern.found_at_end(state) else -1


def cut(text: str, cuts: list[int]) -> list[str]:
    edges = [0, *sorted(at % (len(text) + 1) for at in cuts), len(text)]
    return [text[begin:end] for begin, end in pairwise(edges)]


@given(EXPRESSIONS, st.lists(TEXTS, min_size=1, max_size=8), st.lists(st.integers(0, 99), max_size=5))
@settings(max_examples=300)
def test_it_finds_what_python_finds_however_the_text_is_cut(
    expression: str, texts: list[str], cuts: list[int]
) -> None:
    pattern, known = Pattern(expression), re.compile(expression)
    for text in texts:
        at = found(pattern, [text])
        assert (at >= 0) == bool(known.search(text))
        assert found(pattern, cut(text, cuts)) == at
        if at >= 0 and not pattern.may_be_empty:
            begin = pattern.begin(text, at)
            matches = [
                (end, -begin)
                for end in range(1, len(text) + 1)
                for begin in range(end)
                if stands(expression, text, begin, end)
            ]
            assert (at, -begin) == min(matches)


def stands(expression: str, text: str, begin: int, end: int) -> bool:
    """Whether it matches just that, with what stands around it."""
    rest = f"(?=(?s:.){{{len(text) - end}}}\\Z)"
    return re.compile(f"(?:{expression}){rest}").match(text, begin) is not None


# -- values in JSON ----------------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "a b", 'q"', "é"])


def paired(text: str) -> str:
    """Halves that stand beside each other are one character, as whoever reads their escapes has it."""
    return text.encode("utf-16-be", "surrogatepass").decode("utf-16-be", "surrogatepass")


def of_whole(text: str) -> str:
    """What is said of it: a half of a pair that stands alone is nothing."""
    return text.encode("utf-8", "ignore").decode()


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-99, 99),
        st.floats(-9, 9),
        st.text('ab"\\\n/é🙂\ud83d\ude42', max_size=5).map(paired),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)
STEPS = st.lists(st.one_of(NAMES, st.integers(0, 2), st.none()), max_size=3)


def spelt(steps: list[str | int | None]) -> str:
    return "$" + "".join("[*]" if step is None else f"[{json.dumps(step)}]" for step in steps)


def at_path(value: Any, steps: list[str | int | None]) -> list[Any]:
    if not steps:
        return [value]
    step, rest = steps[0], steps[1:]
    inner: list[Any] = []
    if isinstance(value, dict):
        inner = [one for key, one in value.items() if step is None or step == key]
    elif isinstance(value, list):
        inner = [one for at, one in enumerate(value) if step in (None, at)]
    return [found for one in inner for found in at_path(one, rest)]


def said(text: str, steps: list[str | int | None]) -> list[str]:
    reader, values = ValueReader(parsed(spelt(steps))), list[str]()
    for char in text + " ":
        one = reader.read(char)
        values += [""] if one.begins else []
        if one.text:
            values[-1] += one.text
        if one.ends:
            values[-1] += "|"
    return values


@given(VALUES, STEPS, st.booleans(), st.sampled_from([None, 1]))
@settings(max_examples=300)
def test_what_stands_at_a_path_is_read(
    value: Any, steps: list[str | int | None], ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    told = [of_whole(one) + "|" if isinstance(one, str) else None for one in at_path(value, steps)]
    heard = said(text, steps)
    assert len(heard) == len(told)
    for here, there in zip(heard, told, strict=True):
        assert here.endswith("|")
        if there is not None:
            assert of_whole(here) == there
        else:
            json.loads(here[:-1])


@given(st.text('ab"\\\n/é🙂', max_size=12), st.integers(0, 40), st.integers(0, 40))
def test_where_each_character_of_a_string_stands(value: str, until: int, most: int) -> None:
    text = "  " + json.dumps(value)
    until = min(2 + until, len(text) - 1)
    whole, places = decoded(text, 2, until, 99)
    assert value.startswith(whole)
    assert len(places) == len(whole)
    assert all(later > earlier for earlier, later in pairwise(places))
    end, _ = decoded(text, 2, until, most)
    assert whole.endswith(end)


@pytest.mark.parametrize("path", ["$.a[0]", "$.a.b", '$["a b"][*].c', "$", "$.*", "$.größe"])
def test_paths_that_are_read(path: str) -> None:
    parsed(path)


@pytest.mark.parametrize(
    "path", ["", "a", "$.", "$a", "$.a[", "$[x]", '$["a]', "$..a", "$" + ".a" * 200, '$["\\x"]']
)
def test_paths_that_are_not(path: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parsed(path)


# -- guards, token by token --------------------------------------------------------------------------


class Call:
    def __init__(self, index: int, name: str) -> None:
        self.index, self.name = index, name
        self.arguments: list[str] = []
        self.end: int | None = None


Said = tuple[str, str]  # a channel, and a text that is said in it; or a call that begins, or has ended


class Story:
    """What a model says, in tokens of any length, as a stream keeps it; every token is named by its place."""

    def __init__(self, tokens: list[list[Said]]) -> None:
        self.told = tokens
        self.tokens = array("i")
        self.calls: list[Call] = []
        self._content: list[str] = []
        self._reasoning: list[str] = []

    def __len__(self) -> int:
        return len(self.tokens)

    def content(self) -> str:
        return "".join(self._content)

    def reasoning(self) -> str:
        return "".join(self._reasoning)

    def token_with(self, character: int) -> int:
        return bisect_right(list(accumulate(map(len, self._content))), character)

    def token_that_spells(self, text: str, since: int) -> int:
        return since

    def add(self) -> tuple[str, list[Any]]:
        index, content = len(self.tokens), ""
        reasoning, beside = "", list[Any]()
        for kind, text in self.told[index]:
            where: dict[str, Any] = {"request_id": "a", "index": index}
            if kind == "content":
                content += text
            elif kind == "reasoning":
                reasoning += text
                beside.append(protocol.Reasoning(**where, count=1, delta=text))
            elif kind == "call":
                self.calls.append(Call(index, text))
                beside.append(protocol.ToolCall(**where, call_id="c", name=text))
            elif kind == "arguments":
                self.calls[-1].arguments.append(text)
                beside.append(protocol.ToolArguments(**where, count=1, call_id="c", delta=text))
            else:
                self.calls[-1].end = index + 1
                beside.append(protocol.ToolCallDone(**where, end=index + 1, call_id="c"))
        self._content.append(content)
        self._reasoning.append(reasoning)
        self.tokens.append(index)
        return content, beside

    def back(self, index: int) -> None:
        told = Story(self.told)
        for _ in range(index):
            told.add()
        self.__dict__.update(told.__dict__)


WORDS = st.sampled_from(["ab ", "a", "b", "key", "say ", ".\n", "key a", "é"])
VALUE = st.sampled_from([{"a": "ab"}, {"a": "say"}, {"b": 1}, {"a": ["ab", "x"]}, {"a": {"b": "key\n"}}, {}])
SAYINGS = st.lists(
    st.one_of(
        st.tuples(st.just("content"), WORDS).map(lambda one: [one]),
        st.tuples(st.just("reasoning"), WORDS).map(lambda one: [one]),
        st.tuples(st.sampled_from(["t", "u"]), VALUE).map(
            lambda one: [("call", one[0]), ("arguments", json.dumps(one[1])), ("called", "")]
        ),
    ),
    min_size=1,
    max_size=12,
).map(lambda lists: [one for some in lists for one in some])
GUARDS: list[dict[str, Any]] = [
    {"regex": "key a"},
    {"regex": r"\bab?\b"},
    {"regex": "b.{0,4}k", "in_": ["content"]},
    {"regex": "a", "in_": ["reasoning"]},
    {"regex": '"a', "in_": ["arguments"]},
    {"tool": "t", "path": "$.a", "require": "^(ab|x)$"},
    {"tool": "*", "path": "$.a", "forbid": "a[by]"},
    {"tool": "u", "path": "$.a[*]", "forbid": "b"},
    {"tool": "*", "path": "$.a.b", "forbid": r"\n$"},
    {"budget": Budget(calls=1)},
    {"budget": Budget(reasoning_tokens=3)},
]
ASKED = st.lists(st.sampled_from(range(len(GUARDS))), min_size=1, max_size=4, unique=True)


def guards_of(numbers: list[int], do: str) -> list[Guard]:
    return [Guard(name=f"{at}", do=do, **GUARDS[at]) for at in numbers]  # type: ignore[arg-type]


def characters(said: list[Said]) -> list[list[Said]]:
    """A token for each character, and for each call that begins or has ended."""
    return [
        [(kind, char)]
        for kind, text in said
        for char in (text if kind in ("content", "reasoning", "arguments") else [text])
    ]


def judged(guards: Guards, story: Story, until: int) -> list[Any]:
    """All that they say up to a token."""
    verdicts = list[Any]()
    while len(story) < until:
        verdicts += guards.judge(*story.add(), story, 0.0, Acts())
    return verdicts


@given(SAYINGS, ASKED, st.lists(st.integers(1, 5), min_size=1, max_size=8))
@example(
    [
        *[("content", ".\n"), ("call", "t"), ("arguments", '{"b": 1}'), ("called", "")],
        *[("call", "t"), ("arguments", '{"b": 1}'), ("called", ""), ("reasoning", "ab "), ("content", "ab ")],
    ],
    [1],
    [4],
)
@settings(max_examples=200)
def test_however_tokens_are_cut_the_same_is_found_and_it_begins_alike(
    said: list[Said], asked: list[int], sizes: list[int]
) -> None:
    asked = [at for at in asked if GUARDS[at].get("budget") is None]
    tokens, at, number = list[list[Said]](), 0, 0
    places, whole = list[int](), characters(said)
    while at < len(whole):
        size = sizes[number % len(sizes)]
        token = [one for some in whole[at : at + size] for one in some]
        tokens.append(sorted(token, key=lambda one: one[0] != "content"))  # it is read first
        places += [number] * size
        at, number = at + size, number + 1
    fine = [[one] for token in tokens for one in token]
    story = Story(fine)
    first = next(iter(judged(Guards(guards_of(asked, "finish"), story), story, len(fine))), None)
    coarse = Story(tokens)
    verdict = next(iter(judged(Guards(guards_of(asked, "finish"), coarse), coarse, len(tokens))), None)
    assert (verdict is None) == (first is None)
    if verdict is not None and first is not None and verdict.guard == first.guard:
        assert verdict.index == places[first.index]
        assert verdict.detail == first.detail


@given(SAYINGS, ASKED, st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=4), st.booleans())
@settings(max_examples=200)
def test_guards_that_went_back_or_were_forked_are_as_ones_that_never_went_on(
    said: list[Said], asked: list[int], ways: list[tuple[int, int]], fork: bool
) -> None:
    fine = characters(said) * 3
    wanted = guards_of(asked, "tell")
    plain = Story(fine)
    told = judged(Guards(wanted, plain), plain, len(fine))
    story = Story(fine)
    guards = Guards(wanted, story)
    for on, back in ways:
        judged(guards, story, min(len(fine), len(story) + on))
        story.back(back % (len(story) + 1))
        if fork:
            guards = guards.forked(story)
        else:
            guards.cut(story)
    left = len(story)
    assert judged(guards, story, len(fine)) == [one for one in told if one.index >= left]
