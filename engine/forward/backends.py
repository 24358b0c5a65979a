"""Attention backends by name: which one an engine uses, by device and number format, and how it is made.

It knows what each backend needs, and imports one only when it was chosen: Triton takes longer to import than
a CPU engine to start.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec

import torch

from engine.forward.attention import AttentionBackend
from engine.forward.kv_pool import KvPool
from engine.forward.model_runner import ModelRunner
from engine.model.facts import ModelFacts
from engine.model.preflight import ModelError

BLOCK_MULTIPLE = 256  # of flash_attn's pages
log = logging.getLogger(__name__)

NAMES = ("sdpa", "triton", "flash_attn", "flashinfer")
HALF = (torch.float16, torch.bfloat16)
FLASHINFER_HEAD_DIMS = (64, 128, 256)  # of heads


@dataclass(frozen=True, slots=True)
class Requirements:
    """What attention must be able to do here."""

    device: torch.device
    dtype: torch.dtype
    head_dim: int
    block_size: int
    exact: bool = False  # on a CUDA device


def choose(name: str, required: Requirements) -> str:
    """The backend to use; raises `ModelError` where the one that was asked for cannot be."""
    if name == "auto":
        if not required.exact:
            return "sdpa" if _why_not("triton", required) else "triton"
        name = "triton"
    if name not in NAMES:
        raise ModelError(f"no attention backend {name}: auto, {', '.join(NAMES)} are known")
    if why_not := _why_not(name, required):
        way_out = "--exact off reads otherwise" if required.exact else "sdpa runs anywhere"
        raise ModelError(f"the attention backend {name} cannot be used: {why_not}; {way_out}")
    return name


def _why_not(name: str, required: Requirements) -> str | None:
    if required.exact and name != "triton":
        return "with --exact on triton reads, the same for any company"
    if name == "sdpa":
        return None
    if required.device.type != "cuda":
        return f"it needs a CUDA device, and the model is on {required.device}"
    if name == "triton" and required.dtype == torch.float64:
        return "its kernels multiply no float64"
    if name != "triton" and required.dtype not in HALF:
        return (
            f"it reads float16 and bfloat16, and the model is in {str(required.dtype).removeprefix('torch.')}"
        )
    if name == "flash_attn" and required.block_size % BLOCK_MULTIPLE:
        size = required.block_size
        return f"it reads blocks of {BLOCK_MULTIPLE} tokens or a multiple (--block-size), not of {size}"
    if name == "flashinfer" and required.head_dim not in FLASHINFER_HEAD_DIMS:
        sizes = ", ".join(map(str, FLASHINFER_HEAD_DIMS))
        return f"it reads heads of {sizes} numbers, not of {required.head_dim}"
    if find_spec(name) is None:
        return f"the package {name} is not installed"
    return None


def padding_tokens(name: str, block_size: int) -> int:
    """What the pool holds beyond what sequences may have: a block for padding rows."""
    return block_size if name in ("triton", "flash_attn") else 0


def make(
    name: str,
    pool: KvPool,
    facts: ModelFacts,
    *,
    block_size: int,
    context: int,
    slots: int,
    exact: bool = False,
) -> AttentionBackend:
    if name == "sdpa":
        from engine.forward.by_sdpa import SdpaBackend

        return SdpaBackend(pool, block_size, exact=exact)
    device = pool.keys[0].device
    if name == "flashinfer":
        from engine.forward.by_flashinfer import FlashInferBackend

        return FlashInferBackend(block_size, device, import_module(name).BatchPrefillWithPagedKVCacheWrapper)
    from engine.forward.block_tables import BlockTables

    blocks = -(-context // block_size)
    padding = pool.tokens // block_size - 1
    tables = BlockTables(slots, blocks, block_size, padding, device, len(pool.groups))
    if name == "flash_attn":
        from engine.forward.by_flash_attn import FlashAttnBackend

        return FlashAttnBackend(tables, import_module(name).flash_attn_varlen_func)
    from engine.forward.by_triton import TritonBackend, launch_config

    launch = launch_config(pool.dtype, pool.keys[0].shape[-1])
    return TritonBackend(tables, facts.heads, facts.kv_heads, launch, exact=exact)


def warm_up_batches(chunk: int, rows: int) -> list[list[int]]:
    """How many tokens each row computes in a few steps that compile all that any step may need: rows that
    decode, and chunks, each read in parts and in one."""
    return [[1], [1] * rows, [2], [chunk]]


def capture_decode(runner: ModelRunner, backend: AttentionBackend, rows: int) -> None:
    """Capture the decode step as CUDA graphs where that can be; other models decode all the same."""
    if backend.name != "triton":
        return
    from engine.forward.by_triton import TritonBackend
    from engine.forward.cuda_graphs import CudaGraphCapture, NotCapturable

    assert isinstance(backend, TritonBackend)
    try:
        runner.capture_decode(backend, rows, CudaGraphCapture())
    except NotCapturable as error:
        log.warning("the decode step cannot be captured as a CUDA graph, and costs the host more: %s", error)
    except RuntimeError as error:
        raise ModelError(
            f"the decode step could not be captured as a CUDA graph ({error}): a smaller "
            "--gpu-memory-fraction leaves it more memory, and --attention sdpa captures nothing"
        ) from error
