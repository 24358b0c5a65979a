"""The lexer states of matchers: grown as they are needed, and shared among tenants."""

from __future__ import annotations

import gc

import pytest

from engine.structure import lexer_states
from engine.structure.lexer_states import FIRST, MOST, LexerStates
from engine.structure.matcher import GrammarError, Matcher
from midstream.protocol import Grammar
from realtime.text.grammar import source_of
from tests.fakes.small_tokenizers import toy_vocabulary

DEAR = source_of(Grammar(json_schema={"type": "string", "maxLength": 2_000}))
LONG = [*b'"' + b"a" * (FIRST + 100)]


def test_what_a_matcher_needs_more_is_counted_and_given_back_when_it_is_gone() -> None:
    states = LexerStates()
    matcher = Matcher(DEAR, toy_vocabulary(), share=states.share(7))
    matcher.accept(LONG[:10])
    small = matcher.mask()
    assert states.taken() == 0, "most need no more than the first"
    for token in LONG[10:]:
        matcher.accept([token])
        matcher.mask()
    assert states.taken() == states.taken(7) > 0
    assert states.taken(8) == 0
    matcher.back(len(LONG) - 10)
    assert matcher.mask() == small, "it followed anew, and knows the same"
    del matcher
    gc.collect()
    assert states.taken() == 0


def test_a_matcher_that_grows_beyond_what_its_tenant_may_have_says_so_and_others_grow_on() -> None:
    states = LexerStates(room=16 * FIRST)
    one, two, other = (Matcher(DEAR, toy_vocabulary(), share=states.share(tenant)) for tenant in (1, 1, 2))

    def grow(matcher: Matcher, tokens: int) -> None:
        for _ in range(tokens):
            matcher.accept([*b"a"])
            matcher.mask()

    for matcher in (one, two, other):
        matcher.accept([*b'"'])
    grow(one, FIRST)
    with pytest.raises(GrammarError, match=r"left for those of your streams.*have ended\."):
        grow(two, FIRST)
    grow(other, FIRST)
    grow(one, 10)


def test_no_matcher_has_more_than_most() -> None:
    states = LexerStates(room=100 * MOST)
    share = states.share()
    while share.grow():
        pass
    assert share.limit == MOST
    assert states.taken() == MOST - FIRST < lexer_states.ROOM
