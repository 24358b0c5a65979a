"""CUDA graphs of the decode step, captured once for each batch size and replayed, so launches cost little.

A graph reads and writes the same memory every time. So whatever changes from step to step is a number in a
static buffer (slots, positions, tokens) or a row of a table on the device (blocks, the latest token): streams
come, go and are steered without anything being captured again. A batch takes the smallest captured size that
holds it; the padding rows that fill it up write where nobody reads.

It knows rows, and a model that can be called. It samples nothing.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Rows
from contextlib import contextmanager
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from engine.forward.attention import AttentionPlan
from engine.forward.by_triton import TritonBackend
from engine.nonblocking_transfer import upload
from engine.schedule.batch import Row

log = logging.getLogger(__name__)

Work = Callable[[], None]
Forward = Callable[[Tensor, Tensor, Rows[AttentionPlan]], Tensor]  # tokens, positions: logits of every row


class NotCapturable(RuntimeError):
    """The model waits for the device in mid-step: it can decode, but not be captured."""


class Capture(Protocol):
    def __call__(self, work: Work) -> Work:
        """Capture some work; what comes back replays it, on the same memory."""


def batch_sizes(rows: int) -> list[int]:
    """The batch sizes to capture for up to so many rows: close together where a row more costs most."""
    wanted = [1, 2, 4, 8, *range(16, 64, 16), *range(64, rows, 32)]
    return [size for size in wanted if size < rows] + [rows]


class DecodeGraphs:
    def __init__(self, forward: Forward, attention: TritonBackend, latest_tokens: Tensor, rows: int) -> None:
        self._forward = forward
        self._attention = attention
        self._latest_tokens = latest_tokens
        # Rows of slot, position, and token; a placeholder is -1.
        self._rows = torch.zeros(3, rows, dtype=torch.int64, device=latest_tokens.device)
        self._sizes = batch_sizes(rows)
        self._logits: Tensor  # of the rows that were computed last, for all sizes
        self._replays: dict[int, Work] = {}

    def capture(self, capture: Capture) -> None:
        """Largest first: the smaller ones fit into the memory that it took."""
        started = time.perf_counter()
        self._rows.copy_(self._columns([], self._rows.shape[1]))
        self._logits = torch.empty_like(self._computed(self._sizes[-1]))
        with _nothing_collected():
            for done, size in enumerate(reversed(self._sizes), 1):
                self._replays[size] = capture(partial(self._step, size))
                log.info("captured the decode step for %d rows (%d of %d)", size, done, len(self._sizes))
        log.info("capturing took %.1f s", time.perf_counter() - started)

    def fits(self, rows: Rows[Row]) -> bool:
        return len(rows) <= self._sizes[-1] and all(row.count == 1 and row.samples for row in rows)

    def logits(self, rows: Rows[Row]) -> Tensor:
        size = next(size for size in self._sizes if size >= len(rows))
        self._attention.tables.update(rows)
        self._rows[:, :size].copy_(self._columns(rows, size))
        self._replays[size]()
        return self._logits[: len(rows)]

    def _columns(self, rows: Rows[Row], size: int) -> Tensor:
        empty = size - len(rows)
        tokens = [
            row.sequence.tokens[row.start] if row.start < row.sequence.num_tokens else -1 for row in rows
        ]
        columns = [
            [row.sequence.slot for row in rows] + [self._attention.tables.padding_row] * empty,
            [row.start for row in rows] + [0] * empty,
            tokens + [0] * empty,
        ]
        return upload(columns, self._latest_tokens.device)

    def _step(self, size: int) -> None:
        self._logits[:size].copy_(self._computed(size))

    def _computed(self, size: int) -> Tensor:
        slots, positions, given = self._rows[:, :size].unbind()
        tokens = torch.where(given < 0, self._latest_tokens[slots], given)
        return self._forward(tokens, positions, self._attention.plan_decoding(slots, positions))


@contextmanager
def _nothing_collected() -> Iterator[None]:
    """Who lets go of a graph, as of an engine before this one, spoils whatever is being captured."""
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


class CudaGraphCapture:
    """Captures CUDA graphs that share one pool of memory, since only one of them runs at a time, and one
    stream, since libraries keep their workspaces for every stream that they have seen."""

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]

    def __call__(self, work: Work) -> Work:
        self._warm_up(work)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            work()
        return graph.replay

    def _warm_up(self, work: Work) -> None:
        """Kernels are compiled and workspaces taken before anything is captured. What waits for the device is
        found now: a capture that fails half-way leaves torch's memory in disorder."""
        self._stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._stream):
            work()
            before = torch.cuda.get_sync_debug_mode()
            torch.cuda.set_sync_debug_mode("error")
            try:
                work()
            except torch.OutOfMemoryError:
                raise
            except RuntimeError as error:
                raise NotCapturable(str(error)) from error
            finally:
                torch.cuda.set_sync_debug_mode(before)
        torch.cuda.current_stream().wait_stream(self._stream)
