"""The trial of products: it sees another order of adding in few rounded bits, and finds rows that agree."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.build.exactness import MULTIPLES
from engine.build.product_trial import ProductShape, least_multiple, product_shapes

SHAPE = ProductShape(80, 192, biased=False)
plain = functional.linear
Linear = Callable[..., Tensor]


def halved(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Each half of a sum by itself, in float32."""
    half = x.shape[-1] // 2
    low, high = (plain(x[..., k].float(), weight[:, k].float()) for k in (slice(half), slice(half, None)))
    return (low + high).to(x.dtype)


def whole(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Row by row, so that a row is the same in any number of them."""
    rows = [plain(row[None].float(), weight.float()) for row in x.flatten(0, -2)]
    return torch.cat(rows).view(*x.shape[:-1], -1).to(x.dtype)


def otherwise(differs: Callable[[int], bool]) -> Linear:
    """A library that adds in another order where it is given certain numbers of rows."""

    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return (halved if differs(x.shape[-2]) else whole)(x, weight, bias)

    return linear


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize(
    ("differs", "multiple"),
    [
        (lambda rows: False, 1),
        (lambda rows: rows == 1, 2),
        (lambda rows: rows < 4, 4),
        (lambda rows: rows % 8 != 0, 8),
        (lambda rows: rows == 520, 16),
        (lambda rows: rows == 224, None),
    ],
    ids=["never", "alone", "in few", "beside eights", "in very many", "in many"],
)
def test_it_is_the_least_multiple_at_which_all_agree(
    differs: Callable[[int], bool],
    multiple: int | None,
    dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(functional, "linear", otherwise(differs))
    assert least_multiple({SHAPE}, dtype, MULTIPLES) == multiple


def test_one_shape_decides_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return (halved if len(weight) == 8 and x.shape[-2] == 1 else whole)(x, weight)

    monkeypatch.setattr(functional, "linear", linear)
    assert least_multiple({SHAPE}, torch.bfloat16, MULTIPLES) == 1
    assert least_multiple({SHAPE, ProductShape(8, 64, biased=True)}, torch.bfloat16, MULTIPLES) == 2


def test_shapes_are_those_of_linear_layers_and_of_experts() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(4, 8, bias=False), nn.Linear(4, 8), nn.LayerNorm(8))
    model.register_parameter("experts", nn.Parameter(torch.zeros(3, 6, 5)))
    assert product_shapes(model) == {
        ProductShape(8, 4, biased=True),
        ProductShape(8, 4, biased=False),
        ProductShape(6, 5, biased=False),
    }
