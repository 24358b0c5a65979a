"""What is forced is what the library itself would force, where that is little enough to ask it: of small
grammars made by chance, whose terminals go on over one another, and of schemas. It is the same in pieces as
at once, for whoever comes to its midst anew, and whatever a matcher was asked, drafted and took back before,
however little memory and work it had at first."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher

from engine.structure import matcher as matcher_module
from engine.structure import matcher_memory
from engine.structure.compiler import MOST_FUEL, limits
from engine.structure.mask import ALLOWED, alone
from engine.structure.matcher import MOST_FORCED, GrammarError, Matcher
from engine.structure.matcher_memory import MOST_STATES, MOST_WIDTH
from engine.structure.vocabulary import Vocabulary
from midstream.protocol import Grammar
from realtime.text.grammar import source_of
from tests.fakes.grammars import made_schema
from tests.fakes.small_tokenizers import merged_vocabulary, toy_vocabulary

REGEXES = [r"[xy]", r"x[yz]*", r"(xy){2}", r"x{1,3}y?", r"[xy]+z", r"x|xy", r"(x|y)z", r"z{3}", r"x(yz)?"]
REGEXES += [r"x(yz)*", r"x?y", r"(xy)?z?", r"(?i:x)y", r"(?s:.)x", r"x{0,2}z", r"(xy|xyx)", r"(x{2})?y"]
REGEXES += [r"[x]", r"[x-z]{2,9}", r".{1,2}", r"y+"]
OFTEN = ["", "", "", "", "?", "*", "+", "{2}", "{1,2}", "{0,2}", "{3,}", "{2,4}"]
VALUES = [1, 11, -2.5, True, None, "x", "xy", "x\ny", "ü🙂", [1, "x"], {"x": 1}]
PATTERNS = ["^a{7}$", "^(ab){3}c*$", "a+b", "^(x|xy)z{2}$", r"^\d{3}-x{4}$", "^(a{3})*$", "^\n{2}$", '^"+$']
NUMBERS = [
    {"type": "number", "minimum": 0, "maximum": 1},
    {"const": 1},
    {"type": "integer"},
    {"type": "null"},
]
# Some have ways that nobody can take.
OTHERS: list[dict[str, Any]] = [
    {"type": "boolean"},
    {"anyOf": [False, {"const": "x" * 40}]},
    {"anyOf": [{"type": "string", "minLength": 2, "maxLength": 1}, {"const": "x" * 40}]},
    {"enum": [1, "x" * 40, None], "type": ["string", "array"]},
    {"type": ["array"], "items": {"const": "x" * 40}, "minItems": 2},
    {"type": ["integer", "string"], "minimum": 2, "maximum": 1, "pattern": "^x{40}$"},
]
NAMES = ["a", "ab", "abc", "b", "Größe", 'q"']
WALKS, MOST_STEPS = 3, 25
LONGEST_TOKEN = 24


class _Lark:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        rules = [f"r{at}" for at in range(chance.randint(0, 4))]
        terminals = [f"T{at}" for at in range(chance.randint(0, 3))]
        names = [*rules, *terminals, *(f"lazy{at}" for at in range(len(terminals)))]
        lines = [f"{name}: {self._alternatives(names, 2)}" for name in ("start", *rules)]
        lines += [f"{name}: {self._alternatives(terminals[:at], 1)}" for at, name in enumerate(terminals)]
        lines += [f"lazy{at}[lazy]: {name}" for at, name in enumerate(terminals)]
        self.text = "\n".join(lines)

    def _alternatives(self, names: list[str], depth: int) -> str:
        count = self._chance.choice([1, 1, 2, 2, 3])
        return " | ".join(self._sequence(names, depth) for _ in range(count))

    def _sequence(self, names: list[str], depth: int) -> str:
        return " ".join(self._part(names, depth) for _ in range(self._chance.choice([1, 1, 2, 2, 3])))

    def _part(self, names: list[str], depth: int) -> str:
        chance = self._chance
        text = json.dumps(
            "".join(chance.choices("xyz01", [4, 4, 4, 1, 1], k=chance.choice([0, 1, 1, 1, 2, 2, 3, 8])))
        )
        ways = [text, text, f"/{chance.choice(REGEXES)}/", *([chance.choice(names)] if names else [])]
        if names and names[0].startswith("r"):
            ways.append(f"%json {json.dumps(chance.choice(NUMBERS))}")
        if depth:
            ways.append(f"({self._alternatives(names, depth - 1)})")
        return chance.choice(ways) + chance.choice(OFTEN)


def _schema(chance: random.Random, depth: int) -> dict[str, Any]:
    plain = ["const", "enum", "string", "pattern", "integer", "other", "other"]
    match chance.choice(
        plain + ["object", "object", "array", "array", "anyOf", "$ref", "allOf"] * (depth > 0)
    ):
        case "const":
            return {"const": chance.choice(VALUES)}
        case "enum":
            return {"enum": chance.sample(VALUES, 3)}
        case "string":
            return {"type": "string", "maxLength": chance.randint(0, 3)}
        case "pattern":
            shortest = {"minLength": chance.randint(0, 12)} if chance.random() < 0.3 else {}
            return {"type": "string", "pattern": chance.choice(PATTERNS), **shortest}
        case "integer":
            least = chance.choice([-5, 0, 100, 10**12])
            return {"type": "integer", "minimum": least, "maximum": least + chance.choice([0, 1, 10**6])}
        case "object":
            names = chance.sample(NAMES, chance.randint(0, 4))
            return {
                "type": "object",
                "properties": {name: _schema(chance, depth - 1) for name in names},
                "required": chance.sample(names, chance.randint(0, len(names))),
                "additionalProperties": chance.choice([True, False, _schema(chance, depth - 1)]),
            }
        case "array":
            first = [_schema(chance, depth - 1) for _ in range(chance.randint(0, 2))]
            least = chance.randint(0, 4)
            return {
                "type": "array",
                "prefixItems": first,
                "items": _schema(chance, depth - 1),
                "minItems": least,
            }
        case "anyOf" | "allOf" as several:
            return {several: [_schema(chance, depth - 1) for _ in range(chance.randint(1, 2))]}
        case "$ref":
            return {"$ref": chance.choice(["#/$defs/one", "#/$defs/other", "#"])}
    return chance.choice(OTHERS)


VOCABULARIES = {"bytes": toy_vocabulary, "merged": merged_vocabulary}


def _check(source: str, vocabulary: Vocabulary, chance: random.Random) -> None:
    tokenizer = vocabulary.tokenizer
    most = limits(MOST_STATES, MOST_WIDTH, MOST_FUEL)
    library = LLMatcher(tokenizer, source, log_level=0, limits=most)
    for _ in range(WALKS):
        asked, tokens = library.deep_copy(), list[int]()
        try:
            matcher = Matcher(source, vocabulary)
            for _ in range(MOST_STEPS):
                mask, forced = matcher.mask(), matcher.forced()
                if mask is None:
                    break
                fresh = Matcher(source, vocabulary)
                fresh.accept(tokens)
                assert fresh.mask() == mask
                assert fresh.forced()[: len(forced)] == forced
                if len(tokenizer.decode_bytes(fresh.forced())) + LONGEST_TOKEN < MOST_FORCED:  # that is all
                    by_library = asked.compute_logit_bias()
                    if asked.is_error():  # it fails at some that go on over what follows
                        break
                    assert mask == by_library
                    ahead = asked.compute_ff_tokens()
                    stopped = not asked.deep_copy().consume_tokens(ahead)  # behind some of what is forced
                    assert fresh.forced() == ahead or len(forced) == 1 or stopped
                if forced:
                    assert mask == alone(forced[0], len(mask))
                came = forced[: chance.randint(1, len(forced))] if forced else [_one_of(mask, chance)]
                matcher.accept(came)
                tokens += came
                if asked.is_error() or not asked.consume_tokens(came):
                    break
        except GrammarError:
            continue


def _mask_of(matcher: Matcher) -> bytes | None:
    """None where nothing may come, or the library goes no further."""
    try:
        return matcher.mask()
    except GrammarError:
        return None


def _one_of(mask: bytes, chance: random.Random) -> int:
    return chance.choice([token for token, byte in enumerate(mask) if byte == ALLOWED])


@pytest.mark.parametrize("name", VOCABULARIES)
@given(st.integers(0, 1 << 40))
@settings(max_examples=150, deadline=None)
def test_of_a_grammar_in_lark(name: str, seed: int) -> None:
    chance = random.Random(seed)
    _check(source_of(Grammar(lark=_Lark(chance).text)), VOCABULARIES[name](), chance)


@pytest.mark.parametrize("name", VOCABULARIES)
@given(st.integers(0, 1 << 40), st.booleans())
@settings(max_examples=100, deadline=None)
def test_of_a_schema(name: str, seed: int, whitespace: bool) -> None:
    chance = random.Random(seed)
    definitions = {"$defs": {"one": _schema(chance, 2), "other": _schema(chance, 2)}}
    schema = _schema(chance, 3) | definitions if chance.random() < 0.7 else made_schema(chance)
    _check(source_of(Grammar(json_schema=schema, whitespace=whitespace)), VOCABULARIES[name](), chance)


class _Pair:
    """A matcher that had little at first, and what one says that has ample, and came straight to there."""

    def __init__(self, source: str, vocabulary: Vocabulary, chance: random.Random) -> None:
        self._source, self._vocabulary, self._chance = source, vocabulary, chance
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(matcher_memory, "FIRST_STATES", chance.choice([4, 8, 20, 60]))
            patch.setattr(matcher_memory, "FIRST_WIDTH", chance.choice([1, 4, 16]))
            patch.setattr(matcher_module, "FIRST_FUEL", chance.choice([50, 300, 2000]))
            self.matcher = Matcher(source, vocabulary)
        self.tokens = list[int]()

    def ample(self, more: list[int]) -> Matcher:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(matcher_memory, "FIRST_STATES", MOST_STATES)
            patch.setattr(matcher_memory, "FIRST_WIDTH", MOST_WIDTH)
            patch.setattr(matcher_module, "FIRST_FUEL", MOST_FUEL)
            matcher = Matcher(self._source, self._vocabulary)
        matcher.accept([*self.tokens, *more])
        return matcher

    def some(self, most: int) -> list[int]:
        """That may come next, one after the other."""
        tokens = list[int]()
        while len(tokens) < most and (mask := _mask_of(self.ample(tokens))) is not None:
            tokens.append(_one_of(mask, self._chance))
        return tokens

    def go_on(self, tokens: list[int]) -> None:
        self.matcher.accept(tokens)
        self.tokens += tokens

    def step(self) -> None:
        chance = self._chance
        match chance.choice(["one", "one", "several", "back", "ask", "draft"]):
            case "one":
                assert _mask_of(self.matcher) == _mask_of(self.ample([]))
                self.go_on(self.some(1))
            case "several":
                self.go_on(self.some(chance.randint(2, 6)))
            case "back":
                count = chance.randint(0, len(self.tokens))
                self.matcher.back(count)
                del self.tokens[len(self.tokens) - count :]
            case "ask":
                asked = self.some(chance.randint(1, 4))
                asked[-1:] = [chance.randrange(self._vocabulary.tokenizer.vocab_size)]
                assert self.matcher.fits(asked) == self.ample([]).fits(asked)
            case "draft":
                drafts = self.some(3)
                if _mask_of(self.matcher) is not None:
                    self.matcher.expect(tuple(drafts))
                    for at, mask in enumerate(self.matcher.masks_ahead()):
                        assert mask in (None, _mask_of(self.ample(drafts[: at + 1])))


@pytest.mark.parametrize("name", VOCABULARIES)
@given(st.integers(0, 1 << 40))
@settings(max_examples=150, deadline=None)
def test_of_a_matcher_that_was_elsewhere_and_had_little(name: str, seed: int) -> None:
    chance = random.Random(seed)
    lark = chance.random() < 0.7
    grammar = Grammar(lark=_Lark(chance).text) if lark else Grammar(json_schema=made_schema(chance))
    source, vocabulary = source_of(grammar), VOCABULARIES[name]()
    try:
        Matcher(source, vocabulary).mask()
    except GrammarError:
        return
    pair = _Pair(source, vocabulary, chance)
    for _ in range(12):
        pair.step()
