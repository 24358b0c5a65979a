"""Batch-invariant arithmetic, in Triton's interpreter: results are torch's but for the last bits, and a row's
are the same bits in any company."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.build.product_trial import ProductShape, least_multiple
from tests.fakes.devices import DEVICE
from tests.fakes.triton_kernels import needs_triton, small_product_tiles

pytestmark = needs_triton
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
ROWS = 37


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    small_product_tiles(monkeypatch)


def noise(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE, dtype)


def ours() -> Any:
    from engine.forward.batch_invariant import BatchInvariant

    return BatchInvariant()


def close(found: Tensor, expected: Tensor) -> None:
    assert found.dtype == expected.dtype
    tolerance = {torch.float32: 1e-5, torch.float16: 1e-2, torch.bfloat16: 5e-2}[found.dtype]
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_linear_layer(dtype: torch.dtype, biased: bool) -> None:
    layer = nn.Linear(33, 20, bias=biased).to(DEVICE, dtype)
    x = noise(1, ROWS, 33, dtype=dtype)
    expected = layer(x)
    with ours():
        found = layer(x)
        close(found, expected)
        for some in (slice(0, 1), slice(30, 31), slice(3, 20), slice(None, None, 2)):
            assert torch.equal(layer(x[:, some]), found[:, some])
        assert torch.equal(layer(x[0, 5]), found[0, 5])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_groups_of_experts(dtype: torch.dtype, transposed: bool) -> None:
    experts = noise(5, 24, 32, dtype=dtype)
    weights = noise(5, 32, 24, dtype=dtype).transpose(1, 2) if transposed else experts
    x = noise(ROWS, 24, dtype=dtype)
    ends = torch.tensor([0, 20, 21, 21, ROWS], dtype=torch.int32, device=DEVICE)
    bounds = [0, *ends.tolist()]
    each = [x[low:high] @ weights[group] for group, (low, high) in enumerate(zip(bounds, ends, strict=False))]
    with ours():
        found = functional.grouped_mm(x, weights, offs=ends)
        close(found, torch.cat(each))
        for row in (0, 19, 20, 36):
            group = int((ends <= row).sum())
            alone = (torch.arange(5, device=DEVICE) >= group).int()
            assert torch.equal(functional.grouped_mm(x[row : row + 1], weights, offs=alone)[0], found[row])


def test_a_mean() -> None:
    x = noise(2, ROWS, 70)
    with ours():
        found = x.mean(-1, keepdim=True)
        close(found, torch.mean(x, 2, keepdim=True))
        assert torch.equal(x[:, :3].mean(-1), found[:, :3, 0])
        assert torch.equal(x.mean(0), torch.mean(x, 0))


def test_rows_that_stand_apart_and_weights_that_are_shared() -> None:
    embedding, wide = nn.Embedding(20, 16, device=DEVICE), noise(ROWS, 48)
    head = nn.Linear(16, 20, bias=False)
    head.weight = embedding.weight
    middle = wide[:, 16:32]
    expected = head(middle)
    with ours():
        close(head(middle), expected)
        close(head(middle.T.contiguous().T), expected)
        assert torch.equal(embedding(torch.tensor([3], device=DEVICE)), embedding.weight[3:4])


def test_the_trial_of_products_finds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.build.product_trial.SOME_ROWS", 12)
    monkeypatch.setattr("engine.build.product_trial.MANY_ROWS", (40,))
    with ours():
        assert least_multiple({ProductShape(24, 40, biased=True)}, torch.bfloat16, (1,), DEVICE) == 1


@pytest.mark.parametrize(
    ("columns", "dtype", "tile"),
    [
        (128_256, torch.bfloat16, (64, 128, 64)),
        (14_336, torch.float16, (64, 64, 64)),
        (4096, torch.bfloat16, (64, 32, 64)),
        (4096, torch.float32, (32, 32, 16)),
    ],
)
def test_a_tile_follows_from_the_weight(columns: int, dtype: torch.dtype, tile: tuple[int, int, int]) -> None:
    from engine.forward.batch_invariant import Tile, tile_of

    assert tile_of(columns, dtype, 132) == Tile(*tile)
