"""Our products, means and rotations compiled for a device that is not there, as `absent_device.py` does:
for how many rows there are each time."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional
from triton.runtime import driver

from engine.forward.batch_invariant import BatchInvariant
from engine.forward.rotation_kernel import rotated
from tests.fakes.absent_device import AbsentDriver, Case, Kernel, about, compiled_only

INS, EXPERTS, SIZE = 512, 5, 128
Asked = tuple[Case, list[int]]
LAYERS = ((6_500, True), (128_256, False))  # columns, and whether there is a bias


def compiled(case: Case, rows: list[int]) -> list[list[Kernel]]:
    """What has to be compiled for each number of rows, and was not before."""
    driver.set_active(AbsentDriver(case))
    kernels = compiled_only()
    dtype, known = getattr(torch, case.dtype), set[str]()
    found = []
    for count in rows:
        with BatchInvariant():
            compute(torch.zeros(count, INS, dtype=dtype))
        found.append([about(kernel) for name, kernel in kernels.items() if name not in known])
        known.update(kernels)
    return found


def compute(x: Tensor) -> None:
    for columns, biased in LAYERS:
        functional.linear(x, x.new_zeros(columns, INS), x.new_zeros(columns) if biased else None)
    ends = torch.full((EXPERTS,), len(x), dtype=torch.int32)
    functional.grouped_mm(x, x.new_zeros(EXPERTS, 2 * INS, INS).transpose(1, 2), offs=ends)
    x.float().pow(2).mean(-1, keepdim=True)
    query, key = (x.new_zeros(1, len(x), heads, SIZE).transpose(1, 2) for heads in (24, 4))
    rotated(query, key, x.new_zeros(1, len(x), SIZE), x.new_zeros(1, len(x), SIZE))
