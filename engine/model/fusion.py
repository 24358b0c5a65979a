"""Fusion of projections: those that are siblings, of one input, are computed as one product.

It knows that siblings are called one after the other with the very same tensor, and nothing of what they
project: neither architecture nor layout of the weights.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

SIBLINGS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class FusedProduct:
    """The product of all siblings: the one that is called first with an input computes it for all.

    Each part is handed out once and the last one lets go of the input, so nothing outlives the layer. A
    sibling that comes with another tensor, or twice, starts anew: right in any order, fast in the usual one.
    A pass cut short by an error sets no trap: its first sibling's part is gone, so the next one starts anew.
    """

    def __init__(self, product: Callable[[Tensor], Tensor], sizes: list[int]) -> None:
        self.product = product
        self.sizes = sizes
        self.input: Tensor | None = None
        self.parts: dict[int, Tensor] = {}

    def take(self, index: int, x: Tensor) -> Tensor:
        if x is not self.input or index not in self.parts:
            self.parts = dict(enumerate(self.product(x).split_with_sizes(self.sizes, dim=-1)))
            self.input = x
        part = self.parts.pop(index)
        if not self.parts:
            self.input = None
        return part


class FusedProjection(nn.Module):
    """Stands where one of the projections stood."""

    def __init__(self, fused: FusedProduct, index: int) -> None:
        super().__init__()
        self.fused = fused
        self.index = index

    def forward(self, x: Tensor) -> Tensor:
        return self.fused.take(self.index, x)

    def extra_repr(self) -> str:
        return f"part {self.index} of {self.fused.sizes}"
