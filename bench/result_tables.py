"""Result tables: figures that benchmarks measure, written as JSON for machines, as a table for people."""

from __future__ import annotations

import json
import platform
import time
from collections.abc import Iterable
from pathlib import Path

from msgspec import Struct, to_builtins


class Figure(Struct, frozen=True):
    """One number. `goal` says what was asked for, in the same unit; `peer` names the figure that it is a
    ratio to, or says why there is no value."""

    name: str
    value: float | None
    unit: str
    goal: str = ""
    ratio: float | None = None
    peer: str = ""


def shown(figure: Figure) -> str:
    return "-" if figure.value is None else f"{figure.value:,.4g}"


def table(figures: Iterable[Figure]) -> str:
    rows = [("figure", "value", "unit", "goal", "ratio", "to")]
    for figure in figures:
        ratio = "" if figure.ratio is None else f"{figure.ratio:.2f} x"
        rows.append((figure.name, shown(figure), figure.unit, figure.goal, ratio, figure.peer))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in rows
    ]
    return "\n".join([lines[0], "|-" + "-|-".join("-" * width for width in widths) + "-|", *lines[1:]])


def write(figures: list[Figure], folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{time.strftime('%Y%m%d-%H%M%S')}.json"
    about = {"machine": platform.processor() or platform.machine(), "python": platform.python_version()}
    path.write_text(json.dumps(about | {"figures": to_builtins(figures)}, indent=1))
    return path
