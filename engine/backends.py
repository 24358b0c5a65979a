"""Which attention backend an engine reads with, by name, device and number format.

It knows what each backend needs, and imports one only when it was chosen: Triton takes longer to import than
a CPU engine to start.
"""

from __future__ import annotations

import logging
from importlib.util import find_spec

import torch

from engine.attention import Backend, Pool
from engine.model_facts import ModelFacts
from engine.model_files import ModelError
from engine.runner import ModelRunner

log = logging.getLogger(__name__)

NAMES = ("sdpa", "triton")


def choose(name: str, device: torch.device, dtype: torch.dtype) -> str:
    """The backend to use; raises `ModelError` where the one that was asked for cannot be."""
    why_not = _why_not_triton(device, dtype)
    if name == "auto":
        return "sdpa" if why_not else "triton"
    if name not in NAMES:
        raise ModelError(f"no attention backend {name}: auto, {' and '.join(NAMES)} are known")
    if name == "triton" and why_not:
        raise ModelError(f"the attention backend triton cannot be used: {why_not}; sdpa runs anywhere")
    return name


def _why_not_triton(device: torch.device, dtype: torch.dtype) -> str | None:
    if device.type != "cuda":
        return f"it needs a CUDA device, and the model is on {device}"
    if dtype == torch.float64:
        return "its kernels multiply no float64"
    if find_spec("triton") is None:
        return "the package triton is not installed"
    return None


def spare_tokens(name: str, block: int) -> int:
    """What the pool holds beyond what sequences may have: a block for rows that only fill a batch up."""
    return block if name == "triton" else 0


def make(name: str, pool: Pool, facts: ModelFacts, *, block: int, context: int, slots: int) -> Backend:
    if name == "sdpa":
        from engine.sdpa import Sdpa

        return Sdpa(pool, block)
    from engine.paged import PagedKernels, launch_for
    from engine.tables import Tables

    device = pool.keys[0].device
    tables = Tables(slots, -(-context // block), block, pool.tokens // block - 1, device)
    return PagedKernels(tables, facts.heads, facts.kv_heads, launch_for(device))


def record(runner: ModelRunner, reader: Backend, rows: int) -> None:
    """Record the decode step where it can be; a model that cannot be recorded decodes all the same."""
    if reader.name != "triton":
        return
    from engine.captured import Graphs
    from engine.paged import PagedKernels

    assert isinstance(reader, PagedKernels)
    try:
        runner.record(reader, rows, Graphs())
    except RuntimeError as error:
        log.warning("the decode step is not recorded, and costs the host more: %s", error)
