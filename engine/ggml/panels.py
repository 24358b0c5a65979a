"""Products of ours, as operators for ggml's graphs: ggml's own take up to three times as long for many rows,
and in float32 and bfloat16 one row alone is other bits than beside others.

A matrix lies in panels: so many rows of it side by side, number by number, the last filled up. In eight bits
the scales of each 32 numbers stand behind them. What is multiplied is the row as it is, in float32.
"""

from __future__ import annotations

import numpy as np
import torch
from numba.np.numpy_support import carray
from torch import Tensor
from torch.nn import functional

from engine.compiled import callback, compiled
from engine.ggml.kinds import BFLOAT16, FLOAT32, Q8_0
from engine.ggml.tile import (
    BLOCK,
    BLOCK_BYTES,
    LANES,
    ROWS,
    bfloat_at,
    bytes_at,
    floats_at,
    half_at,
    ints_at,
    longs_at,
    multiply_bytes,
    multiply_floats,
    multiply_halves,
)

REAL = 4  # bytes
SCRATCH = ROWS * LANES * REAL  # bytes, of each thread


def in_panels(kind: int, data: Tensor, outs: int, ins: int) -> Tensor:
    """A matrix's bytes, laid anew."""
    blocks = ins if kind != Q8_0 else ins // BLOCK
    numbers = data.view(outs, blocks, -1)
    if outs % LANES:
        numbers = functional.pad(numbers, (0, 0, 0, 0, 0, -outs % LANES))
    panels = numbers.view(-1, LANES, blocks, numbers.shape[-1])
    if kind != Q8_0:
        return panels.transpose(1, 2).contiguous().view(-1)
    scales, narrow = panels[..., :2].transpose(1, 2), panels[..., 2:].permute(0, 2, 3, 1)
    return torch.cat([narrow.flatten(2), scales.flatten(2)], 2).view(-1)


@compiled()
def _panel_bytes(kind, ins):  # type: ignore[no-untyped-def]
    if kind == Q8_0:
        return ins // BLOCK * BLOCK_BYTES
    return ins * LANES * (REAL if kind == FLOAT32 else 2)


@compiled()
def _multiply_panel(kind, x, panel, ins, out, out_row, rows):  # type: ignore[no-untyped-def]
    if kind == Q8_0:
        multiply_bytes(x, ins * REAL, panel, 0, ins, out, out_row, rows, 1)
    elif kind == BFLOAT16:
        multiply_halves(x, ins * REAL, panel, LANES * 2, ins, out, out_row, rows, 1)
    else:
        multiply_floats(x, ins * REAL, panel, LANES * REAL, ins, out, out_row, rows, 1)


@callback("void(int64, int32, int32, int64)")
def multiply(_, thread, threads, told):  # type: ignore[no-untyped-def]
    """Rows by a matrix."""
    numbers = longs_at(told)
    out, panels, x, kind, rows = numbers[0], numbers[1], numbers[2], numbers[3], numbers[4]
    ins, outs, own = numbers[5], numbers[6], numbers[7] + thread * numbers[8]
    count, each = (outs + LANES - 1) // LANES, _panel_bytes(kind, ins)
    for at in range(count * thread // threads, count * (thread + 1) // threads):
        panel, left = panels + at * each, outs - at * LANES
        if left >= LANES:
            _multiply_panel(kind, x, panel, ins, out + at * LANES * REAL, outs * REAL, rows)
            continue
        found = carray(floats_at(own), (ROWS, LANES), np.float32)
        for first in range(0, rows, ROWS):
            some = min(ROWS, rows - first)
            _multiply_panel(kind, x + first * ins * REAL, panel, ins, own, LANES * REAL, some)
            for row in range(some):
                target = floats_at(out + ((first + row) * outs + at * LANES) * REAL)
                for lane in range(left):
                    target[lane] = found[row, lane]


@callback("void(int64, int32, int32, int64)")
def look_up(_, thread, threads, told):  # type: ignore[no-untyped-def]
    """Rows of a matrix, by their numbers."""
    numbers = longs_at(told)
    out, panels, wanted, kind = numbers[0], numbers[1], ints_at(numbers[2]), numbers[3]
    count, ins = numbers[4], numbers[5]
    each = _panel_bytes(kind, ins)
    for at in range(count * thread // threads, count * (thread + 1) // threads):
        number = np.int64(wanted[at])
        panel, lane = panels + number // LANES * each, number % LANES
        target = floats_at(out + at * ins * REAL)
        for term in range(ins):
            if kind == Q8_0:
                block = panel + term // BLOCK * BLOCK_BYTES
                scale = half_at(block + BLOCK * LANES + lane * 2)
                target[term] = np.float32(bytes_at(block)[term % BLOCK * LANES + lane]) * scale
            elif kind == BFLOAT16:
                target[term] = bfloat_at(panel + (term * LANES + lane) * 2)
            else:
                target[term] = floats_at(panel)[term * LANES + lane]
