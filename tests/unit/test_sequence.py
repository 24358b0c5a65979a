"""The sequence: what follows from its few numbers, with injections and rewinds."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import Sampling
from engine.schedule.sequence import REMEMBERED, Sequence
from tests.fakes.counted_work import counted

PROMPT = [1, 2, 3, 4]


def sequence(outputs: list[int] | None = None, *, max_tokens: int = 100, **numbers: Any) -> Sequence:
    given = {"credit": 100, "context": 100, **numbers}
    seq = Sequence(1, PROMPT, Sampling(max_tokens=max_tokens), **given)
    for token in outputs or []:
        seq.append_output(token)
    return seq


def holding(seq: Sequence, computed: int) -> Sequence:
    """With memory, and so many tokens computed."""
    seq.admitted, seq.blocks, seq.num_computed = True, [0], computed
    return seq


# -- what is to be computed ------------------------------------------------------------------------


def test_with_credit_it_computes_all_that_it_knows() -> None:
    assert sequence().num_to_compute == 4
    assert holding(sequence(), 3).num_to_compute == 1


def test_without_credit_it_computes_all_but_its_last_token() -> None:
    assert sequence(credit=0).num_to_compute == 3
    assert holding(sequence(credit=0), 3).num_to_compute == 0


def test_paused_it_computes_nothing() -> None:
    seq = sequence()
    seq.paused = True
    assert seq.num_to_compute == 0
    assert not seq.may_sample


def test_whoever_lost_its_memory_takes_some_back_only_with_credit() -> None:
    seq = sequence([9], credit=1)
    seq.admitted = True
    assert seq.evicted
    assert seq.num_to_compute == 0
    seq.credit = 2
    assert seq.num_to_compute == 5


def test_it_decodes_when_only_the_last_token_is_missing() -> None:
    assert holding(sequence([9]), 4).decoding
    assert not holding(sequence([9]), 3).decoding
    assert not holding(sequence([9], credit=1), 4).decoding
    assert not sequence([9]).decoding


@pytest.mark.parametrize(
    ("numbers", "paused", "stalled"),
    [({"credit": 1}, False, True), ({"credit": 2}, False, False), ({"credit": 1}, True, False)],
)
def test_it_is_stalled_when_nothing_but_credit_is_missing(
    numbers: dict[str, int], paused: bool, stalled: bool
) -> None:
    seq = sequence([9], **numbers)
    seq.paused = paused
    assert seq.stalled == stalled


def test_at_its_length_it_is_done_and_not_stalled() -> None:
    for seq in (sequence([8, 9], max_tokens=2, credit=2), sequence([8, 9], context=6, credit=2)):
        assert seq.length_reached
        assert not seq.may_sample
        assert not seq.stalled


# -- output with injections among it ---------------------------------------------------------------


def steered() -> Sequence:
    """Prompt, 10 11, injected 70 71 72, 12, injected 80, 13 14."""
    seq = sequence([10, 11])
    seq.inject([70, 71, 72])
    seq.append_output(12)
    seq.inject([80])
    seq.append_output(13)
    seq.append_output(14)
    return seq


def test_output_leaves_injections_out() -> None:
    assert list(steered().tokens) == [*PROMPT, 10, 11, 70, 71, 72, 12, 80, 13, 14]
    assert steered().output_tokens() == [10, 11, 12, 13, 14]
    assert steered().num_outputs == 5


def test_a_position_counts_what_stands_before_the_token() -> None:
    seq = steered()
    assert [seq.tokens[seq.output_position(index)] for index in range(5)] == [10, 11, 12, 13, 14]
    assert seq.output_position(5) == seq.num_tokens


@pytest.mark.parametrize(
    ("index", "left", "injections"),
    [
        (5, [10, 11, 70, 71, 72, 12, 80, 13, 14], [(2, 3), (3, 1)]),
        (4, [10, 11, 70, 71, 72, 12, 80, 13], [(2, 3), (3, 1)]),
        (3, [10, 11, 70, 71, 72, 12, 80], [(2, 3), (3, 1)]),
        (2, [10, 11, 70, 71, 72], [(2, 3)]),
        (1, [10], []),
        (0, [], []),
    ],
)
def test_truncation_keeps_the_context_of_the_next_token(
    index: int, left: list[int], injections: list[tuple[int, int]]
) -> None:
    seq = steered()
    assert seq.truncate(index) == len(PROMPT) + len(left)
    assert list(seq.tokens) == [*PROMPT, *left]
    assert seq.injections == injections
    assert seq.num_outputs == index == len(seq.output_tokens())


def test_a_cut_may_lie_within_an_injection() -> None:
    everything = steered().tokens
    for position in range(len(PROMPT), len(everything) + 1):
        seq = steered()
        seq.cut(position)
        assert seq.tokens == everything[:position]
        assert seq.output_tokens() == [token for token in seq.tokens if 10 <= token < 70]
        assert [count for _, count in seq.injections] == [
            count
            for count in (
                sum(70 <= token < 80 for token in seq.tokens),
                sum(token == 80 for token in seq.tokens),
            )
            if count
        ]


def test_what_a_rewind_looks_at_hangs_on_what_it_takes_back_alone() -> None:
    """Of thousands of injections each of sixteen rewinds in a step looked at all: 50 ms."""
    lines = []
    for injections in (10, 1000):
        seq = sequence([10], context=10_000)
        for _ in range(injections):
            seq.inject([70])
            seq.append_output(11)
        with counted() as work:
            seq.truncate(seq.num_outputs - 2)
            seq.cut(seq.num_tokens - 1)
            seq.output_marks(seq.num_tokens - 2)
        lines.append(work.lines)
        assert (seq.num_outputs, len(seq.injections)) == (injections - 1, injections - 2)
    assert lines[0] == lines[1]


def test_after_truncation_the_last_token_is_to_be_computed_again() -> None:
    seq = holding(steered(), steered().num_tokens)
    seq.truncate(1)
    assert seq.num_computed == 4
    assert seq.num_to_compute == 1
    seq.truncate(0)
    assert seq.num_computed == 3


def test_truncating_ahead_of_what_is_computed_leaves_it() -> None:
    seq = holding(steered(), 2)
    seq.truncate(3)
    assert seq.num_computed == 2


def test_truncation_past_the_end_is_our_mistake() -> None:
    with pytest.raises(AssertionError):
        steered().truncate(6)


def test_whatever_changes_tokens_otherwise_than_by_sampling_is_counted() -> None:
    seq = sequence([10])
    assert seq.tokens_version == 0
    seq.inject([1])
    seq.truncate(0)
    assert seq.tokens_version == 2


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans()), max_size=60))
def test_what_stood_since_is_as_it_was(changes: list[tuple[int, bool]]) -> None:
    seq, token = sequence([1, 2, 3]), 100
    was = [list(seq.tokens)]
    for back, injects in changes:
        if injects:
            seq.inject([token])
        else:
            seq.cut(max(1, seq.num_tokens - back))
        seq.append_output(token + 1)
        token += 2
        was.append(list(seq.tokens))
    assert seq.tokens_version == len(was) - 1
    for version, before in enumerate(was):
        stand = min(len(before), seq.stood_since(version))
        now = list(seq.tokens)
        assert now[:stand] == before[:stand]
        if version >= len(was) - REMEMBERED:
            assert now[stand : stand + 1] != before[stand : stand + 1] or stand == len(before)


def test_a_token_takes_four_bytes() -> None:
    """Of a fork of a very long context nobody sends more than a line."""
    count = 100_000
    tracemalloc.start()
    seq = Sequence(1, list(range(1000, 1000 + count)), Sampling(), credit=9, context=2 * count)
    seq.append_output(7)
    taken, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert taken < 5 * count
    assert list(seq.tokens) == [*range(1000, 1000 + count), 7]


def test_a_rebuilt_sequence_is_as_it_was() -> None:
    was = steered()
    seq = Sequence(
        1, was.tokens, Sampling(), credit=9, context=100, num_prompt=len(PROMPT), injections=was.injections
    )
    assert seq.num_outputs == was.num_outputs
    assert seq.output_tokens() == was.output_tokens()
    assert [seq.output_position(index) for index in range(6)] == [
        was.output_position(index) for index in range(6)
    ]


@given(st.lists(st.one_of(st.just("sample"), st.integers(1, 3), st.tuples(st.integers(0, 8)))))
def test_output_is_what_was_sampled_and_not_taken_back(moves: list[str | int | tuple[int]]) -> None:
    seq = sequence(max_tokens=1000, context=1000)
    output: list[int] = []
    for number, move in enumerate(moves):
        if move == "sample":
            seq.append_output(1000 + number)
            output.append(1000 + number)
        elif isinstance(move, int):
            seq.inject([-1] * move)
        elif isinstance(move, tuple):
            seq.truncate(min(move[0], seq.num_outputs))
            del output[move[0] :]
        assert seq.output_tokens() == output
        for since in range(seq.num_tokens + 1):
            assert seq.output_marks(since) == seq.output_marks()[since:]
        assert seq.num_outputs == len(output)
        assert [seq.tokens[seq.output_position(index)] for index in range(len(output))] == output
        assert seq.num_tokens == 4 + len(output) + sum(count for _, count in seq.injections)
