"""Batch-invariant arithmetic: a row's sums are taken in one order, whatever is computed beside it.

Libraries choose by the number of rows how a product or a mean is added up. Here a program computes a tile of
a product, whose size follows from the weight alone, and adds along it from end to end; a mean has a program a
row. Where `BatchInvariant` is entered, what models ask torch for is computed so: linear layers with the head
and routers among them, groups of experts, and the means of norms. All else that they compute goes number by
number, or over rows that are as long in any company.

It knows the functions of torch by which models compute, and no model.
"""

# ruff: noqa: N803 (what is fixed when a kernel is compiled stands in capitals, as in Triton's own code)

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from triton import knobs
from triton.runtime import driver

MEAN_BLOCK = 1024
STAGES = 3


@dataclass(frozen=True, slots=True)
class Tile:
    """What a program computes of a product at once: rows and columns of the result, and terms of its sums."""

    rows: int
    columns: int
    terms: int


def tile_of(columns: int, dtype: torch.dtype, processors: int) -> Tile:
    """As wide as leaves every processor something to read of the weight; rows are few enough that a lone one
    waits for memory, and not for the others that it does not have."""
    if dtype.itemsize > 2:
        return Tile(32, 32, 16)  # no tensor core multiplies it unrounded: it is multiplied in registers
    wide = next((width for width in (128, 64) if -(-columns // width) >= processors), 32)
    return Tile(64, wide, 64)


@cache
def _product_tile(columns: int, dtype: torch.dtype) -> Tile:
    """On the device that this process uses."""
    properties = driver.active.utils.get_device_properties(driver.active.get_current_device())
    return tile_of(columns, dtype, properties["multiprocessor_count"])


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """As `torch.nn.functional.linear`."""
    rows = x.reshape(-1, x.shape[-1])
    return _product(rows, weight.T[None], bias).view(*x.shape[:-1], -1)


def grouped_mm(x: Tensor, weights: Tensor, *, offs: Tensor, **others: Any) -> Tensor:
    """As `torch.nn.functional.grouped_mm`: rows up to each of `offs` by a weight [ins, outs] of their own."""
    assert all(other is None for other in others.values()), "models ask for nothing else"
    return _product(x, weights, None, offs)


def _product(x: Tensor, weights: Tensor, bias: Tensor | None, ends: Tensor | None = None) -> Tensor:
    groups, ins, outs = weights.shape
    x = x if x.stride(-1) == 1 else x.contiguous()
    out = x.new_empty(len(x), outs)
    tile = _product_tile(outs, x.dtype)
    row_tiles = triton.cdiv(len(x), tile.rows) + (groups if ends is not None else 0)
    multiply[(row_tiles * triton.cdiv(outs, tile.columns),)](
        x,
        weights,
        out if bias is None else bias,
        out if ends is None else ends,
        out,
        len(x),
        row_tiles,
        x.stride(0),
        *weights.stride(),
        outs=outs,
        ins=ins,
        GROUPS=0 if ends is None else groups,
        BIASED=bias is not None,
        PRECISION="ieee",  # of float32, which tensor cores would otherwise round
        WIDE=tl.float64 if x.dtype == torch.float64 else tl.float32,
        WIDEN=knobs.runtime.interpret and x.dtype == torch.bfloat16,
        G=triton.next_power_of_2(groups),
        M=tile.rows,
        N=tile.columns,
        K=tile.terms,
        num_warps=4,
        num_stages=STAGES,
    )
    return out


@triton.jit(do_not_specialize=["n_rows", "row_tiles"])  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]
    x,  # [rows, ins]
    weights,  # [groups, ins, outs]
    bias,
    ends,  # of each group's rows
    out,  # [rows, outs]
    n_rows,
    row_tiles,
    x_row,
    weights_group,
    weights_in,
    weights_out,
    outs: tl.constexpr,
    ins: tl.constexpr,
    GROUPS: tl.constexpr,  # 0 where all rows are in one
    BIASED: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
    WIDEN: tl.constexpr,  # Triton's interpreter cannot multiply bfloat16, though it can hold it
    G: tl.constexpr,  # groups, rounded up to a power of two
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
):
    # Neighbours read the same columns of the weight.
    tile, columns = tl.program_id(0) % row_tiles, tl.program_id(0) // row_tiles
    first, end = tile * M, n_rows
    if GROUPS > 0:
        # A tile holds rows of one group; there are as many tiles as may be needed, and some hold none.
        group = tl.arange(0, G)
        upto = tl.load(ends + group, mask=group < GROUPS, other=0)
        since = tl.load(ends + group - 1, mask=(group > 0) & (group < GROUPS), other=0)
        tiles = tl.where(group < GROUPS, (upto - since + M - 1) // M, 0)
        behind = tl.cumsum(tiles, 0)
        own = (tile < behind) & (tile >= behind - tiles)
        first = tl.sum(tl.where(own, since + (tile - behind + tiles) * M, 0), 0)
        end = tl.sum(tl.where(own, upto, 0), 0)
        if first >= end:
            return
        weights += tl.sum(tl.where(own, group, 0), 0).to(tl.int64) * weights_group
    row = first + tl.arange(0, M)
    column = columns * N + tl.arange(0, N)
    k = tl.arange(0, K)
    rows, at = row.to(tl.int64)[:, None], column.to(tl.int64)[None, :]
    held, shown = (row < end)[:, None], (column < outs)[None, :]
    sums = tl.zeros([M, N], WIDE)
    for start in range(0, ins, K):
        term = start + k
        a = tl.load(x + rows * x_row + term[None, :], mask=held & (term < ins)[None, :], other=0.0)
        b = tl.load(
            weights + term.to(tl.int64)[:, None] * weights_in + at * weights_out,
            mask=(term < ins)[:, None] & shown,
            other=0.0,
        )
        if WIDEN:
            a, b = a.to(WIDE), b.to(WIDE)
        sums = tl.dot(a, b, sums, input_precision=PRECISION, out_dtype=WIDE)
    if BIASED:
        sums += tl.load(bias + column, mask=column < outs, other=0.0).to(WIDE)[None, :]
    tl.store(out + rows * outs + at, sums.to(out.dtype.element_ty), mask=held & shown)


def mean(x: Tensor, dim: int | None = None, keepdim: bool = False, **others: Any) -> Tensor:
    """As `torch.Tensor.mean`; along the last dimension it is ours."""
    if dim not in (-1, x.dim() - 1) or others:
        return x.mean(dim, keepdim, **others)
    rows = x.reshape(-1, x.shape[-1]).contiguous()
    out = x.new_empty(len(rows))
    wide = tl.float64 if x.dtype == torch.float64 else tl.float32
    average[(len(rows),)](rows, out, rows.shape[1], WIDE=wide, SIZE=MEAN_BLOCK)
    return out.view(*x.shape[:-1], *([1] if keepdim else []))


@triton.jit  # type: ignore[untyped-decorator]
def average(x, out, ins: tl.constexpr, WIDE: tl.constexpr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    row = tl.program_id(0).to(tl.int64)
    sums = tl.zeros([SIZE], WIDE)
    for start in range(0, ins, SIZE):
        at = start + tl.arange(0, SIZE)
        sums += tl.load(x + row * ins + at, mask=at < ins, other=0.0).to(WIDE)
    tl.store(out + row, (tl.sum(sums, 0) / ins).to(out.dtype.element_ty))


_OURS: dict[Any, Callable[..., Tensor]] = {
    functional.linear: linear,
    functional.grouped_mm: grouped_mm,
    torch._grouped_mm: grouped_mm,
    Tensor.mean: mean,
}


class BatchInvariant(TorchFunctionMode):
    """While it is entered, the thread's products and means are ours."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        return _OURS.get(func, func)(*args, **(kwargs or {}))


def make_batch_invariant(model: nn.Module) -> None:
    """From now on its forward passes are computed so."""
    plain = model.forward

    @wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        with BatchInvariant():
            return plain(*args, **kwargs)

    model.forward = forward
