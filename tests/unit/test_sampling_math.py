"""The arithmetic of the random draw, with numbers of our own choosing."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from engine.sampling import sampling_math
from engine.sampling.sampling_math import (
    BINS,
    SCALE,
    TOPK_LIMIT,
    pick,
    random_bits,
    top_k_floor,
    top_p_floor,
    uniform,
    weights,
)

SEEDS = st.integers(-(2**63), 2**63 - 1)
MASK = 2**64 - 1


def integers(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def weighed(scores: Tensor, temperature: float = 1.0) -> Tensor:
    ones = torch.ones(len(scores), dtype=torch.float64)
    return weights(scores, scores.amax(1), ones * temperature)


# -- the generator ---------------------------------------------------------------------------------


def test_seed_zero_has_the_published_sequence_of_splitmix64() -> None:
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    bits = random_bits(integers(0, 0, 0, 0), integers(0, 1, 2, 3))
    assert [value & MASK for value in bits.tolist()] == published


def reference_bits(seed: int, index: int) -> int:
    """The same in Python's own unbounded integers."""

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & MASK
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & MASK
        return x ^ (x >> 31)

    return mix(mix(seed & MASK) + (index + 1) * 0x9E3779B97F4A7C15 & MASK)


@given(SEEDS, st.integers(0, 2**31))
def test_any_seed_and_index_agree_with_unbounded_integers(seed: int, index: int) -> None:
    bits = random_bits(integers(seed), integers(index)).item()
    assert int(bits) & MASK == reference_bits(seed, index)
    assert uniform(integers(seed), integers(index)).item() == (reference_bits(seed, index) >> 11) * 2.0**-53


KNOWN = [
    (1, 0, 0.7497482413580301),
    (-1, 0, 0.64635420864685),
    (42, 7, 0.15289334222649975),
    (2**63 - 1, 10**6, 0.7851694351566804),
    (-(2**63), 3, 0.7260622282417902),
]


@pytest.mark.parametrize(("seed", "index", "u"), KNOWN)
def test_a_replay_next_year_draws_the_same_numbers(seed: int, index: int, u: float) -> None:
    assert uniform(integers(seed), integers(index)).item() == u


@pytest.mark.parametrize("along", ["seed", "index"])
def test_uniform_along_seeds_and_along_indices(along: str) -> None:
    count = torch.arange(100_000)
    fixed = torch.full_like(count, 5)
    u = uniform(count, fixed) if along == "seed" else uniform(fixed, count)
    assert u.min() >= 0
    assert u.max() < 1
    assert abs(u.mean().item() - 0.5) < 0.003
    buckets = torch.histc(u, bins=20, min=0, max=1)
    assert (buckets - 5000).abs().max() < 300
    after = (u[:-1] - 0.5) * (u[1:] - 0.5)
    assert abs(after.mean().item()) < 0.001


# -- the draw --------------------------------------------------------------------------------------


def grid(points: int) -> Tensor:
    return (torch.arange(points, dtype=torch.float64) + 0.5) / points


@pytest.mark.parametrize("vocab", [1, 7, 256, 1000])
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_over_a_fine_grid_of_u_tokens_come_as_often_as_they_are_likely(
    vocab: int, temperature: float
) -> None:
    points = 4000
    scores = noise(1, vocab) * 2
    tokens = pick(weighed(scores, temperature).expand(points, vocab).contiguous(), grid(points))
    counts = torch.bincount(tokens, minlength=vocab)
    expected = (scores.double() / temperature).softmax(1)[0] * points
    assert ((counts - expected).abs() < 1.01).all()


def test_tokens_come_in_the_order_of_their_ids() -> None:
    weight = torch.tensor([[0.0, 1.0, 0.0, 2.0, 1.0, 0.0]])
    u = torch.tensor([0.0, 0.24, 0.25, 0.74, 0.75, 1 - 2.0**-53], dtype=torch.float64)
    assert pick(weight.expand(6, 6).contiguous(), u).tolist() == [1, 1, 3, 3, 4, 4]


def test_a_draw_at_the_edge_of_a_block_passes_over_what_has_no_weight() -> None:
    weight = torch.ones(1, 512)
    weight[0, 256:260] = 0
    u = torch.tensor([256 / 508], dtype=torch.float64)
    assert pick(weight, u).item() == 260


def test_the_greatest_u_never_passes_the_last_likely_token() -> None:
    weight = weighed(noise(50, 3000))
    weight[:, 2000:] = 0
    u = torch.full((50,), 1 - 2.0**-53, dtype=torch.float64)
    assert (weight.gather(1, pick(weight, u)[:, None]) > 0).all()


