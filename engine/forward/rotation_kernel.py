"""The kernel that rotates queries and keys by their positions: a head's halves are turned against each other,
with the roundings of the formula, operation by operation."""

# ruff: noqa: N803 (what is fixed when a kernel is compiled stands in capitals, as in Triton's own code)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

HEADS = 8  # that a program turns


def rotated(query: Tensor, key: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """query and key: [1, H, T, D]; cos and sin: [1, T, D], of numbers as wide or wider."""
    (_, q_heads, tokens, size), k_heads = query.shape, key.shape[1]
    turned = torch.empty_like(query), torch.empty_like(key)
    q_programs = triton.cdiv(q_heads, HEADS)
    turn[tokens, q_programs + triton.cdiv(k_heads, HEADS)](
        query[0],
        key[0],
        turned[0],
        turned[1],
        cos,
        sin,
        q_heads,
        k_heads,
        q_programs,
        *(stride for one in (query, key, *turned) for stride in one.stride()[1:3]),
        cos.stride(1),
        sin.stride(1),
        HALF=size // 2,
        HEADS=HEADS,
        LANES=triton.next_power_of_2(size // 2),
        WIDE=tl.float64 if query.dtype == torch.float64 else tl.float32,
        num_warps=4,
        enable_fp_fusion=False,  # a product is rounded before it is added
    )
    return turned


@triton.jit(do_not_specialize=["q_heads", "k_heads", "q_programs"])  # type: ignore[untyped-decorator]
def turn(  # type: ignore[no-untyped-def]
    query,
    key,
    query_out,
    key_out,
    cos,
    sin,
    q_heads,
    k_heads,
    q_programs,
    q_head,
    q_token,
    k_head,
    k_token,
    q_out_head,
    q_out_token,
    k_out_head,
    k_out_token,
    cos_token,
    sin_token,
    HALF: tl.constexpr,
    HEADS: tl.constexpr,
    LANES: tl.constexpr,
    WIDE: tl.constexpr,
):
    token, program = tl.program_id(0).to(tl.int64), tl.program_id(1)
    cos += token * cos_token
    sin += token * sin_token
    if program < q_programs:
        head = program * HEADS + tl.arange(0, HEADS)
        to = query_out + token * q_out_token
        halves(query + token * q_token, to, cos, sin, head, q_heads, q_head, q_out_head, HALF, LANES, WIDE)
    else:
        head = (program - q_programs) * HEADS + tl.arange(0, HEADS)
        to = key_out + token * k_out_token
        halves(key + token * k_token, to, cos, sin, head, k_heads, k_head, k_out_head, HALF, LANES, WIDE)


@triton.jit  # type: ignore[untyped-decorator]
def halves(  # type: ignore[no-untyped-def]
    x,
    out,
    cos,
    sin,
    head,
    heads,
    x_head,
    out_head,
    HALF: tl.constexpr,
    LANES: tl.constexpr,
    WIDE: tl.constexpr,
):
    lane = tl.arange(0, LANES)
    held = (head < heads)[:, None] & (lane < HALF)[None, :]
    here, there = head[:, None] * x_head + lane[None, :], head[:, None] * out_head + lane[None, :]
    first = tl.load(x + here, mask=held, other=0.0)
    second = tl.load(x + here + HALF, mask=held, other=0.0)
    cos_first, cos_second = of_half(cos, lane, HALF, WIDE), of_half(cos + HALF, lane, HALF, WIDE)
    sin_first, sin_second = of_half(sin, lane, HALF, WIDE), of_half(sin + HALF, lane, HALF, WIDE)
    to = cos.dtype.element_ty
    tl.store(out + there, summed(first, cos_first, -second, sin_first, to, WIDE), mask=held)
    tl.store(out + there + HALF, summed(second, cos_second, first, sin_second, to, WIDE), mask=held)


@triton.jit  # type: ignore[untyped-decorator]
def of_half(angles, lane, HALF: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.load(angles + lane, mask=lane < HALF, other=0.0).to(WIDE)[None, :]


@triton.jit  # type: ignore[untyped-decorator]
def summed(a, cos, b, sin, to: tl.constexpr, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """a * cos + b * sin, each rounded to numbers of this kind."""
    one, other = (a.to(WIDE) * cos).to(to), (b.to(WIDE) * sin).to(to)
    return (one.to(WIDE) + other.to(WIDE)).to(to).to(a.dtype)
