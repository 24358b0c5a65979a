"""The memory and open files of a process, from outside. Linux tells them in /proc."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.gateway import resident_kb


def resident_mib(pid: int) -> float:
    return resident_kb(pid) / 1024


def own_mib(pid: int) -> float:
    """Without the pages of programs and libraries, which come as they are first used."""
    return resident_kb(pid, "RssAnon") / 1024


def open_files(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/fd").iterdir()))


def slope(samples: Sequence[tuple[float, float]]) -> float:
    """Of the straight line that lies closest to (time, value): value a time."""
    middle = sum(time for time, _ in samples) / len(samples)
    level = sum(value for _, value in samples) / len(samples)
    spread = sum((time - middle) ** 2 for time, _ in samples)
    return sum((time - middle) * (value - level) for time, value in samples) / spread if spread else 0.0
