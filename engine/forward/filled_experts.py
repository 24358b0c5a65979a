"""Filled experts: each expert of a layer computes a multiple of so many rows.

How many rows choose an expert follows from the company, and a product may add up in another order for another
number of them. So each group is filled up with rows of zeros, which are thrown away. It knows the interface
that transformers' experts have in common, and no architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

Experts = Callable[[Tensor, Tensor, Tensor], Tensor]


class Layered(Protocol):
    def modules(self) -> Iterator[nn.Module]: ...


def fill_experts(model: Layered, multiple: int) -> None:
    """From now on, in place; again with another multiple, that one holds."""
    for module in model.modules():
        weight = getattr(module, "gate_up_proj", None)
        if not isinstance(weight, nn.Parameter) or weight.dim() != 3:
            continue
        plain = module.forward.plain if isinstance(module.forward, _Filled) else module.forward
        module.forward = _Filled(plain, len(weight), multiple) if multiple > 1 else plain


class _Filled:
    """What stands in for an expert layer's `forward`."""

    def __init__(self, plain: Experts, experts: int, multiple: int) -> None:
        self.plain = plain
        self._experts = experts
        self._multiple = multiple

    def __call__(self, states: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
        """Of each row [T, D], the experts [T, K] that it chose, and their weights."""
        tokens, each = chosen.shape
        more = self._more(chosen).view(-1, each)
        if not len(more):
            return self.plain(states, chosen, weights)
        filled = functional.pad(states, (0, 0, 0, len(more)))
        nothing = functional.pad(weights, (0, 0, 0, len(more)))
        return self.plain(filled, torch.cat([chosen, more]), nothing)[:tokens]

    def _more(self, chosen: Tensor) -> Tensor:
        """Which experts are chosen once more, as often as whole rows need."""
        counts = torch.bincount(chosen.flatten(), minlength=self._experts)
        lacking = -counts % self._multiple
        while int(lacking.sum()) % chosen.shape[1]:
            lacking[0] += self._multiple
        return torch.arange(self._experts).repeat_interleave(lacking)
