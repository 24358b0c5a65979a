"""The faulty runner: goes wrong on demand, around one that does not."""

from __future__ import annotations

import weakref
from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from engine.forward.interface import Runner
from engine.forward.kv_pool import KvPool
from engine.forward.model_runner import ModelRunner
from engine.schedule.batch import Row


class FaultyRunner:
    """Raises for some streams' rows, spoils the numbers of others, and runs out of memory for large batches.

    A spoiled stream is spoiled as by a model that overflows: its keys and values are no numbers either.
    Faults begin once a stream knows `after` tokens. Of more than `max_sound` rows together the last one's
    numbers are spoiled, and no keys: alone they are sound, and it is noticed when they are read. `copies`
    counts the blocks that were copied, `max_held` the failed attempts whose work was still held when another
    began.
    """

    def __init__(
        self,
        inner: Runner,
        *,
        raises: int | None = None,
        spoils: int | None = None,
        after: int = 0,
        max_rows: int | None = None,
        max_sound: int | None = None,
    ) -> None:
        self.context = inner.context
        self.eos = inner.eos
        self.copies = 0
        self.shortages = 0
        self.held: weakref.WeakSet[Tensor] = weakref.WeakSet()
        self.max_held = 0
        self._inner = inner
        self._raises = raises
        self._spoils = spoils
        self._after = after
        self._max_rows = max_rows
        self._max_sound = max_sound

    def forward(self, rows: Rows[Row]) -> Tensor:
        self.max_held = max(self.max_held, len(self.held))
        computed = torch.zeros(len(rows))
        self.held.add(computed)
        if self._max_rows is not None and len(rows) > self._max_rows:
            self.shortages += 1
            raise MemoryError
        if any(self._is(row, self._raises) for row in rows):
            raise RuntimeError("this stream's rows cannot be computed")
        logits = self._inner.forward(rows).clone()
        sampling = [row for row in rows if row.samples]
        if self._max_sound is not None and len(sampling) > self._max_sound:
            self.shortages += 1
            logits[-1] = torch.nan
        each = [row for row in sampling for _ in range(row.num_sampled)]
        for at, row in enumerate(each):
            if self._is(row, self._spoils):
                logits[at] = torch.nan
                self._spoil(row)
        return logits

    def _is(self, row: Row, stream: int | None) -> bool:
        return row.sequence.stream == stream and row.sequence.num_tokens >= self._after

    @property
    def pool(self) -> KvPool:
        assert isinstance(self._inner, ModelRunner)
        return self._inner.pool

    def _spoil(self, row: Row) -> None:
        assert isinstance(self._inner, ModelRunner)
        pool, size = self.pool, self._inner._block_size
        number = row.sequence.blocks[row.start // size]
        for tensor in (*pool.keys, *pool.values):
            tensor[:, number * size + row.start % size : (number + 1) * size] = torch.nan

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        self.copies += len(copies)
        self._inner.copy_blocks(copies)

    def zero_blocks(self, blocks: list[int]) -> None:
        self._inner.zero_blocks(blocks)
