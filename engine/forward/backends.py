"""Which attention backend an engine reads with, by name, device and number format.

It knows what each backend needs, and imports one only when it was chosen: Triton takes longer to import than
a CPU engine to start.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch

from engine.forward.attention import Backend
from engine.forward.kv_pool import KvPool
from engine.forward.model_runner import ModelRunner
from engine.model.facts import ModelFacts
from engine.model.preflight import ModelError

BLOCK_MULTIPLE = 256  # of flash_attn's pages
log = logging.getLogger(__name__)

NAMES = ("sdpa", "triton", "flash_attn", "flashinfer")
HALF = (torch.float16, torch.bfloat16)
FLASHINFER_SIZES = (64, 128, 256)  # of heads


@dataclass(frozen=True, slots=True)
class Need:
    """What attention must be able to do here."""

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    block: int


def choose(name: str, need: Need) -> str:
    """The backend to use; raises `ModelError` where the one that was asked for cannot be."""
    if name == "auto":
        return "sdpa" if _why_not("triton", need) else "triton"
    if name not in NAMES:
        raise ModelError(f"no attention backend {name}: auto, {', '.join(NAMES)} are known")
    if why_not := _why_not(name, need):
        raise ModelError(f"the attention backend {name} cannot be used: {why_not}; sdpa runs anywhere")
    return name


def _why_not(name: str, need: Need) -> str | None:
    if name == "sdpa":
        return None
    if need.device.type != "cuda":
        return f"it needs a CUDA device, and the model is on {need.device}"
    if name == "triton" and need.dtype == torch.float64:
        return "its kernels multiply no float64"
    if name != "triton" and need.dtype not in HALF:
        return f"it reads float16 and bfloat16, and the model is in {str(need.dtype).removeprefix('torch.')}"
    if name == "flash_attn" and need.block % BLOCK_MULTIPLE:
        return f"it reads blocks of {BLOCK_MULTIPLE} tokens or a multiple (--block-size), not of {need.block}"
    if name == "flashinfer" and need.head_dim not in FLASHINFER_SIZES:
        return f"it reads heads of {', '.join(map(str, FLASHINFER_SIZES))} numbers, not of {need.head_dim}"
    if find_spec(name) is None:
        return f"the package {name} is not installed"
    return None


def spare_tokens(name: str, block: int) -> int:
    """What the pool holds beyond what sequences may have: a block for rows that only fill a batch up."""
    return block if name in ("triton", "flash_attn") else 0


def make(name: str, pool: KvPool, facts: ModelFacts, *, block: int, context: int, slots: int) -> Backend:
    if name == "sdpa":
        from engine.forward.by_sdpa import Sdpa

        return Sdpa(pool, block)
    device = pool.keys[0].device
    if name == "flashinfer":
        from engine.forward.by_flashinfer import FlashInfer

        return FlashInfer(block, device, import_module(name).BatchPrefillWithPagedKVCacheWrapper)
    from engine.forward.block_tables import Tables

    tables = Tables(slots, -(-context // block), block, pool.tokens // block - 1, device)
    if name == "flash_attn":
        from engine.forward.by_flash_attn import FlashAttn

        return FlashAttn(tables, import_module(name).flash_attn_varlen_func)
    from engine.forward.by_triton import PagedKernels, launch_for

    launch = launch_for(pool.dtype, pool.keys[0].shape[-1])
    return PagedKernels(tables, facts.heads, facts.kv_heads, launch)


def shapes(chunk: int, rows: int) -> list[list[int]]:
    """How many tokens each row computes in a few steps for which all is compiled that any step may need: rows
    that decode, and chunks, each read in parts and in one."""
    return [[1], [1] * rows, [2], [chunk]]


def record(runner: ModelRunner, reader: Backend, rows: int) -> None:
    """Record the decode step where it can be; a model that cannot be recorded decodes all the same."""
    if reader.name != "triton":
        return
    from engine.forward.by_triton import PagedKernels
    from engine.forward.cuda_graphs import Graphs, NotRecordable

    assert isinstance(reader, PagedKernels)
    try:
        runner.record(reader, rows, Graphs())
    except NotRecordable as error:
        log.warning("the decode step is not recorded, and costs the host more: %s", error)
    except RuntimeError as error:
        raise ModelError(
            f"the decode step could not be recorded ({error}): a smaller --gpu-memory-fraction leaves it "
            "more memory, and --attention sdpa records nothing"
        ) from error
