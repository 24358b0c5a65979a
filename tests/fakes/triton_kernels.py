"""The Triton backend wherever tests run: on a device, or in Triton's interpreter (`tests/conftest.py`)."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from engine.forward.block_tables import BlockTables
from engine.forward.kv_pool import KvPool

if TYPE_CHECKING:
    from engine.forward.by_triton import TritonBackend

needs_triton = pytest.mark.skipif(find_spec("triton") is None, reason="triton is made for Linux only")


def triton_backend(pool: KvPool, block_size: int, heads: int, slots: int) -> TritonBackend:
    """The pool's last block is for padding rows."""
    from engine.forward.by_triton import LaunchConfig, TritonBackend

    blocks = pool.tokens // block_size
    tables = BlockTables(slots, blocks, block_size, blocks - 1, pool.keys[0].device, len(pool.groups))
    # Small, so that small contexts are read in several turns, by several programs, in several tiles.
    launch = LaunchConfig(tile_rows=16, keys=16, programs=24)
    return TritonBackend(tables, heads, pool.keys[0].shape[0], launch)


def gather_backend(pool: KvPool, block_size: int, heads: int, slots: int) -> TritonBackend:
    """The same plans and tables, read by plain PyTorch: whole models in the interpreter take too long."""
    from tests.fakes.gather_attention import GatherBackend

    kernels = triton_backend(pool, block_size, heads, slots)
    return GatherBackend(kernels.tables, heads, pool.keys[0].shape[0], kernels.launch)
