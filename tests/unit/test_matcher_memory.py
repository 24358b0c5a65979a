"""The memory of matchers: more as it is needed, and shared among tenants."""

from __future__ import annotations

import gc
import random
from sys import getrefcount
from typing import Any

import pytest
from llguidance import LLMatcher

from engine.structure import matcher as matcher_module
from engine.structure import matcher_memory
from engine.structure.compiler import matcher_of, problem_of
from engine.structure.matcher import MOST_FORCED, GrammarError, Matcher
from engine.structure.matcher_memory import FIRST_STATES, MOST_STATES, MOST_WIDTH, STATE_BYTES, MatcherMemory
from midstream.protocol import Grammar
from realtime.text.grammar import source_of
from tests.fakes.small_tokenizers import merged_vocabulary, toy_vocabulary

DEAR = source_of(Grammar(json_schema={"type": "string", "maxLength": 2_000}))
LONG = [*b'"' + b"a" * (FIRST_STATES + 100)]


def test_what_a_matcher_needs_more_is_counted_and_given_back_when_it_is_gone() -> None:
    memory = MatcherMemory()
    matcher = Matcher(DEAR, toy_vocabulary(), share=memory.share(7))
    matcher.accept(LONG[:10])
    small = matcher.mask()
    assert memory.taken() == 0, "most need no more than the first"
    for token in LONG[10:]:
        matcher.accept([token])
        matcher.mask()
    assert memory.taken() == memory.taken(7) > 0
    assert memory.taken(8) == 0
    matcher.back(len(LONG) - 10)
    assert matcher.mask() == small, "it followed anew, and knows the same"
    del matcher
    gc.collect()
    assert memory.taken() == 0


def test_a_matcher_that_grows_beyond_what_its_tenant_may_have_says_so_and_others_grow_on() -> None:
    memory = MatcherMemory(room=16 * FIRST_STATES)
    one, two, other = (Matcher(DEAR, toy_vocabulary(), share=memory.share(tenant)) for tenant in (1, 1, 2))

    def grow(matcher: Matcher, tokens: int) -> None:
        for _ in range(tokens):
            matcher.accept([*b"a"])
            matcher.mask()

    for matcher in (one, two, other):
        matcher.accept([*b'"'])
    grow(one, FIRST_STATES)
    with pytest.raises(GrammarError, match=r"left for those of your streams.*have ended\."):
        grow(two, FIRST_STATES)
    grow(other, FIRST_STATES)
    grow(one, 10)


def test_no_matcher_has_more_than_most() -> None:
    memory = MatcherMemory(room=100 * MOST_STATES)
    share = memory.share()
    while share.add_states():
        pass
    assert share.states == MOST_STATES
    assert memory.taken() == MOST_STATES - FIRST_STATES < matcher_memory.ROOM


def alike(rules: int) -> str:
    """A grammar whose parser has as many items in every row of its."""
    names = [f"r{number}" for number in range(rules)]
    lark = "\n".join([f"start: ({' | '.join(names)})*", *(f"{name}: /a/ /b/" for name in names)])
    return source_of(Grammar(lark=lark))


def test_rows_of_a_parser_that_are_wide_are_counted_by_the_text_that_they_are_of() -> None:
    memory = MatcherMemory()
    narrow, wide = (Matcher(alike(rules), toy_vocabulary(), share=memory.share(7)) for rules in (20, 300))
    text = [*b"ab" * 200]
    narrow.accept(text)
    assert narrow.mask() is not None
    assert memory.taken() == 0, "most need no more than the first"
    wide.accept(text)
    whole, mask = memory.taken(7), wide.mask()
    assert whole * STATE_BYTES > 400 * 500 * 8, "of items in each row"
    wide.back(300)
    wide.accept(text[:300])
    assert (memory.taken(7), wide.mask()) == (whole, mask)
    fresh = Matcher(alike(300), toy_vocabulary())
    fresh.accept(text)
    assert fresh.mask() == mask
    del wide
    gc.collect()
    assert memory.taken() == 0


def test_a_parser_that_takes_more_than_its_tenant_may_have_ends_its_own_stream() -> None:
    memory = MatcherMemory(room=5_000)
    one, other = (Matcher(alike(300), toy_vocabulary(), share=memory.share(tenant)) for tenant in (1, 2))
    with pytest.raises(GrammarError, match=r"left for those of your streams.*have ended\."):
        one.accept([*b"abab" * 250])
    assert memory.taken(1) <= 2_500
    other.accept([*b"abab"])


# Each "x" more may be of as many repetitions as there are ways to have come there.
MUCH_WORK = source_of(Grammar(lark='start: T "y"\nT: /(x{2,90}(xx)?){900,1800}/'))


def grow_by_work(matcher: Matcher, most: int) -> None:
    for _ in range(most):
        matcher.mask()
        matcher.accept([*b"x"])


