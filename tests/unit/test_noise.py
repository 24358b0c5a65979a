"""The noise of the race: the generator, the logarithm, and the law of the times."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.sampling import noise
from engine.sampling.noise import BLOCK
from tests.fakes.chi_square import surprise

SEEDS = st.integers(-(2**63), 2**63 - 1)
MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def integers(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


# -- the generator ---------------------------------------------------------------------------------


def test_seed_zero_has_the_published_sequence_of_splitmix64() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    assert [value & MASK for value in noise.keys(integers(0), torch.arange(4)).tolist()] == published
    assert [value & MASK for value in noise.of_tokens(integers(0), torch.arange(4)).tolist()] == published


def mixed(x: int) -> int:
    """In Python's own unbounded integers."""
    x &= MASK
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
    return x ^ (x >> 31)


@given(SEEDS, st.integers(0, 2**31), st.integers(0, 2**19))
def test_any_seed_index_and_token_agree_with_unbounded_integers(seed: int, index: int, number: int) -> None:
    expected = mixed(mixed(seed) + (index + 1) * GOLDEN)
    key = noise.keys(integers(seed), integers(index))
    assert int(key.item()) & MASK == expected & MASK
    assert int(noise.of_tokens(key, integers(number)).item()) & MASK == mixed(
        expected + (number + 1) * GOLDEN
    )
    assert int(noise.of_blocks(key, integers(number)).item()) & MASK == mixed(
        expected - (number + 1) * GOLDEN
    )


KNOWN = [
    (1, 0, 0, -4616330145664149646, 1.093497707699481),
    (42, 7, 49151, 2820384354626331986, 1.4041497966455165),
    (-(2**63), 10**6, 3, 142676557914672392, 0.8417264520705461),
]


@pytest.mark.parametrize(("seed", "index", "token", "key", "time"), KNOWN)
def test_a_replay_next_year_has_the_same_noise(
    seed: int, index: int, token: int, key: int, time: float
) -> None:
    keys = noise.keys(integers(seed), integers(index))
    assert keys.item() == key
    assert noise.exponential(noise.of_tokens(keys, integers(token))).item() == time


# -- the logarithm ---------------------------------------------------------------------------------

positive = st.floats(2.3e-308, 1.7e308) | st.floats(0.5, 2) | st.floats(0, 36).map(lambda x: math.exp(-x))


@given(st.lists(positive, min_size=1, max_size=20))
def test_the_logarithm_is_the_librarys_to_the_last_places(values: list[float]) -> None:
    found = noise.ln(torch.tensor(values, dtype=torch.float64)).tolist()
    for value, logarithm in zip(values, found, strict=True):
        assert logarithm == pytest.approx(math.log(value), rel=1e-15, abs=0 if 0.7 < value < 1.4 else 2e-16)


def test_the_first_and_the_last_uniform_have_times() -> None:
    times = noise.exponential(integers(-1, 0, 2**63 - 1))
    assert times[0].item() == pytest.approx(2.0**-53, rel=1e-14)
    assert times[1].item() == pytest.approx(53 * math.log(2), rel=1e-14)
    assert times[2].item() == pytest.approx(math.log(2), rel=1e-14)


# -- the times -------------------------------------------------------------------------------------

BINS = 50


def shares(times: Tensor) -> Tensor:
    """Of each time, the share of exponentials that are later: uniform, if the law holds."""
    return times.neg().exp()


def off_uniform(*uniforms: Tensor) -> float:
    """How surprising it would be for uniforms, together independent of one another."""
    bins = BINS if len(uniforms) == 1 else 16
    places = torch.zeros_like(uniforms[0], dtype=torch.int64)
    for uniform in uniforms:
        places = places * bins + (uniform * bins).long().clamp(max=bins - 1)
    cells = bins ** len(uniforms)
    return surprise(torch.bincount(places, minlength=cells), torch.full((cells,), 1 / cells))


def token_times(keys: Tensor, block: int, tokens: Tensor) -> Tensor:
    bits = noise.of_blocks(keys, integers(block))
    later = noise.exponential(noise.of_tokens(keys, tokens))
    late = tokens != noise.first_tokens(bits, integers(block))
    return noise.exponential(bits) / BLOCK + later * late


ALONG = {
    "indices": lambda count: noise.keys(integers(5), count),
    "seeds": lambda count: noise.keys(count, integers(5)),
}


@pytest.mark.parametrize("along", ALONG)
def test_each_tokens_times_are_exponential_and_so_is_the_least_of_a_block(along: str) -> None:
    keys = ALONG[along](torch.arange(100_000))
    for token in (3 * BLOCK, 3 * BLOCK + 77):
        assert abs(off_uniform(shares(token_times(keys, 3, integers(token))))) < 4
    bits = noise.of_blocks(keys, integers(3))
    assert abs(off_uniform(shares(noise.exponential(bits)))) < 4
    first = torch.bincount(noise.first_tokens(bits, integers(3)) - 3 * BLOCK, minlength=BLOCK)
    assert abs(surprise(first, torch.full((BLOCK,), 1 / BLOCK))) < 4
    which = (bits & (BLOCK - 1)).double() / BLOCK
    assert abs(off_uniform(shares(noise.exponential(bits)), which)) < 4


@pytest.mark.parametrize("along", ALONG)
def test_neighbours_are_independent(along: str) -> None:
    keys = ALONG[along](torch.arange(200_001))
    here = shares(token_times(keys, 0, integers(7)))
    beside = shares(token_times(keys, 0, integers(8)))
    elsewhere = shares(token_times(keys, 1, integers(BLOCK)))
    assert abs(off_uniform(here[:-1], here[1:])) < 4
    assert abs(off_uniform(here[:-1], beside[1:])) < 4
    assert abs(off_uniform(here, beside)) < 4
    assert abs(off_uniform(here, elsewhere)) < 4


def test_the_bits_hang_on_no_place() -> None:
    """Vectors and what is left over of them, views and copies."""
    keys = noise.keys(torch.arange(3), integers(1))
    tokens = torch.arange(1003)
    times = noise.ln(noise.exponential(noise.of_tokens(keys[:, None], tokens)))
    for first in range(9):
        for count in (1, 2, 7, 8, 31, 33, 500):
            part = tokens[first : first + count]
            again = noise.ln(noise.exponential(noise.of_tokens(keys[1], part)))
            assert torch.equal(again, times[1, first : first + count])
