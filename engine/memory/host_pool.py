"""Keys and values in the host's memory, and their way there and back beside the work of the device.

Out: the blocks are gathered behind what is queued on the device, in microseconds, and travel from there on a
stream of their own. Back: they travel and are put in their places on that stream, which first lets everything
finish that was queued before. The device's own work waits for neither. On the CPU, where a test may want it,
the same moves are plain copies.

Memory from which a device copies by itself is pinned: nobody else can have it. So it is taken once, never
more than was allowed, in pieces whose sizes are powers of two: torch rounds up what is none.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from engine.device import upload
from engine.forward.attention import Pool
from engine.schedule.host_cache import Move

STAGED_BYTES = 2**27  # what one save gathers, and one turn of a load
PIECE_BYTES = 2**30


class There:
    """Where nothing is queued, everything is done."""

    def done(self) -> bool:
        return True

    def wait(self) -> None: ...


class Mark:
    """A point in a stream of work."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self.event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.event.record(stream)

    def done(self) -> bool:
        return bool(self.event.query())  # type: ignore[no-untyped-call]

    def wait(self) -> None:
        self.event.synchronize()


class Beside:
    """A stream beside the one that computes; on the CPU there is only one."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None  # type: ignore[no-untyped-call]

    def behind_what_is_queued(self) -> AbstractContextManager[object]:
        if self._stream is None:
            return nullcontext()
        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        return torch.cuda.stream(self._stream)

    def mark(self) -> Mark | There:
        return There() if self._stream is None else Mark(self._stream)

    def hold_back(self, mark: Mark | There) -> None:
        """What is computed from now on waits for the mark."""
        if self._stream is not None and isinstance(mark, Mark):
            torch.cuda.current_stream(self._stream.device).wait_event(mark.event)


def pieces_of(limit: int, least: int) -> list[int]:
    """Powers of two, each at least so large, that together do not exceed the limit."""
    pieces = [PIECE_BYTES] * (limit // PIECE_BYTES)
    rest = limit % PIECE_BYTES
    pieces += [1 << bit for bit in range(rest.bit_length() - 1, -1, -1) if rest >> bit & 1]
    return [piece for piece in pieces if piece >= least]


class HostPool:
    def __init__(self, pool: Pool, block: int, limit_bytes: int) -> None:
        self._blocks = pool.blocks(block)  # [blocks, parts, numbers]
        shape = self._blocks.shape[1:]
        self.block_bytes = shape.numel() * pool.dtype.itemsize
        device = self._blocks.device
        pieces = [
            torch.empty(size // pool.dtype.itemsize, dtype=pool.dtype, pin_memory=device.type == "cuda")
            for size in pieces_of(limit_bytes, self.block_bytes)
        ]
        counts = [piece.nbytes // self.block_bytes for piece in pieces]
        self._held = [
            held
            for piece, count in zip(pieces, counts, strict=True)
            for held in piece[: count * shape.numel()].view(count, *shape).unbind()
        ]
        self.most = max(1, min(self._blocks.shape[0], STAGED_BYTES // self.block_bytes))
        self._out, self._in = self._blocks.new_empty(2, self.most, *shape)
        self._beside = Beside(device)
        self._saved: Mark | There = There()
        self._loaded: Mark | There = There()

    @property
    def total(self) -> int:
        """Blocks that it holds."""
        return len(self._held)

    def may_save(self) -> bool:
        return self._saved.done()

    @torch.inference_mode()
    def save(self, moves: list[Move]) -> None:
        assert len(moves) <= self.most
        self._saved.wait()
        gathered = self._out[: len(moves)]
        torch.index_select(self._blocks, 0, self._numbers(moves, 0), out=gathered)
        with self._beside.behind_what_is_queued():
            for at, (_, here) in enumerate(moves):
                self._held[here].copy_(gathered[at], non_blocking=True)
            self._saved = self._beside.mark()

    @torch.inference_mode()
    def load(self, moves: list[Move]) -> Mark | There:
        with self._beside.behind_what_is_queued():
            for begin in range(0, len(moves), self.most):
                part = moves[begin : begin + self.most]
                for at, (here, _) in enumerate(part):
                    self._in[at].copy_(self._held[here], non_blocking=True)
                self._blocks.index_copy_(0, self._numbers(part, 1), self._in[: len(part)])
            self._loaded = self._beside.mark()
        return self._loaded

    def fence(self) -> None:
        self._beside.hold_back(self._loaded)

    def _numbers(self, moves: list[Move], side: int) -> torch.Tensor:
        return upload([move[side] for move in moves], self._blocks.device)
