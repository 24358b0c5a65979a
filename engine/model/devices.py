"""Where a model is computed and in which numbers, and what memory is free there."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import torch

from engine.model.preflight import ModelError

DTYPES = {
    "float64": torch.float64,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
GIB = 2**30


def device_named(name: str) -> torch.device:
    try:
        place = torch.device(name)
    except RuntimeError:
        raise ModelError(f"no device {name}: cpu, cuda and cuda:N are known") from None
    if place.type not in ("cpu", "cuda"):
        raise ModelError(f"the device {name} is not supported; cpu and cuda are")
    if place.type == "cuda" and (place.index or 0) >= torch.cuda.device_count():
        raise ModelError(
            f"the device {name} is not there: torch sees {torch.cuda.device_count()} CUDA devices"
        )
    return place


def dtype_of(name: str, config: dict[str, Any], place: torch.device) -> torch.dtype:
    """`auto` is float32 on a CPU, where it is fastest, and what the weights were saved as on a GPU."""
    if name == "auto":
        saved = config.get("dtype") or config.get("torch_dtype")
        name = "float32" if place.type == "cpu" else str(saved or "bfloat16")
    if name not in DTYPES:
        raise ModelError(f"the dtype {name} is not supported; {', '.join(DTYPES)} are")
    return DTYPES[name]


def check_memory(needed: int, place: torch.device) -> None:
    free = torch.cuda.mem_get_info(place)[0] if place.type == "cuda" else available_memory()
    if free is not None and needed > free:
        sizes = f"the weights take {needed / GIB:.1f} GiB, {free / GIB:.1f} are free"
        more = "; --devices shares a model among more" if place.type == "cuda" else ""
        raise ModelError(f"there is not enough memory on {place}: {sizes}{more}")


def lacks_memory(error: Exception) -> bool:
    """Whether it is for want of memory, which torch's allocator for the CPU and a failed mmap say only in
    their words."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate" in str(error)


def available_memory(
    meminfo: Path = Path("/proc/meminfo"), group: Path = Path("/sys/fs/cgroup")
) -> int | None:
    """Bytes that this process may still take, or None where the system does not say."""
    known = []
    with contextlib.suppress(OSError):
        known += [int(kib) * 1024 for kib in re.findall(r"MemAvailable:\s+(\d+)", meminfo.read_text())]
    with contextlib.suppress(OSError, ValueError):  # "max" is no limit
        known.append(int((group / "memory.max").read_text()) - _taken(group))
    return min(known, default=None)


def _taken(group: Path) -> int:
    """By all processes of a container or service, but for the pages of files: those are given up first."""
    of_files = re.findall(r"^(?:in)?active_file (\d+)$", (group / "memory.stat").read_text(), re.MULTILINE)
    return int((group / "memory.current").read_text()) - sum(map(int, of_files))
