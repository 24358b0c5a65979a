"""The tile: some rows multiplied by a panel of columns, in registers.

A number of the result is one sum, from the first term to the last, each multiplied and added in one rounding.
So it is the same bits whatever stands beside it: in any number of rows, in any width of panel, on any
processor. It is written in LLVM's vectors, since what a loop is made into is the compiler's business, and may
change.

It knows addresses, and distances in bytes; whoever calls knows what lies there.
"""

from __future__ import annotations

from typing import Any

import torch
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from engine.compiled import compiled

# Two vectors wide: with as many rows as below their sums fill the registers, and no sum waits for itself.
LANES = 32 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 16
ROWS = 6
FLOAT, INDEX, SHORT = ir.FloatType(), ir.IntType(64), ir.IntType(32)
PANEL = ir.VectorType(FLOAT, LANES)


def _tile(rows: int) -> Any:
    @intrinsic
    def multiply(context, x, x_row, panel, panel_row, terms, out, out_row, anew):  # type: ignore[no-untyped-def]
        return types.void(*[types.int64] * 8), lambda _context, builder, _signature, arguments: _emit(
            builder, rows, *arguments
        )

    return multiply


def _emit(  # type: ignore[no-untyped-def]
    builder, rows: int, x, x_row, panel, panel_row, terms, out, out_row, anew
) -> ir.Value:
    def at(address, distance, times):  # type: ignore[no-untyped-def]
        return builder.add(address, builder.mul(distance, times))

    def read(address, kind):  # type: ignore[no-untyped-def]
        return builder.load(builder.inttoptr(address, kind.as_pointer()), align=4)

    add = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(PANEL, [PANEL] * 3), f"llvm.fma.v{LANES}f32"
    )
    none, all_lanes = ir.Constant(PANEL, ir.Undefined), ir.VectorType(SHORT, LANES)
    xs = [at(x, x_row, INDEX(row)) for row in range(rows)]
    outs = [at(out, out_row, INDEX(row)) for row in range(rows)]
    sums = [cgutils.alloca_once(builder, PANEL) for _ in range(rows)]
    with builder.if_else(builder.icmp_signed("!=", anew, INDEX(0))) as (begins, goes_on):
        with begins:
            for total in sums:
                builder.store(ir.Constant(PANEL, [0.0] * LANES), total)
        with goes_on:
            for total, address in zip(sums, outs, strict=True):
                builder.store(read(address, PANEL), total)
    with cgutils.for_range(builder, terms) as loop:
        column = read(at(panel, panel_row, loop.index), PANEL)
        for total, address in zip(sums, xs, strict=True):
            number = read(at(address, INDEX(4), loop.index), FLOAT)
            one = builder.insert_element(none, number, SHORT(0))
            everywhere = builder.shuffle_vector(one, none, ir.Constant(all_lanes, [0] * LANES))
            builder.store(builder.call(add, [everywhere, column, builder.load(total)]), total)
    for total, address in zip(sums, outs, strict=True):
        builder.store(builder.load(total), builder.inttoptr(address, PANEL.as_pointer()), align=4)
    return ir.Constant(ir.IntType(8).as_pointer(), None)


_one, _two, _three, _four, _five, _six = (_tile(rows) for rows in range(1, ROWS + 1))


@compiled()
def multiply_rows(x, x_row, panel, panel_row, terms, out, out_row, rows, anew):  # type: ignore[no-untyped-def]
    """Any number of rows; what stands in `out` is added to unless it begins anew."""
    parts = (rows + ROWS - 1) // ROWS
    first = 0
    for part in range(parts):
        some = (rows - first + parts - part - 1) // (parts - part)
        a, c = x + first * x_row, out + first * out_row
        if some == 6:
            _six(a, x_row, panel, panel_row, terms, c, out_row, anew)
        elif some == 5:
            _five(a, x_row, panel, panel_row, terms, c, out_row, anew)
        elif some == 4:
            _four(a, x_row, panel, panel_row, terms, c, out_row, anew)
        elif some == 3:
            _three(a, x_row, panel, panel_row, terms, c, out_row, anew)
        elif some == 2:
            _two(a, x_row, panel, panel_row, terms, c, out_row, anew)
        else:
            _one(a, x_row, panel, panel_row, terms, c, out_row, anew)
        first += some


@intrinsic
def floats_at(context, address):  # type: ignore[no-untyped-def]
    return types.CPointer(types.float32)(types.int64), _pointer


@intrinsic
def shorts_at(context, address):  # type: ignore[no-untyped-def]
    return types.CPointer(types.int32)(types.int64), _pointer


@intrinsic
def integers_at(context, address):  # type: ignore[no-untyped-def]
    return types.CPointer(types.int64)(types.int64), _pointer


def _pointer(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
    return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))
