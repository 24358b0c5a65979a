"""The kernel of the draw compiled for a device that is not there, as `absent_device.py` does: one of this
capability, for the batches (rows, vocabulary, number format)."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import torch
from triton.runtime import driver

from bench.reliability.draws import asked
from engine.sampling import triton_draw
from tests.fakes.absent_device import AbsentDriver, Case, Kernel, about, compiled_only

Asked = tuple[int, list[tuple[int, int, str]]]


class DrawKernel(msgspec.Struct, frozen=True):
    kernel: Kernel
    fused: int  # operations that round once where the CPU rounds twice
    divisions: list[str]  # of float32, by how they round


def compiled(capability: int, batches: list[tuple[int, int, str]]) -> list[DrawKernel]:
    driver.set_active(AbsentDriver(Case(capability, shared=0, dtype="float32", size=0, groups=0)))
    kernels: dict[str, Any] = compiled_only()
    for rows, vocab, dtype in batches:
        scores = torch.zeros(rows, vocab, dtype=getattr(torch, dtype))
        triton_draw.draw(scores, asked(rows, torch.zeros(rows, dtype=torch.int64), top_p=0.9))
    return [described(kernel) for kernel in kernels.values()]


def described(kernel: Any) -> DrawKernel:
    code = kernel.asm["ptx"]
    return DrawKernel(
        about(kernel), len(re.findall(r"\bfma\.", code)), sorted(set(re.findall(r"div\.\w+\.f32", code)))
    )
