"""The trial of products: whether a row's product is the same bits in any number of rows, or in any multiple
of a few.

Logits of a model tell little of it where results are rounded to a few bits: of the sums that differ few are
seen. So products of the model's shapes are tried on numbers of all magnitudes that come with their opposites:
their sums are little else than what was rounded off on the way, and another order of adding shows.

It knows shapes and a number format, and no model.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

SOME_ROWS, MANY_ROWS = 96, (128, 224, 520)  # products of many rows are cut into such as these
FEW = 9  # libraries change their ways between small numbers of rows: all of these are tried
MOST_OUTS = 4096  # of a wider product the rest is more of the same
COLUMNS = 64  # that are different; the others repeat them
EXPERTS_DIM = 3  # of the weights of all experts of a layer: [experts, outs, ins]
MAGNITUDES = 6  # powers of two, up and down


@dataclass(frozen=True, order=True)
class ProductShape:
    outs: int
    ins: int
    biased: bool


def product_shapes(model: nn.Module) -> set[ProductShape]:
    """Of its linear layers, and of each expert's."""
    shapes = set()
    for module in model.modules():
        if isinstance(module, nn.Linear):
            outs, ins = module.weight.shape
            shapes.add(ProductShape(outs, ins, module.bias is not None))
        for weight in module.parameters(recurse=False):
            if weight.dim() == EXPERTS_DIM:
                _, outs, ins = weight.shape
                shapes.add(ProductShape(outs, ins, biased=False))
    return shapes


@torch.inference_mode()
def least_multiple(
    shapes: Iterable[ProductShape],
    dtype: torch.dtype,
    multiples: Iterable[int],
    device: str | torch.device = "cpu",
) -> int | None:
    """The least of these in whose multiples a row is the same in all products; None where none is."""
    trials = [_Trial(shape, dtype, device) for shape in sorted(shapes)]
    return next((multiple for multiple in multiples if all(one.same(multiple) for one in trials)), None)


class _Trial:
    def __init__(self, shape: ProductShape, dtype: torch.dtype, device: str | torch.device) -> None:
        generator = torch.Generator().manual_seed(0)
        outs, half = min(shape.outs, MOST_OUTS), shape.ins // 2
        order = torch.randperm(shape.ins, generator=generator)
        one, other = order[:half], order[half : 2 * half]
        rows = torch.randn(SOME_ROWS, shape.ins, generator=generator)
        rows *= 2.0 ** torch.randint(-MAGNITUDES, MAGNITUDES + 1, (shape.ins,), generator=generator)
        columns = torch.randn(COLUMNS, shape.ins, generator=generator)
        rows[:, other], columns[:, other] = rows[:, one], -columns[:, one]
        self._rows = rows.to(device, dtype)
        self._weight = columns.to(device, dtype).repeat(-(-outs // COLUMNS), 1)[:outs]
        self._bias = torch.zeros(outs, dtype=dtype, device=device) if shape.biased else None
        self._expected = self._product(self._rows)

    def _product(self, rows: Tensor) -> Tensor:
        """As models compute it."""
        return functional.linear(rows[None], self._weight, self._bias)[0]

    def same(self, multiple: int) -> bool:
        counts = range(multiple, SOME_ROWS + 1, multiple)
        some = [*counts[:FEW], *counts[FEW::3]]
        return all(map(self._same_first_and_last, some)) and all(
            self._same_repeated(count) for count in MANY_ROWS if count % multiple == 0
        )

    def _same_first_and_last(self, count: int) -> bool:
        first, last = slice(0, count), slice(SOME_ROWS - count, SOME_ROWS)
        return all(
            torch.equal(self._product(self._rows[some]), self._expected[some]) for some in (first, last)
        )

    def _same_repeated(self, count: int) -> bool:
        turns = torch.arange(count) % SOME_ROWS
        return torch.equal(self._product(self._rows[turns]), self._expected[turns])
