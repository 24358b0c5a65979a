"""Our Triton kernels of attention compiled for a device that is not there, and what each takes of the device.
That of the draw is compiled by `absent_device_draw.py`, those of products and means by
`absent_device_products.py`, all of them in the process of `absent_devices.py`.

All but the launch is the engine's own: plans, arguments, and what of them Triton specializes for.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Callable
from typing import Any

import msgspec
import torch
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import KernelInterface

from engine.api import Sampling
from engine.forward.attention import AttentionParams
from engine.forward.block_tables import BlockTables
from engine.forward.by_triton import TritonBackend, launch_config
from engine.forward.kv_pool import KvPool
from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence

BLOCK, BLOCKS = 16, 256


class Case(msgspec.Struct, frozen=True):
    capability: int  # 90 for 9.0
    shared: int  # bytes that a program may have
    dtype: str
    size: int  # of a head
    groups: int
    kv_heads: int = 8
    processors: int = 100
    window: int | None = None
    softcap: float | None = None
    sinks: bool = False
    exact: bool = False


Asked = tuple[Case, list[list[tuple[int, int]]]]


class Kernel(msgspec.Struct, frozen=True):
    name: str
    shared: int
    stack: int  # bytes of memory where registers did not suffice


class AbsentDriver:
    """The Triton driver of a device that is not there."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self.utils = self

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._case.capability, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": self._case.shared, "multiprocessor_count": self._case.processors}


def compiled(case: Case, batches: list[list[tuple[int, int]]]) -> list[list[Kernel]]:
    """What has to be compiled for each batch of rows (tokens before, tokens computed), and was not before."""
    driver.set_active(AbsentDriver(case))
    dtype = getattr(torch, case.dtype)
    pool = KvPool(1, case.kv_heads, case.size, tokens=BLOCK * BLOCKS, dtype=dtype, device="cpu")
    heads = case.kv_heads * case.groups
    tables = BlockTables(max(map(len, batches)), BLOCKS, BLOCK, BLOCKS - 1, torch.device("cpu"))
    launch = launch_config(dtype, case.size)
    backend = TritonBackend(tables, heads, case.kv_heads, launch, exact=case.exact)
    sinks = torch.zeros(heads, dtype=dtype) if case.sinks else None
    params = AttentionParams(case.size**-0.5, case.window, case.softcap, sinks)
    known: set[str] = set()
    return [
        [about(kernel) for kernel in launched(batch, backend, pool, heads, params, known)]
        for batch in batches
    ]


def launched(
    batch: list[tuple[int, int]],
    backend: TritonBackend,
    pool: KvPool,
    heads: int,
    params: AttentionParams,
    known: set[str],
) -> list[Any]:
    """The kernels that read the batch, and that nobody knows yet."""
    _, (plan,) = backend.plan([row(slot, *counts) for slot, counts in enumerate(batch)])
    tokens, size = sum(count for _, count in batch), pool.keys[0].shape[-1]
    query = torch.zeros(tokens, heads, size, dtype=pool.dtype).transpose(0, 1)
    kernels = compiled_only()
    plan.attend(pool.keys[0], pool.values[0], query, (query, query), params)
    new = [kernel for name, kernel in kernels.items() if name not in known]
    known.update(kernels)
    return new


def compiled_only() -> dict[str, Any]:
    """From now on what is launched is compiled and not run; it is found here."""
    kernels: dict[str, Any] = {}

    def launch(kernel: Any, grid: tuple[int, ...]) -> Callable[..., None]:
        def compile_only(*args: Any, **named: Any) -> None:
            made = kernel.run(*args, grid=grid, warmup=True, **named)
            kernels[made.hash] = made

        return compile_only

    KernelInterface.__getitem__ = launch
    return kernels


def row(slot: int, before: int, count: int) -> Row:
    sequence = Sequence(slot, [0] * (before + count), Sampling(), credit=1, context=BLOCK * BLOCKS)
    sequence.slot = slot
    sequence.blocks = list(range(-(-(before + count) // BLOCK)))
    return Row(sequence, before, count, True, sequence.sampling)


def about(kernel: Any) -> Kernel:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", file.name]
        usage = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    stack = re.search(r"STACK:(\d+)", usage)
    assert stack is not None, usage
    return Kernel(kernel.metadata.name, kernel.metadata.shared, int(stack[1]))
