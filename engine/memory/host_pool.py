"""The host pool: KV blocks in the host's pinned memory, copied there and back beside the work of the device.

A save gathers the blocks behind what is queued on the device, in microseconds, and copies them from there on
a CUDA stream of its own. A load copies them and puts them in their places on that stream, which first lets
everything finish that was queued before. The device's own work waits for neither. On the CPU, where a test
may want it, both are plain copies.

Memory from which a device copies by itself is pinned: nobody else can have it. So it is taken once, never
more than was allowed, in pieces whose sizes are powers of two: torch rounds up what is none.

Each copy costs the host some microseconds in which nobody's step is launched. So blocks that are neighbours
in the host's memory are copied together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate

import torch
from torch import Tensor

from engine.forward.kv_pool import KvPool
from engine.nonblocking_transfer import upload
from engine.schedule.host_cache import BlockCopy

STAGING_BYTES = 2**27  # what one save gathers, and one load copies
PIECE_BYTES = 2**30


class ImmediateCompletion:
    """The completion of a copy that is done already."""

    def done(self) -> bool:
        return True

    def wait(self) -> None: ...


class CudaCompletion:
    """The completion of everything that is queued on a CUDA stream by now."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()


class CopyStream:
    """A CUDA stream beside the one that computes; on the CPU there is only one."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def after_queued_work(self) -> AbstractContextManager[object]:
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        return torch.cuda.stream(self._stream)

    def completion(self) -> CudaCompletion | ImmediateCompletion:
        return ImmediateCompletion() if self._stream is None else CudaCompletion(self._stream)

    def fence(self, completion: CudaCompletion | ImmediateCompletion) -> None:
        """What is computed from now on waits for the completion."""
        if self._stream is not None and isinstance(completion, CudaCompletion):
            torch.cuda.current_stream(self._stream.device).wait_event(completion.event)


def piece_sizes(limit: int, least: int) -> list[int]:
    """Powers of two, each at least so large, that together do not exceed the limit."""
    pieces = [PIECE_BYTES] * (limit // PIECE_BYTES)
    rest = limit % PIECE_BYTES
    pieces += [1 << bit for bit in range(rest.bit_length() - 1, -1, -1) if rest >> bit & 1]
    return [piece for piece in pieces if piece >= least]


class HostPool:
    def __init__(self, pool: KvPool, block_size: int, limit_bytes: int) -> None:
        self._blocks = pool.blocks(block_size)  # [blocks, parts, numbers]
        shape = self._blocks.shape[1:]
        self.block_bytes = shape.numel() * pool.dtype.itemsize
        device = self._blocks.device
        flat = [
            torch.empty(size // pool.dtype.itemsize, dtype=pool.dtype, pin_memory=device.type == "cuda")
            for size in piece_sizes(limit_bytes, self.block_bytes)
        ]
        counts = [piece.nbytes // self.block_bytes for piece in flat]
        self._pieces = [
            piece[: count * shape.numel()].view(count, *shape)
            for piece, count in zip(flat, counts, strict=True)
        ]
        *self._firsts, self.total_blocks = accumulate(
            counts, initial=0
        )  # blocks before each piece, and in all
        self.max_blocks = max(1, min(self._blocks.shape[0], STAGING_BYTES // self.block_bytes))
        self._out, self._in = self._blocks.new_empty(2, self.max_blocks, *shape)
        self._copy_stream = CopyStream(device)
        self._saved: CudaCompletion | ImmediateCompletion = ImmediateCompletion()
        self._loaded: CudaCompletion | ImmediateCompletion = ImmediateCompletion()

    def may_save(self) -> bool:
        return self._saved.done()

    @torch.inference_mode()
    def save(self, copies: list[BlockCopy]) -> None:
        assert len(copies) <= self.max_blocks
        self._saved.wait()
        numbers, here = zip(*sorted(copies, key=lambda copy: copy[1]), strict=True)
        gathered = self._out[: len(copies)]
        torch.index_select(self._blocks, 0, self._upload(numbers), out=gathered)
        with self._copy_stream.after_queued_work():
            for staged, held in self._runs(here):
                held.copy_(gathered[staged], non_blocking=True)
            self._saved = self._copy_stream.completion()

    @torch.inference_mode()
    def load(self, copies: list[BlockCopy]) -> CudaCompletion | ImmediateCompletion:
        assert len(copies) <= self.max_blocks
        here, numbers = zip(*sorted(copies), strict=True)
        with self._copy_stream.after_queued_work():
            for staged, held in self._runs(here):
                self._in[staged].copy_(held, non_blocking=True)
            self._blocks.index_copy_(0, self._upload(numbers), self._in[: len(copies)])
            self._loaded = self._copy_stream.completion()
        return self._loaded

    def fence(self) -> None:
        self._copy_stream.fence(self._loaded)

    def _runs(self, here: tuple[int, ...]) -> Iterator[tuple[slice, Tensor]]:
        """Where neighbours among these blocks begin and end, and their memory, of one piece."""
        begin = 0
        for end in range(1, len(here) + 1):
            if end == len(here) or here[end] != here[end - 1] + 1 or here[end] in self._firsts:
                at = bisect_right(self._firsts, here[begin]) - 1
                first = here[begin] - self._firsts[at]
                yield slice(begin, end), self._pieces[at][first : first + end - begin]
                begin = end

    def _upload(self, numbers: tuple[int, ...]) -> Tensor:
        return upload(list(numbers), self._blocks.device)