def test_what_a_lexer_keeps_beside_its_states_counts_by_what_it_has_done() -> None:
    memory = MatcherMemory()
    share, other = memory.share(7), memory.share(7)
    matcher = Matcher(MUCH_WORK, toy_vocabulary(), share=share)
    Matcher(DEAR, toy_vocabulary(), share=other).accept(LONG[:100])
    grow_by_work(matcher, 100)
    assert share.states == FIRST_STATES
    assert memory.taken(7) * STATE_BYTES > 4 << 20
    assert other.lexer_bytes < matcher_memory.FIRST_LEXER_BYTES
    del matcher, share
    gc.collect()
    assert memory.taken() == 0


def test_a_lexer_that_does_more_than_its_tenant_may_have_kept_ends_its_own_stream() -> None:
    memory = MatcherMemory(room=20_000)
    one, other = (Matcher(MUCH_WORK, toy_vocabulary(), share=memory.share(tenant)) for tenant in (1, 2))
    with pytest.raises(GrammarError, match=r"left for those of your streams.*have ended\."):
        grow_by_work(one, 250)
    assert memory.taken(1) == 0, "it keeps nothing any more"
    grow_by_work(other, 50)


def test_what_was_asked_about_and_does_too_much_is_refused_and_leaves_nothing() -> None:
    memory = MatcherMemory(room=20_000)
    shares = [memory.share(7), memory.share(8)]
    matcher, fresh = (Matcher(MUCH_WORK, toy_vocabulary(), share=share) for share in shares)
    assert not matcher.fits([*b"x" * 250])
    assert memory.taken(7) == 0
    assert matcher.mask() == fresh.mask()
    matcher.expect((*b"x" * 250,))
    assert matcher.masks_ahead() == []
    assert memory.taken(7) == 0
    matcher.accept([*b"xx"])
    fresh.accept([*b"xx"])
    assert matcher.mask() == fresh.mask()


# 6 MiB of each, before anything has come.
JOINED = 'start: U "z"\nT: /((x){1,2}){300,1200}/\nV: /((.){50,51}|[^a])*/\nU: T & V'


def test_what_compiling_comes_to_counts_before_anything_has_come() -> None:
    memory, source = MatcherMemory(room=100_000), source_of(Grammar(lark=JOINED))
    one, other = (Matcher(source, toy_vocabulary(), share=memory.share(tenant)) for tenant in (1, 2))
    each = memory.taken(1)
    assert each * STATE_BYTES > 6 << 20
    more = list[Matcher]()
    with pytest.raises(GrammarError, match=r"left for those of your streams.*have ended\."):
        more.extend(Matcher(source, toy_vocabulary(), share=memory.share(1)) for _ in range(20))
    assert memory.taken(1) == (1 + len(more)) * each, "what could not be kept does not count"
    assert memory.taken(2) == each
    del one, other, more
    gc.collect()
    assert memory.taken() == 0


# Compiling some comes to much that nothing is kept of; and what may come of 300 was looked through: 9 MiB.
KINDS = 'start: A " " B " " C\nA: /\\w+/\nB: /[^\\W\\d]+/\nC: /[\\w-]+@[\\w ]{1,50}/'
LETTERS = "\n".join(
    ["start: " + " ".join(f"T{at}" for at in range(300)), *(f"T{at}: /\\w{at}/" for at in range(300))]
)


@pytest.mark.parametrize(
    ("lark", "kib"), [("start: /(\\w+[ ,.]?){1,300}/", 0), (KINDS, 1400), (LETTERS, 1400)]
)
def test_expressions_of_all_letters_take_little_more_than_each_may_have(lark: str, kib: int) -> None:
    """So that a tenant has room for some hundred that follow such."""
    memory, source = MatcherMemory(), source_of(Grammar(lark=lark))
    Matcher(source, toy_vocabulary(), share=(share := memory.share()))
    assert share.beyond_first * STATE_BYTES <= kib << 10


def test_a_grammar_counts_by_its_length_as_well() -> None:
    """1.5 MiB of this, of which its lexer is a tenth."""
    memory, choices = MatcherMemory(), [f"{number:_>20}" for number in range(1200)]
    share = memory.share()
    Matcher(source_of(Grammar(choice=choices)), toy_vocabulary(), share=share)
    assert share.lexer_bytes > 1 << 20


