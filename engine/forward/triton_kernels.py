"""The Triton kernels of paged attention: one reads, one joins what was read in parts.

A *tile* is a few query tokens of one sequence that stand behind one another: one where a row decodes, more in
a chunk of a prompt. The grouped queries of a tile stand together in one matrix, so that a key that they share
is read once for all. A tile's context may be split among programs, each of which leaves its part and that
part's log-sum-exp; with one token a sequence there would be too few programs to keep the memory busy.

These functions know pointers and numbers. What is masked is never loaded, so no row's numbers, or
not-numbers, can reach another row. What changes from step to step is no reason to compile anew: it is a plain
argument that nothing is specialized for.
"""

# ruff: noqa: N803 (what is fixed when a kernel is compiled stands in capitals, as in Triton's own code)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["n_tiles", "n_tokens", "splits"])  # type: ignore[untyped-decorator]
def read(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    tables,
    tiles,  # [4, tiles]: row of `tables`, first query token, its position, how many
    sinks,
    out,  # [T, H, D] when nothing is split, else [splits, T, H, D]
    lses,  # [splits, T, H]
    scale,
    softcap,
    n_tiles,
    n_tokens,
    splits,
    query_head,
    query_token,
    keys_head,
    values_head,
    table_row,
    window: tl.constexpr,  # 0 sees all
    block: tl.constexpr,
    size: tl.constexpr,
    value_size: tl.constexpr,
    groups: tl.constexpr,
    SPLIT: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
    WIDEN: tl.constexpr,  # Triton's interpreter cannot multiply bfloat16, though it can hold it
    M: tl.constexpr,
    G: tl.constexpr,  # groups, rounded up to a power of two
    N: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
):
    tile, head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    slot = tl.load(tiles + tile).to(tl.int64)
    first = tl.load(tiles + n_tiles + tile)
    position = tl.load(tiles + 2 * n_tiles + tile)
    count = tl.load(tiles + 3 * n_tiles + tile)

    m = tl.arange(0, M)
    group, token = m % G, m // G
    d, v, n = tl.arange(0, D), tl.arange(0, V), tl.arange(0, N)
    real = (group < groups) & (token < count)
    heads = head * groups + group
    rows = (first + token).to(tl.int64)
    at = position + token

    q = tl.load(
        query + heads[:, None].to(tl.int64) * query_head + rows[:, None] * query_token + d[None, :],
        mask=real[:, None] & (d < size)[None, :],
        other=0.0,
    )
    begin = 0
    if window > 0:
        begin = tl.maximum(position - window + 1, 0) // N * N
    end = position + count
    share = tl.cdiv(tl.cdiv(end - begin, splits), N) * N
    low = begin + split * share
    high = tl.minimum(low + share, end)

    most = tl.full([M], -float("inf"), WIDE)
    total = tl.zeros([M], WIDE)
    sums = tl.zeros([M, V], WIDE)
    for start in range(low, high, N):
        there = start + n
        held = there < end
        if window > 0:  # what is before it may be gone
            held = held & (there > position - window)
        number = tl.load(tables + slot * table_row + there // block, mask=held, other=0).to(tl.int64)
        place = number * block + there % block
        k = tl.load(
            keys + head.to(tl.int64) * keys_head + place[None, :] * size + d[:, None],
            mask=held[None, :] & (d < size)[:, None],
            other=0.0,
        )
        if WIDEN:
            q, k = q.to(WIDE), k.to(WIDE)
        scores = tl.dot(q, k, input_precision=PRECISION, out_dtype=WIDE) * scale
        if CAPPED:
            scores = softcap * (1 - 2 / (tl.exp(2 * scores / softcap) + 1))  # tanh, without overflow
        seen = held[None, :] & (there[None, :] <= at[:, None])
        if window > 0:
            seen = seen & (at[:, None] - there[None, :] < window)
        scores = tl.where(seen, scores, -float("inf"))
        above = tl.maximum(most, tl.max(scores, 1))
        level = tl.where(above == -float("inf"), 0.0, above)  # a row that has seen nothing yet
        shares = tl.exp(scores - level[:, None])
        shrunk = tl.exp(most - level)
        total = total * shrunk + tl.sum(shares, 1)
        x = tl.load(
            values + head.to(tl.int64) * values_head + place[:, None] * value_size + v[None, :],
            mask=held[:, None] & (v < value_size)[None, :],
            other=0.0,
        )
        part = shares.to(x.dtype)
        if WIDEN:
            part, x = part.to(WIDE), x.to(WIDE)
        sums = sums * shrunk[:, None] + tl.dot(part, x, input_precision=PRECISION, out_dtype=WIDE)
        most = above

    none = total == 0
    lse = tl.where(none, -float("inf"), most + tl.log(tl.where(none, 1.0, total)))
    result = sums / tl.where(none, 1.0, total)[:, None]
    all_heads = tl.num_programs(1) * groups
    where = rows * all_heads + heads
    if not SPLIT:
        if SINKS:
            sink = tl.load(sinks + heads, mask=real, other=0.0).to(WIDE)
            result = result / (1 + tl.exp(sink - lse))[:, None]
    else:
        where = where + split.to(tl.int64) * n_tokens * all_heads
        tl.store(lses + where, lse, mask=real)
    tl.store(
        out + where[:, None] * value_size + v[None, :],
        result.to(out.dtype.element_ty),
        mask=real[:, None] & (v < value_size)[None, :],
    )


@triton.jit(do_not_specialize=["splits", "first", "stride"])  # type: ignore[untyped-decorator]
def join(  # type: ignore[no-untyped-def]
    parts,  # [splits, T, H, D]
    lses,  # [splits, T, H]
    sinks,
    out,  # [T, H, D]
    splits,
    first,  # of the (token, head) pairs to join
    stride,  # T * H
    heads,
    value_size: tl.constexpr,
    SINKS: tl.constexpr,
    WIDE: tl.constexpr,
    S: tl.constexpr,  # no fewer than splits, a power of two
    V: tl.constexpr,
):
    """Each part weighs what its scores weigh; a sink weighs too, and gives nothing."""
    row = first + tl.program_id(0).to(tl.int64)
    s, v = tl.arange(0, S), tl.arange(0, V)
    lse = tl.load(lses + s * stride + row, mask=s < splits, other=-float("inf"))
    most = tl.max(lse, 0)
    weights = tl.exp(lse - most)
    total = tl.sum(weights, 0)
    if SINKS:
        total += tl.exp(tl.load(sinks + row % heads).to(WIDE) - most)
    part = tl.load(
        parts + (s[:, None] * stride + row) * value_size + v[None, :],
        mask=(s < splits)[:, None] & (v < value_size)[None, :],
        other=0.0,
    )
    result = tl.sum(part * weights[:, None], 0) / total
    tl.store(out + row * value_size + v, result.to(out.dtype.element_ty), mask=v < value_size)
