"""Runs a transformers model over a ragged batch.

It turns rows into the flat tensors that the model wants, and gives back the logits that somebody samples from. It
knows the model and its KV pool; it knows no scheduling and no sampling, and reads a sequence without changing it.
"""

from __future__ import annotations

from collections.abc import Sequence as Rows

import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.attention import Pool, Ragged, Span, runs_of
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
        tokens: list[int] = []
        positions: list[int] = []
        spans: list[Span] = []
        wanted: list[int] = []  # which of the flat tokens somebody samples behind
        for row in rows:
            end = row.start + row.count
            runs = runs_of(row.sequence.blocks, self._block, end)
            spans.append(Span(len(tokens), row.count, row.start, runs))
            tokens += row.sequence.tokens[row.start : end]
            positions += range(row.start, end)
            if row.samples:
                wanted.append(len(tokens) - 1)
        return self._forward(self._integers(tokens), self._integers(positions), spans, wanted)

    def _forward(self, tokens: Tensor, positions: Tensor, spans: list[Span], wanted: list[int]) -> Tensor:
        ragged = Ragged(self._pool, torch.cat([self._slots(span) for span in spans]), spans)
        # Somebody's logits are always computed: models are not made for a batch without any.
        kept = self._integers(wanted or [0])
        logits: Tensor = self._model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=kept,
            midstream=ragged,
        ).logits
        return logits[0, : len(wanted)]

    def _slots(self, span: Span) -> Tensor:
        """Where the span's own keys and values go."""
        parts = span.slices(span.start, span.start + span.count)
        return torch.cat([torch.arange(part.start, part.stop, device=self._device) for part in parts])

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
