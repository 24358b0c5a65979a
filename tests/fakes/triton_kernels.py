"""The Triton backend wherever tests run: on a device, or in Triton's interpreter (`tests/conftest.py`)."""

from __future__ import annotations

import os
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from engine.forward.block_tables import BlockTables
from engine.forward.kv_pool import KvPool
from tests.fakes.quick_interpreter import look_up_once

if TYPE_CHECKING:
    from engine.forward.by_triton import TritonBackend

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is made for Linux only")
if find_spec("triton") is not None and os.environ.get("TRITON_INTERPRET") == "1":
    look_up_once()


def triton_backend(
    pool: KvPool, block_size: int, heads: int, slots: int, *, exact: bool = False
) -> TritonBackend:
    """The pool's last block is for padding rows."""
    from engine.forward.by_triton import LaunchConfig, TritonBackend

    blocks = pool.tokens // block_size
    tables = BlockTables(slots, blocks, block_size, blocks - 1, pool.keys[0].device, len(pool.groups))
    # Small, so that small contexts are read in several turns, by several programs, in several tiles.
    launch = LaunchConfig(tile_rows=16, keys=16, programs=24)
    return TritonBackend(tables, heads, pool.keys[0].shape[0], launch, exact=exact)


def gather_backend(pool: KvPool, block_size: int, heads: int, slots: int) -> TritonBackend:
    """The same plans and tables, read by plain PyTorch: whole models in the interpreter take too long."""
    from tests.fakes.gather_attention import GatherBackend

    kernels = triton_backend(pool, block_size, heads, slots)
    return GatherBackend(kernels.tables, heads, pool.keys[0].shape[0], kernels.launch)


def add_term_by_term(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter multiplies by numpy, where a row's bits hang on its place in the matrix. A device's
    units do not look at it."""
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def create_dot(self: Any, a: Any, b: Any, d: Any, *_: object) -> Any:
        terms = a.data[..., None].astype(d.data.dtype) * b.data[None]
        return TensorHandle(np.add.reduce(terms, 1) + d.data, d.dtype.scalar)

    monkeypatch.setattr(InterpreterBuilder, "create_dot", create_dot)


def small_product_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small products are computed in several, in Triton's interpreter."""
    from engine.forward import batch_invariant

    monkeypatch.setattr(batch_invariant, "_product_tile", lambda *_: batch_invariant.Tile(16, 16, 16))
    add_term_by_term(monkeypatch)
