"""The decode step, recorded once for each size of batch and replayed: no launch of a kernel costs the host.

A recording reads and writes the same memory every time. So whatever changes from step to step is a number in
a static buffer (slots, positions, tokens) or a row of a table on the device (blocks, the token sampled last):
streams come, go and are steered without anything being recorded again. A batch takes the smallest recorded
size that holds it; the rows that fill it up belong to nobody and write where nobody reads.

It knows rows, and a model that can be called. It samples nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from collections.abc import Sequence as Rows
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from engine.device import upload
from engine.forward.attention import Batch
from engine.forward.paged import PagedKernels
from engine.schedule.batch import Row

log = logging.getLogger(__name__)

Replay = Callable[[], None]
Forward = Callable[[Tensor, Tensor, Batch], Tensor]  # tokens, positions: logits of every row


class Recorder(Protocol):
    def __call__(self, work: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        """Do the work; what comes back does it again, into the same result."""


def sizes(rows: int) -> list[int]:
    """The batch sizes to record for up to so many rows: close together where a row more costs most."""
    wanted = [1, 2, 4, 8, *range(16, 64, 16), *range(64, rows, 32)]
    return [size for size in wanted if size < rows] + [rows]


class CapturedDecode:
    def __init__(self, forward: Forward, attention: PagedKernels, latest: Tensor, rows: int) -> None:
        self._forward = forward
        self._attention = attention
        self._latest = latest
        # Rows of slot, position, and token; a token that the host does not know is -1.
        self._rows = torch.zeros(3, rows, dtype=torch.int64, device=latest.device)
        self._sizes = sizes(rows)
        self._recordings: dict[int, tuple[Replay, Tensor]] = {}

    def record(self, recorder: Recorder) -> None:
        """Largest first: the smaller ones fit into the memory that it took."""
        started = time.perf_counter()
        self._rows.copy_(self._columns([], self._rows.shape[1]))
        for done, size in enumerate(reversed(self._sizes), 1):
            self._recordings[size] = recorder(partial(self._step, size))
            log.info("recorded the decode step for %d rows (%d of %d)", size, done, len(self._sizes))
        log.info("recording took %.1f s", time.perf_counter() - started)

    def takes(self, rows: Rows[Row]) -> bool:
        return len(rows) <= self._sizes[-1] and all(row.count == 1 and row.samples for row in rows)

    def logits(self, rows: Rows[Row]) -> Tensor:
        size = next(size for size in self._sizes if size >= len(rows))
        self._attention.tables.write(rows)
        self._rows[:, :size].copy_(self._columns(rows, size))
        replay, logits = self._recordings[size]
        replay()
        return logits[: len(rows)]

    def _columns(self, rows: Rows[Row], size: int) -> Tensor:
        empty = size - len(rows)
        tokens = [row.sequence.tokens[row.start] if row.start < row.sequence.known else -1 for row in rows]
        columns = [
            [row.sequence.slot for row in rows] + [self._attention.tables.nobody] * empty,
            [row.start for row in rows] + [0] * empty,
            tokens + [0] * empty,
        ]
        return upload(columns, self._latest.device)

    def _step(self, size: int) -> Tensor:
        slots, positions, given = self._rows[:, :size].unbind()
        tokens = torch.where(given < 0, self._latest[slots], given)
        order = torch.arange(size, device=slots.device)
        tiles = torch.stack([slots, order, positions, torch.ones_like(slots)]).int()
        attention = self._attention
        batch = attention.batch(attention.tables.places(slots, positions), [attention.tiles(tiles, 0, size)])
        return self._forward(tokens, positions, batch)


def eager(work: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
    """Where nothing can be recorded: the work itself, again, into the same result."""
    result = work()

    def replay() -> None:
        result.copy_(work())

    return replay, result


class Graphs:
    """CUDA graphs that share one pool of memory, since only one of them runs at a time."""

    WARM_UPS = 2  # kernels are compiled and workspaces taken before anything is recorded

    def __init__(self) -> None:
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, work: Callable[[], Tensor]) -> tuple[Replay, Tensor]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(self.WARM_UPS):
                work()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            result = work()
        return graph.replay, result
