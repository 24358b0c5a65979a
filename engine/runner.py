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

from engine.attention import Pool
from engine.ragged import Ragged, Span, runs_of
from engine.scheduler import Row


class ModelRunner:
    def __init__(
        self, model: PreTrainedModel, pool: Pool, *, block: int, context: int, eos: frozenset[int]
    ) -> None:
        self.context = context
        self.eos = eos
        self._model = model
        self._pool = pool
        self._block = block
        self._device = model.device

    @torch.inference_mode()
    def forward(self, rows: Rows[Row]) -> Tensor:
        spans = [self._span(row) for row in rows]
        tokens: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        # Rows that decode first, and in the order in which their contexts lie: then they can be read
        # together.
        order = sorted(range(len(rows)), key=lambda at: (rows[at].count > 1, spans[at].runs))
        for span, row in ((spans[at], rows[at]) for at in order):
            span.first = len(tokens)
            tokens += row.sequence.tokens[span.start : span.end]
            positions += range(span.start, span.end)
            for part in span.slices(span.start, span.end):
                slots += range(part.start, part.stop)
        ragged = Ragged(
            self._integers(slots), [spans[at] for at in order], self._pool.tokens, self._pool.dtype
        )
        wanted = [span.first + span.count - 1 for span, row in zip(spans, rows, strict=True) if row.samples]
        return self._logits(tokens, positions, ragged, wanted)

    def _span(self, row: Row) -> Span:
        return Span(0, row.count, row.start, runs_of(row.sequence.blocks, self._block, row.start + row.count))

    def _logits(self, tokens: list[int], positions: list[int], ragged: Ragged, wanted: list[int]) -> Tensor:
        output = self._model(
            input_ids=self._integers(tokens)[None],
            position_ids=self._integers(positions)[None],
            use_cache=False,
            # Somebody's logits are always computed: models are not made for a batch without any.
            logits_to_keep=self._integers(wanted or [0]),
            pool=self._pool,
            ragged=ragged,
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
