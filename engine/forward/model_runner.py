"""Runs a transformers model over a ragged batch.

It turns rows into the flat tensors that the model wants, and gives back the logits that somebody samples
from. It knows the model and its KV pool; it knows no scheduling and no sampling, and reads a sequence
without changing it.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.forward.attention import Backend, Batch
from engine.forward.kv_pool import KvPool
from engine.schedule.batch import Row
from engine.transfer import upload

if TYPE_CHECKING:
    from engine.forward.by_triton import PagedKernels
    from engine.forward.cuda_graphs import CapturedDecode, Recorder


class ModelRunner:
    def __init__(
        self,
        model: PreTrainedModel,
        pool: KvPool,
        attention: Backend,
        latest: Tensor,
        *,
        block: int,
        context: int,
        eos: frozenset[int],
    ) -> None:
        self.context = context
        self.eos = eos
        self._model = model
        self.pool = pool
        self._attention = attention
        self._latest = latest
        self._captured: CapturedDecode | None = None
        self._block = block
        self._device = model.device

    @torch.inference_mode()
    def forward(self, rows: Rows[Row]) -> Tensor:
        if self._captured is not None and self._captured.takes(rows):
            return self._captured.logits(rows)
        order, batch = self._attention.plan(rows)
        tokens: list[int] = []
        positions: list[int] = []
        unknown: list[tuple[int, int]] = []  # place in the batch, and whose slot
        last = [0] * len(rows)
        for at in order:
            row = rows[at]
            end = row.start + row.count
            tokens += row.sequence.tokens[row.start : end]
            positions += range(row.start, end)
            if len(tokens) < len(positions):
                unknown.append((len(tokens), row.sequence.slot))
                tokens.append(0)
            last[at] = len(tokens) - 1
        wanted = [at for at, row in zip(last, rows, strict=True) if row.samples]
        ids = self._integers(tokens)
        if unknown:
            places, slots = zip(*unknown, strict=True)
            ids[self._integers(places)] = self._latest[self._integers(slots)]
        # Somebody's logits are always computed: models are not made for a batch without any.
        logits = self._logits(ids, self._integers(positions), batch, self._integers(wanted or [0]))
        return logits[: len(wanted)]

    def _logits(
        self, tokens: Tensor, positions: Tensor, batch: Batch, wanted: Tensor | None = None
    ) -> Tensor:
        output = self._model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=0 if wanted is None else wanted,
            pool=self.pool,
            batch=batch,
        )
        logits: Tensor = output.logits[0]
        return logits

    @torch.inference_mode()
    def record(self, attention: PagedKernels, rows: int, recorder: Recorder) -> None:
        """From now on, steps that only decode are replayed from recordings."""
        from engine.forward.cuda_graphs import CapturedDecode  # brings Triton with it

        captured = CapturedDecode(self._logits, attention, self._latest, rows)
        captured.record(recorder)
        self._captured = captured

    def _integers(self, numbers: Iterable[int]) -> Tensor:
        return upload(list(numbers), self._device)

    def _tokens_of(self, block: int) -> slice:
        return slice(block * self._block, (block + 1) * self._block)

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        for source, target in copies:
            self.pool.copy(self._tokens_of(source), self._tokens_of(target))

    def scrub_blocks(self, blocks: list[int]) -> None:
        for block in blocks:
            self.pool.scrub(self._tokens_of(block))