@given(st.integers(1, 2000), st.floats(0, 1, exclude_max=True), st.integers(0, 99))
def test_the_search_by_blocks_finds_what_a_plain_cumulative_sum_finds(
    vocab: int, u: float, seed: int
) -> None:
    weight = weighed(noise(1, vocab, seed=seed) * 5)
    upto = weight[0].double().cumsum(0)
    target = min(int(u * upto[-1].item()), int(upto[-1].item()) - 1)
    plain = torch.searchsorted(upto, torch.tensor(float(target), dtype=torch.float64), right=True)
    assert pick(weight, torch.tensor([u], dtype=torch.float64)).item() == plain.item()


def test_sums_are_exact_in_any_order() -> None:
    weight = weighed(noise(1, 2**19) * 0.01)
    forwards, backwards = (
        weight.double().cumsum(1)[0, -1].item(),
        weight.flip(1).double().cumsum(1)[0, -1].item(),
    )
    assert forwards == backwards == sum(int(value) for value in weight[0].tolist())


def test_the_smallest_temperature_leaves_only_the_best() -> None:
    weight = weighed(noise(4, 100), temperature=1e-300)
    assert torch.equal(weight > 0, weight == SCALE)
    assert (weight.sum(1) == SCALE).all()


# -- the floors ------------------------------------------------------------------------------------


SCORES = {
    "flat": noise(6, 3000),
    "peaked": noise(6, 3000) * 8,
    "tied": noise(6, 3000).round(),
    "one far ahead": noise(6, 3000).mul(0.01).index_fill(1, integers(1234), 12.0),
}


def rows_of(kind: str) -> Tensor:
    return weighed(SCORES[kind])


@pytest.fixture(params=["as on the CPU", "as on a GPU, four rows at once"])
def search(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param != "as on the CPU":
        lanes = sampling_math.LANES["cuda"]
        monkeypatch.setitem(sampling_math.LANES, "cpu", lanes)
        monkeypatch.setattr(sampling_math, "HISTOGRAM_BYTES", 4 * BINS * lanes * 8)


KINDS = pytest.mark.parametrize("kind", SCORES)
EITHER_SEARCH = pytest.mark.usefixtures("search")


@EITHER_SEARCH
@KINDS
@pytest.mark.parametrize("top_p", [1e-9, 0.1, 0.5, 0.9, 0.999999])
def test_top_p_finds_what_a_full_sort_finds(kind: str, top_p: float) -> None:
    weight = rows_of(kind)
    ranked = weight.sort(1, descending=True).values.double()
    before = ranked.cumsum(1) - ranked
    kept = (before < top_p * ranked.sum(1, keepdim=True)).sum(1)
    expected = ranked.gather(1, kept[:, None] - 1).squeeze(1)
    assert torch.equal(top_p_floor(weight, torch.full((6,), top_p, dtype=torch.float64)).double(), expected)


def test_top_p_of_nothing_keeps_the_best() -> None:
    assert (top_p_floor(rows_of("flat"), torch.zeros(6, dtype=torch.float64)) == SCALE).all()


@EITHER_SEARCH
@KINDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_top_k_finds_the_same_by_topk_and_by_search(kind: str, dtype: torch.dtype) -> None:
    weight = rows_of(kind).to(dtype)
    top_k = integers(1, 2, 40, 100, TOPK_LIMIT - 1, TOPK_LIMIT)
    ranked = weight.sort(1, descending=True).values
    expected = ranked.gather(1, top_k[:, None] - 1).squeeze(1)
    assert torch.equal(top_k_floor(weight, top_k, max_k=TOPK_LIMIT), expected)
    assert torch.equal(top_k_floor(weight, top_k, max_k=TOPK_LIMIT + 1), expected)


@EITHER_SEARCH
def test_a_row_of_no_numbers_disturbs_no_other() -> None:
    weight = rows_of("flat")
    top_p = torch.full((6,), 0.8, dtype=torch.float64)
    u = torch.full((6,), 0.3, dtype=torch.float64)
    floors, tokens = top_p_floor(weight, top_p), pick(weight, u)
    weight[2] = torch.nan
    others = [0, 1, 3, 4, 5]
    assert torch.equal(top_p_floor(weight, top_p)[others], floors[others])
    assert torch.equal(pick(weight, u)[others], tokens[others])
