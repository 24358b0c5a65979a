"""The tile: some rows multiplied by a panel of columns, in registers.

A number of the result is one sum, from the first term to the last, each multiplied and added in one rounding.
So it is the same bits whatever stands beside it: in any number of rows, in any width of panel, on any
processor. A narrow column is widened as it is read, once for the rows of a tile. It is written in LLVM's
vectors, since what a loop is made into is the compiler's business, and may change.

It knows addresses, and distances in bytes; whoever calls knows what lies there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
BLOCK = 32  # numbers of eight bits that have a scale in common
BLOCK_BYTES = (BLOCK + 2) * LANES
FLOAT, HALF, BYTE, SHORT, INT, LONG = ir.FloatType(), ir.HalfType(), *map(ir.IntType, (8, 16, 32, 64))

Builder = Any  # of LLVM, whose binding has no types
Value = Any
Columns = Callable[..., Any]  # a loop over a panel's columns: the term's number, and the column as floats


def _vector(kind: ir.Type) -> ir.VectorType:
    return ir.VectorType(kind, LANES)


def _read(builder: Builder, address: Value, kind: ir.Type) -> Value:
    return builder.load(builder.inttoptr(address, kind.as_pointer()), align=1)


def _past(builder: Builder, address: Value, distance: Value, times: Value) -> Value:
    return builder.add(address, builder.mul(distance, times))


# -- columns ---------------------------------------------------------------------------------------


@contextmanager
def _floats(builder: Builder, panel: Value, distance: Value, terms: Value) -> Iterator[tuple[Value, Value]]:
    with cgutils.for_range(builder, terms) as loop:
        yield loop.index, _read(builder, _past(builder, panel, distance, loop.index), _vector(FLOAT))


@contextmanager
def _halves(builder: Builder, panel: Value, distance: Value, terms: Value) -> Iterator[tuple[Value, Value]]:
    """In bfloat16."""
    with cgutils.for_range(builder, terms) as loop:
        narrow = _read(builder, _past(builder, panel, distance, loop.index), _vector(SHORT))
        wide = builder.shl(builder.zext(narrow, _vector(INT)), ir.Constant(_vector(INT), [16] * LANES))
        yield loop.index, builder.bitcast(wide, _vector(FLOAT))


@contextmanager
def _bytes(builder: Builder, panel: Value, _: Value, terms: Value) -> Iterator[tuple[Value, Value]]:
    """In eight bits: behind each block the scales of its columns."""
    with cgutils.for_range(builder, builder.udiv(terms, LONG(BLOCK))) as blocks:
        block = _past(builder, panel, LONG(BLOCK_BYTES), blocks.index)
        scales = _read(builder, builder.add(block, LONG(BLOCK * LANES)), _vector(HALF))
        scales = builder.fpext(scales, _vector(FLOAT))
        with cgutils.for_range(builder, LONG(BLOCK)) as loop:
            narrow = _read(builder, _past(builder, block, LONG(LANES), loop.index), _vector(BYTE))
            column = builder.fmul(builder.sitofp(narrow, _vector(FLOAT)), scales)
            yield _past(builder, loop.index, LONG(BLOCK), blocks.index), column


# -- rows ------------------------------------------------------------------------------------------


def _multiplication(columns: Columns) -> Any:
    @intrinsic
    def multiply(context, x, x_row, panel, panel_row, terms, out, out_row, rows, anew):  # type: ignore[no-untyped-def]
        return types.void(*[types.int64] * 9), lambda _context, builder, _signature, arguments: _multiply(
            builder, columns, *arguments
        )

    return multiply


def _multiply(  # type: ignore[no-untyped-def]
    builder, columns: Columns, x, x_row, panel, panel_row, terms, out, out_row, rows, anew
) -> Value:
    """As many tiles as the rows take, as high as each other."""
    tiles = builder.sdiv(builder.add(rows, LONG(ROWS - 1)), LONG(ROWS))
    with cgutils.for_range(builder, tiles) as loop:
        first, end = (
            builder.sdiv(builder.mul(rows, at), tiles)
            for at in (loop.index, builder.add(loop.index, LONG(1)))
        )
        done = builder.append_basic_block("done")
        switch = builder.switch(builder.sub(end, first), done)
        for count in range(1, ROWS + 1):
            block = builder.append_basic_block(f"rows_{count}")
            switch.add_case(LONG(count), block)
            with builder.goto_block(block):
                outs = [_past(builder, out, out_row, builder.add(first, LONG(row))) for row in range(count)]
                xs = [_past(builder, x, x_row, builder.add(first, LONG(row))) for row in range(count)]
                _tile(builder, columns(builder, panel, panel_row, terms), xs, outs, anew)
                builder.branch(done)
        builder.position_at_end(done)
    return ir.Constant(BYTE.as_pointer(), None)


def _tile(builder: Builder, columns: Any, xs: list[Value], outs: list[Value], anew: Value) -> None:
    kind = _vector(FLOAT)
    add = cgutils.get_or_insert_function(
        builder.module, ir.FunctionType(kind, [kind] * 3), f"llvm.fma.v{LANES}f32"
    )
    nothing, first_lane = ir.Constant(kind, ir.Undefined), ir.Constant(_vector(INT), [0] * LANES)
    sums = [cgutils.alloca_once(builder, kind) for _ in outs]
    with builder.if_else(builder.icmp_signed("!=", anew, LONG(0))) as (begins, goes_on):
        with begins:
            for total in sums:
                builder.store(ir.Constant(kind, [0.0] * LANES), total)
        with goes_on:
            for total, place in zip(sums, outs, strict=True):
                builder.store(_read(builder, place, kind), total)
    with columns as (term, column):
        for total, row in zip(sums, xs, strict=True):
            number = _read(builder, _past(builder, row, LONG(4), term), FLOAT)
            everywhere = builder.shuffle_vector(
                builder.insert_element(nothing, number, INT(0)), nothing, first_lane
            )
            builder.store(builder.call(add, [everywhere, column, builder.load(total)]), total)
    for total, place in zip(sums, outs, strict=True):
        builder.store(builder.load(total), builder.inttoptr(place, kind.as_pointer()), align=1)


_by_floats, _by_halves, _by_bytes = map(_multiplication, (_floats, _halves, _bytes))


@compiled()
def multiply_floats(x, x_row, panel, panel_row, terms, out, out_row, rows, anew):  # type: ignore[no-untyped-def]
    """Any number of rows; what stands in `out` is added to unless it begins anew."""
    _by_floats(x, x_row, panel, panel_row, terms, out, out_row, rows, anew)


@compiled()
def multiply_halves(x, x_row, panel, panel_row, terms, out, out_row, rows, anew):  # type: ignore[no-untyped-def]
    _by_halves(x, x_row, panel, panel_row, terms, out, out_row, rows, anew)


@compiled()
def multiply_bytes(x, x_row, panel, panel_row, terms, out, out_row, rows, anew):  # type: ignore[no-untyped-def]
    _by_bytes(x, x_row, panel, panel_row, terms, out, out_row, rows, anew)


# -- what lies at an address -----------------------------------------------------------------------


def _pointer_to(kind: Any) -> Any:
    @intrinsic
    def pointer(context, address):  # type: ignore[no-untyped-def]
        return types.CPointer(kind)(types.int64), _pointer

    return pointer


def _pointer(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
    return builder.inttoptr(arguments[0], context.get_value_type(signature.return_type))


floats_at, ints_at, longs_at, bytes_at = map(
    _pointer_to, (types.float32, types.int32, types.int64, types.int8)
)


def _number_at(read: Callable[[Builder, Value], Value]) -> Any:
    """What is narrower lies there, and is widened."""

    @intrinsic
    def number(context, address):  # type: ignore[no-untyped-def]
        return types.float32(types.int64), lambda _context, builder, _signature, arguments: read(
            builder, arguments[0]
        )

    return number


def _half(builder: Builder, address: Value) -> Value:
    return builder.fpext(_read(builder, address, HALF), FLOAT)


def _bfloat(builder: Builder, address: Value) -> Value:
    return builder.bitcast(builder.shl(builder.zext(_read(builder, address, SHORT), INT), INT(16)), FLOAT)


half_at, bfloat_at = map(_number_at, (_half, _bfloat))
