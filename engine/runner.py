"""Runs a transformers model over a ragged batch.

It turns rows into the flat tensors that the model wants, and gives back the logits that somebody samples
from. It knows the model and its KV pool; it knows no scheduling and no sampling, and reads a sequence
without changing it.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention import Backend, Batch, Pool
from engine.scheduler import Row


class ModelRunner:
    def __init__(
        self,
        model: PreTrainedModel,
        pool: Pool,
        attention: Backend,
        *,
        block: int,
        context: int,
        eos: frozenset[int],
    ) -> None:
        self.context = context
        self.eos = eos
        self._model = model
        self._pool = pool
        self._attention = attention
        self._block = block
        self._device = model.device

    @torch.inference_mode()
    def forward(self, rows: Rows[Row]) -> Tensor:
        order, batch = self._attention.plan(rows)
        tokens: list[int] = []
        positions: list[int] = []
        last = [0] * len(rows)
        for at in order:
            row = rows[at]
            end = row.start + row.count
            tokens += row.sequence.tokens[row.start : end]
            positions += range(row.start, end)
            last[at] = len(tokens) - 1
        wanted = [at for at, row in zip(last, rows, strict=True) if row.samples]
        return self._logits(tokens, positions, batch, wanted)

    def _logits(self, tokens: list[int], positions: list[int], batch: Batch, wanted: list[int]) -> Tensor:
        output = self._model(
            input_ids=self._integers(tokens)[None],
            position_ids=self._integers(positions)[None],
            use_cache=False,
            # Somebody's logits are always computed: models are not made for a batch without any.
            logits_to_keep=self._integers(wanted or [0]),
            pool=self._pool,
            batch=batch,
        )
        logits: Tensor = output.logits[0, : len(wanted)]
        return logits

    def _integers(self, numbers: list[int]) -> Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._device)

    def _tokens_of(self, block: int) -> slice:
        return slice(block * self._block, (block + 1) * self._block)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        for source, target in copies:
            self._pool.copy(self._tokens_of(source), self._tokens_of(target))

    def scrub_blocks(self, blocks: list[int]) -> None:
        for block in blocks:
            self._pool.scrub(self._tokens_of(block))