def test_what_there_was_no_room_for_is_gone_and_counts_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not once the stream goes on: it may be paused there."""
    made = list[LLMatcher]()

    def compiled(*asked: Any) -> LLMatcher:
        made.append(matcher_of(*asked))
        return made[-1]

    monkeypatch.setattr(matcher_module, "matcher_of", compiled)
    memory = MatcherMemory(room=20_000)
    matcher = Matcher(MUCH_WORK, toy_vocabulary(), share=memory.share())
    matcher.mask()
    matcher.expect((*b"x" * 250,))
    assert matcher.masks_ahead() == []
    assert memory.taken() == 0
    while made:
        assert getrefcount(made.pop()) == getrefcount(object()), "nobody else has it"


# Behind "y" each of 17 letters more has as many states as there are ways to have come there.
WIDE_BEHIND = source_of(Grammar(lark='start: "x" /[0-9]+/ | "y" /(a|b)*a(a|b){16}c/'))
MANY_WAYS = [*b"y", *random.Random(1).choices(b"ab", k=60_000)]


@pytest.mark.parametrize("room", [matcher_memory.ROOM, 2_000])
def test_what_was_asked_about_and_takes_more_than_there_may_be_ends_no_stream(room: int) -> None:
    memory = MatcherMemory(room=room)
    matcher = Matcher(WIDE_BEHIND, toy_vocabulary(), share=memory.share())
    mask = matcher.mask()
    assert not matcher.fits(MANY_WAYS)
    assert matcher.mask() == mask
    matcher.accept([*b"x12"])
    fresh = Matcher(WIDE_BEHIND, toy_vocabulary())
    fresh.accept([*b"x12"])
    assert matcher.mask() == fresh.mask()


def test_drafts_that_take_more_than_there_is_end_no_stream_and_take_nothing() -> None:
    memory = MatcherMemory()
    matcher = Matcher(WIDE_BEHIND, toy_vocabulary(), share=memory.share())
    mask = matcher.mask()
    for ahead in (True, False):
        matcher.expect(tuple(MANY_WAYS[:2_000]))
        assert (100 < len(matcher.masks_ahead()) < 2_000) == ahead, "until it has more there are none"
        assert matcher.mask() == mask
    assert memory.taken() == 0
    matcher.accept(MANY_WAYS[:2_000])
    assert memory.taken() > 0
    matcher.expect((*b"ab",))
    assert len(matcher.masks_ahead()) == 2


def test_a_token_in_whose_midst_it_lacks_states_has_more_though_each_is_asked_for_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matcher_module, "FIRST_FUEL", 50)
    text = merged_vocabulary().tokenizer.tokenize_str('"the quick brown fox jumps over the lazy dog"')
    source = source_of(Grammar(json_schema={"type": "string", "maxLength": 60}))
    for states in range(8, 60):
        monkeypatch.setattr(matcher_memory, "FIRST_STATES", states)
        matcher = Matcher(source, merged_vocabulary())
        for token in text:
            matcher.mask()
            matcher.accept([token])
        assert matcher.fits(sorted(merged_vocabulary().ends))


# What forces very much, or without end, behind choices: each with a beginning, and what it goes on with.
HIDDEN: dict[str, tuple[Grammar, bytes, bytes]] = {
    "a rule, many times": (
        Grammar(lark=f'start: /[ab]/ /[cd]/ x{{6000}}\nx: "{"y" * 300}"'),
        b"ac",
        b"y" * 900,
    ),
    "an expression": (Grammar(regex="[ab][cd](xyz){30000}"), b"ac", b"xyz" * 300),
    "what never ends": (
        Grammar(lark='start: /[ab]/ /[cd]/ A B\nA: /a(xz)*/\nB: "xw"'),
        b"ac",
        b"a" + b"xz" * 300,
    ),
    "the longer of two": (
        Grammar(lark=f'start: /[ab]/ x{{6000}}\nx: "k" "lm" | "kl" "{"y" * 300}"'),
        b"a",
        (b"kl" + b"y" * 300) * 3,
    ),
    "items": (
        Grammar(json_schema={"type": "array", "items": {"const": "y" * 300}, "minItems": 9000}),
        b"[",
        b'"' + b"y" * 300 + b'","',
    ),
    "what is allowed in vain": (
        Grammar(lark='%llguidance {"no_forcing": false}\nstart: /[ab]/ x{60000}\nx: "yyyy"'),
        b"a",
        b"y" * 900,
    ),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_of_what_may_force_very_much_a_little_is_looked_for_at_once(name: str) -> None:
    grammar, begun, forced = HIDDEN[name]
    memory, source = MatcherMemory(), source_of(grammar)
    assert problem_of(source) == ""
    matcher = Matcher(source, toy_vocabulary(), share=memory.share(7))
    matcher.accept([*begun])
    came = b""
    while len(came) < len(forced):
        matcher.mask()
        at_once = bytes(matcher.forced())
        assert len(at_once) == MOST_FORCED
        matcher.accept([*at_once])
        came += at_once
    assert came.startswith(forced)
    assert memory.taken() < 4 * FIRST_STATES, "for the text that came"


@pytest.mark.parametrize("width", [8, 64, 500])
def test_a_mask_is_the_same_however_narrow_the_rows_were_at_first(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tried in rows that are too narrow for it, a mask is no other, and no smaller."""
    properties = {f"p{number}": {"type": "integer"} for number in range(60)}
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    plain = source_of(Grammar(json_schema=schema))
    choices = source_of(Grammar(choice=[f"{number} and more" for number in range(300)]))
    for source, text in ((plain, b'{"p3":1,"p7":22,"p40":3}'), (choices, b"117 and"), (alike(200), b"abab")):
        monkeypatch.setattr(matcher_memory, "FIRST_WIDTH", MOST_WIDTH)
        wide = Matcher(source, toy_vocabulary())
        monkeypatch.setattr(matcher_memory, "FIRST_WIDTH", width)
        matcher = Matcher(source, toy_vocabulary())
        for token in text:
            assert matcher.mask() == wide.mask()
            assert matcher.forced() == wide.forced()
            matcher.accept([token])
            wide.accept([token])
