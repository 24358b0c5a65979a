"""Products of float32, as operators for ggml's graphs: it multiplies them itself at a third of the speed, and
one row alone otherwise than beside others.

A matrix lies in panels: so many rows of it side by side, number by number. The last is filled up.
"""

from __future__ import annotations

import numpy as np
import torch
from numba import carray
from torch import Tensor
from torch.nn import functional

from engine.compiled import callback
from engine.ggml.tile import LANES, ROWS, floats_at, integers_at, multiply_rows, shorts_at

REAL = 4  # bytes
SCRATCH = ROWS * LANES * REAL  # bytes, of each thread


def in_panels(matrix: Tensor) -> Tensor:
    """Its bytes."""
    outs, ins = matrix.shape
    whole = functional.pad(matrix, (0, 0, 0, -outs % LANES)) if outs % LANES else matrix
    panels = whole.reshape(-1, LANES, ins).transpose(1, 2).contiguous()
    return panels.view(-1).view(torch.uint8)


@callback("void(int64, int32, int32, int64)")
def multiply(_, thread, threads, told):  # type: ignore[no-untyped-def]
    """Rows by a matrix."""
    numbers = integers_at(told)
    out, panels, x, rows, ins, outs = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4], numbers[5]
    own = numbers[6] + thread * numbers[7]
    count = (outs + LANES - 1) // LANES
    for at in range(count * thread // threads, count * (thread + 1) // threads):
        panel, left = panels + at * ins * LANES * REAL, outs - at * LANES
        if left >= LANES:
            multiply_rows(
                x, ins * REAL, panel, LANES * REAL, ins, out + at * LANES * REAL, outs * REAL, rows, 1
            )
            continue
        found = carray(floats_at(own), (ROWS, LANES), np.float32)
        for first in range(0, rows, ROWS):
            some = min(ROWS, rows - first)
            multiply_rows(
                x + first * ins * REAL, ins * REAL, panel, LANES * REAL, ins, own, LANES * REAL, some, 1
            )
            for row in range(some):
                place = out + ((first + row) * outs + at * LANES) * REAL
                target = carray(floats_at(place), (left,), np.float32)
                for lane in range(left):
                    target[lane] = found[row, lane]


@callback("void(int64, int32, int32, int64)")
def look_up(_, thread, threads, told):  # type: ignore[no-untyped-def]
    """Rows of a matrix, by their numbers."""
    numbers = integers_at(told)
    out, panels, wanted, count, ins = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    numbers = carray(shorts_at(wanted), (count,), np.int32)
    for at in range(count * thread // threads, count * (thread + 1) // threads):
        panel, lane = np.int64(numbers[at]) // LANES, np.int64(numbers[at]) % LANES
        source = carray(floats_at(panels + panel * ins * LANES * REAL), (ins, LANES), np.float32)
        target = carray(floats_at(out + at * ins * REAL), (ins,), np.float32)
        for term in range(ins):
            target[term] = source[term, lane]
