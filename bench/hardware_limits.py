"""Hardware limits, measured beside everything else: memory bandwidth, and operations of a large product."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

REPEATS = 20


def seconds_of(work: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """The median time of some work, once it is warm."""
    for _ in range(3):
        work()
    times = []
    for _ in range(repeats):
        wait(device)
        began = time.perf_counter()
        work()
        wait(device)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bytes_per_s(device: torch.device, size: int) -> float:
    """Read and written by a copy that no cache holds."""
    source = torch.randint(0, 255, (size,), dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * size / seconds_of(lambda: target.copy_(source), device)


def pinned_bytes_per_s(device: torch.device, size: int) -> tuple[float, float]:
    """From the device to the host's memory, and back."""
    here = torch.zeros(size, dtype=torch.uint8, device=device)
    there = torch.empty(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    out = seconds_of(lambda: there.copy_(here, non_blocking=True), device)
    back = seconds_of(lambda: here.copy_(there, non_blocking=True), device)
    return size / out, size / back


def flops_per_s(device: torch.device, dtype: torch.dtype, size: int) -> float:
    """Of one large square product."""
    a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))
    return 2 * size**3 / seconds_of(lambda: a @ b, device)
