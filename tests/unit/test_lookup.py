"""Lookup: what follows is what followed where the last tokens stood before."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import Sampling
from engine.drafts.lookup import MOST, Lookup, following
from engine.schedule.sequence import Sequence

LEAST = 2


def known(tokens: list[int]) -> Sequence:
    return Sequence(1, tokens, Sampling(), credit=0, context=1000)


def found(tokens: list[int], most: int = 4) -> list[int]:
    return following(np.array(tokens, np.int32), most, LEAST)


@pytest.mark.parametrize(
    ("tokens", "drafts"),
    [
        ([1, 2, 3, 4, 5, 9, 1, 2], [3, 4, 5, 9]),
        ([1, 2, 3, 7, 2, 4, 8, 1, 2], [3, 7, 2, 4]),  # more in common goes before later
        ([0, 1, 2, 3, 0, 1, 2, 4, 9, 9, 1, 2], [4, 9, 9, 1]),  # and of as much, the later
        ([5, 2, 3, 7, 2], []),  # one token is too little
        ([1, 2, 3], []),
        ([7], []),
        ([], []),
    ],
)
def test_it_proposes_what_followed(tokens: list[int], drafts: list[int]) -> None:
    assert found(tokens) == drafts


def test_a_pattern_goes_on_repeating() -> None:
    assert found([8, 1, 2, 3, 1, 2, 3, 1, 2], 7) == [3, 1, 2, 3, 1, 2, 3]
    assert found([5, 5, 5], 3) == [5, 5, 5]


def naive(tokens: list[int], most: int) -> list[int]:
    def common(at: int) -> int:
        return next(
            (n for n in range(min(MOST, at + 1)) if tokens[at - n] != tokens[-1 - n]), min(MOST, at + 1)
        )

    best = max(range(len(tokens) - 1), key=lambda at: (common(at), at), default=None)
    if best is None or common(best) < LEAST:
        return []
    text = list(tokens)
    for _ in range(most):
        text.append(text[len(text) - (len(tokens) - 1 - best)])
    return text[len(tokens) :]


@given(st.lists(st.integers(0, 3), max_size=40), st.integers(0, 9))
def test_it_finds_the_latest_of_the_places_that_have_most_in_common(tokens: list[int], most: int) -> None:
    assert found(tokens, most) == naive(tokens, most)


@given(
    st.lists(st.tuples(st.integers(0, 5), st.lists(st.integers(0, 2), max_size=5)), max_size=12), st.data()
)
def test_a_context_that_grows_and_goes_back_is_as_a_new_one(
    steps: list[tuple[int, list[int]]], data: st.DataObject
) -> None:
    lookup, context = Lookup(LEAST), known([1])
    for back, more in steps:
        context.cut(max(1, context.num_tokens - back))
        for token in more:
            context.append_output(token)
        if data.draw(st.booleans()):
            (drafts,) = lookup.propose([(context, 3)])
            assert drafts == found(list(context.tokens), 3)

            context.append_output(0)  # nobody looks at its tokens any more
