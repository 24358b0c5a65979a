"""The runner interface: what the engine asks of a model and its KV cache.

It knows rows and blocks, and no model, so that whoever steps, sizes or tests a runner imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Protocol

from torch import Tensor

from engine.schedule.batch import Row


class Runner(Protocol):
    """A model with its KV cache. Rows of a batch do not influence one another."""

    context: int
    eos: frozenset[int]

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None: ...
    def zero_blocks(self, blocks: list[int]) -> None: ...
    def forward(self, rows: Rows[Row]) -> Tensor:
        """Compute the rows; the logits of those that sample, in their order, behind each of the last
        `num_sampled` tokens of each.

        A placeholder stands for the latest token that was sampled for the slot of its sequence.
        """
