"""The draw on a CPU: its tokens are those of the draw by torch."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bench.reliability.draws import FILTERS, asked
from engine.sampling import noise, numba_draw
from engine.sampling.draw import draw, draw_on
from engine.sampling.noise import BLOCK

ROWS = 6
KEYS = noise.keys(torch.arange(ROWS), torch.arange(ROWS) * 7)
ASKED: dict[str, dict[str, float]] = {
    **FILTERS,
    "greedy": {"temperature": 0.0},
    "as cold as may be": {"temperature": 1e-300},
    "hot": {"temperature": 1e6, "top_p": 0.99},
    "more than there are": {"top_k": 10**6},
    "top_k of many": {"top_k": 2 * BLOCK},
    "least of all": {"temperature": 2.0, "top_p": 1e-9},
    "little of many": {"temperature": 2.0, "top_p": 0.01, "top_k": 900, "min_p": 1e-6},
}


def logits(vocab: int, scale: float, seed: int = 0) -> Tensor:
    return torch.randn(ROWS, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def both(scores: Tensor, **filters: float) -> tuple[list[int], list[int]]:
    given = asked(len(scores), KEYS[: len(scores)], **filters)
    return numba_draw.draw(scores, given).tolist(), draw(scores, given).tolist()


def test_it_is_what_draws_on_a_cpu() -> None:
    assert draw_on(torch.device("cpu")) is numba_draw.draw


@pytest.mark.parametrize("vocab", [1, 5, BLOCK, 2500, 49_152])
@pytest.mark.parametrize("name", ASKED)
def test_its_tokens_are_those_of_torch(name: str, vocab: int) -> None:
    for scale in (0.0, 3.0, 30.0):
        found, expected = both(logits(vocab, scale), **ASKED[name])
        assert found == expected


@given(
    st.integers(1, 1500),
    st.sampled_from([0.0, 0.01, 1.0, 5.0, 40.0]),
    st.sampled_from([0.0, 0.05, 1.0, 3.0]),
    st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999, 1.0]),
    st.sampled_from([0, 1, 2, 5, 13, 300, 900]),
    st.sampled_from([0.0, 0.02, 1.0]),
    st.booleans(),
    st.integers(0, 99),
)
def test_whatever_is_asked_for(
    vocab: int,
    scale: float,
    temperature: float,
    top_p: float,
    top_k: int,
    min_p: float,
    tied: bool,
    seed: int,
) -> None:
    scores = logits(vocab, scale, seed)
    if tied:
        scores = scores.round()  # some of it minus zero
    scores[1, 1:] = -torch.inf
    found, expected = both(scores, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)
    assert found == expected


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("broken", [torch.nan, -torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [7, 290], ids=["first block", "last block"])
def test_a_row_of_no_numbers_has_no_token_and_no_influence(
    place: int, broken: float, temperature: float
) -> None:
    scores = logits(300, 3.0)
    expected, _ = both(scores, temperature=temperature, top_p=0.9)
    scores[2] = broken
    scores[4, place] = broken
    found, by_torch = both(scores, temperature=temperature, top_p=0.9)
    assert found == by_torch
    assert [found[row] for row in (0, 1, 3, 5)] == [expected[row] for row in (0, 1, 3, 5)]
    assert found[2] == -1
    assert (found[4] == -1) == (broken != -torch.inf)


def test_top_k_lets_nobody_run_who_is_as_far_below_the_best_by_rounding_alone() -> None:
    scores = torch.arange(400, 0, -1).float().mul(1e-30).repeat(ROWS, 1)
    scores[:, 7] = 0.01
    found, by_torch = both(scores, top_k=2)
    assert found == by_torch
    assert set(found) <= {0, 7}


def test_wider_numbers_are_drawn_from_as_float32_and_columns_from_where_they_lie() -> None:
    scores = logits(700, 3.0)
    expected, _ = both(scores)
    assert both(scores.double())[0] == expected
    assert both(scores.T.contiguous().T)[0] == expected
