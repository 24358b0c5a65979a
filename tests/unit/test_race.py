"""The race: its law, and that nothing but a token's own numbers decides how far it comes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bench.reliability import draws
from bench.reliability.draws import asked
from engine.sampling import filters, noise
from engine.sampling.draw import draw
from engine.sampling.noise import BLOCK
from tests.fakes.chi_square import surprise

KEYS = noise.keys(torch.arange(12), torch.arange(12) * 7)


def logits(vocab: int, scale: float, rows: int = 12, seed: int = 0) -> Tensor:
    return torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed)) * scale


def reached(scores: Tensor, temperature: float, keys: Tensor = KEYS) -> Tensor:
    """How far every token comes: each looked at, none left out."""
    tokens = torch.arange(scores.shape[1])
    bits = noise.of_blocks(keys[:, None], tokens // BLOCK)
    later = noise.exponential(noise.of_tokens(keys[:, None], tokens))
    later *= tokens != noise.first_tokens(bits, tokens // BLOCK)
    times = later + noise.exponential(bits) * (1 / BLOCK)
    return scores.double() / temperature - noise.ln(times)


# -- the law ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", draws.FILTERS)
def test_tokens_come_as_often_as_they_are_likely(name: str) -> None:
    assert abs(draws.off(name, 10_000)) < 4


@pytest.mark.parametrize("along", ["seeds", "indices"])
def test_neighbouring_draws_are_independent(along: str) -> None:
    count = torch.arange(40_001)
    keys = noise.keys(count, torch.tensor([3])) if along == "seeds" else noise.keys(torch.tensor([3]), count)
    tokens = draw(torch.zeros(1, 10).expand(len(keys), -1), asked(len(keys), keys))
    pairs = torch.bincount(tokens[:-1] * 10 + tokens[1:], minlength=100)
    assert abs(surprise(pairs, torch.full((100,), 0.01))) < 4


def test_logits_that_waver_change_only_what_nearly_ties() -> None:
    assert draws.flips(1000, 4e-6) == 0
    assert draws.flips(1000, 0.0) == 0


# -- who wins --------------------------------------------------------------------------------------


@given(
    st.integers(1, 1500),
    st.sampled_from([0.0, 0.01, 1.0, 3.0, 20.0]),
    st.sampled_from([0.05, 1.0, 2.0]),
    st.integers(0, 99),
)
def test_looking_at_little_finds_what_looking_at_everything_finds(
    vocab: int, scale: float, temperature: float, seed: int
) -> None:
    scores = logits(vocab, scale, seed=seed)
    found = draw(scores, asked(12, KEYS, temperature=temperature))
    assert torch.equal(found, reached(scores, temperature).argmax(1))


@given(
    st.integers(2, 1500),
    st.sampled_from([0.01, 1.0, 5.0]),
    st.sampled_from([1e-9, 0.1, 0.5, 0.9, 0.999]),
    st.sampled_from([0, 1, 5, 300, 900]),
    st.sampled_from([0.0, 0.02, 1.0]),
    st.booleans(),
    st.integers(0, 99),
)
def test_of_those_that_the_filters_leave_the_same_one_is_first(
    vocab: int, scale: float, top_p: float, top_k: int, min_p: float, tied: bool, seed: int
) -> None:
    scores = logits(vocab, scale, seed=seed)
    if tied:
        scores = scores.round()
    cold = scores - scores.amax(1, keepdim=True)
    mass = cold.exp().mul_(filters.SCALE).round_().double()
    if 0 < top_k < vocab:
        mass *= scores >= scores.sort(1, descending=True).values[:, top_k - 1 : top_k]
    wanted = (mass.sum(1) * top_p).clamp(min=1)
    better = torch.stack([(mass * (mass > own[:, None])).sum(1) for own in mass.unbind(1)], 1)
    kept = (mass > 0) & (better < wanted[:, None])
    if min_p:
        kept &= cold >= torch.tensor(min_p, dtype=torch.float64).log()
    expected = reached(scores, 1.0).masked_fill(~kept, -torch.inf).argmax(1)
    found = draw(scores, asked(12, KEYS, top_p=top_p, top_k=top_k, min_p=min_p))
    assert torch.equal(found, expected)


def test_of_equals_the_lowest_id_wins() -> None:
    scores = torch.full((12, 1000), -1.0)
    scores[:, [40, 41, 300, 999]] = 1.0
    assert draw(scores, asked(12, KEYS, temperature=0.0)).tolist() == [40] * 12
    # So cold that noise is lost in the rounding.
    assert draw(scores, asked(12, KEYS, temperature=1e-300)).tolist() == [40] * 12


def test_a_token_that_never_comes_never_wins() -> None:
    scores = torch.full((12, 300), -torch.inf)
    scores[:, 290] = -5.0
    assert draw(scores, asked(12, KEYS)).tolist() == [290] * 12
    assert draw(scores, asked(12, KEYS, top_p=0.5, top_k=3)).tolist() == [290] * 12


@pytest.mark.parametrize("vocab", [1003, 49_152])
@pytest.mark.parametrize("kind", ["temperature 1", "all", "top_p", "min_p"])
def test_a_row_is_drawn_alike_alone_and_in_any_company(vocab: int, kind: str) -> None:
    scores = logits(vocab, 3.0)
    everyone = draw(scores, asked(12, KEYS, **draws.FILTERS[kind]))
    for rows in ([3], [11, 3, 0], [7, 8, 9, 10]):
        part = draw(scores[rows], asked(len(rows), KEYS[rows], **draws.FILTERS[kind]))
        assert part.tolist() == everyone[rows].tolist()


def test_masses_hang_on_no_place() -> None:
    """Vectors and what is left over of them, views and copies."""
    cold = logits(1, 1.0, rows=2000).squeeze(1) * 9
    masses = cold.exp()
    for first in range(17):
        for count in (1, 3, 7, 15, 16, 17, 63, 1000):
            part = cold[first : first + count]
            assert torch.equal(part.exp(), masses[first : first + count])
            assert torch.equal(part.clone().exp(), masses[first : first + count])
