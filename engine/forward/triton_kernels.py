"""The Triton kernels of paged attention: one reads, one joins what was read in parts.

A *tile* is a few query tokens of one sequence that stand behind one another: one where a row decodes, more in
a chunk of a prompt. The grouped queries of a tile stand together in one matrix, so that a key that they share
is read once for all. A tile's context may be split among programs, each of which leaves its part and that
part's log-sum-exp; with one token a sequence there would be too few programs to keep the memory busy.

Where a context is cut follows from how many programs there are to be, or, with a `SHARE`, from positions
alone: then the parts of a token, what each gives, and the order in which they are joined are functions of its
own context, whichever programs read them. What a tile reads beyond a token's own context weighs nothing, and
changes no bit.

These functions know pointers and numbers. What is masked is never loaded, so no row's numbers, or
not-numbers, can reach another row. What changes from step to step is no reason to compile anew: it is a plain
argument that nothing is specialized for.
"""

# ruff: noqa: N803 (what is fixed when a kernel is compiled stands in capitals, as in Triton's own code)

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["tiles_row", "first_token", "n_tokens", "splits"],
    do_not_specialize_on_alignment=["tiles"],
)
def read(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    tables,
    tiles,  # [4, tiles]: row of `tables`, first query token, its position, how many
    sinks,
    out,  # [T, H, D] when nothing is split, else [parts, tokens, H, D]
    lses,  # [parts, tokens, H]
    scale,
    softcap,
    tiles_row,
    first_token,  # of those whose parts are kept
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
    SHARE: tl.constexpr,  # tokens from cut to cut; 0 cuts a context into as many parts as there are programs
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
    first = tl.load(tiles + tiles_row + tile)
    position = tl.load(tiles + 2 * tiles_row + tile)
    count = tl.load(tiles + 3 * tiles_row + tile)

    m = tl.arange(0, M)
    group, token = m % G, m // G
    d, v = tl.arange(0, D), tl.arange(0, V)
    real = (group < groups) & (token < count)
    heads = head * groups + group
    rows = (first + token).to(tl.int64)

    q = tl.load(
        query + heads[:, None].to(tl.int64) * query_head + rows[:, None] * query_token + d[None, :],
        mask=real[:, None] & (d < size)[None, :],
        other=0.0,
    )
    keys += head.to(tl.int64) * keys_head
    values += head.to(tl.int64) * values_head
    tables += slot * table_row
    begin = 0
    if window > 0:
        begin = tl.maximum(position - window + 1, 0) // N * N
    end = position + count
    all_heads = tl.num_programs(1) * groups
    shown = real[:, None] & (v < value_size)[None, :]
    if SHARE > 0:
        for part in range(begin // SHARE + split, tl.cdiv(end, SHARE), splits):
            low, high = tl.maximum(begin, part * SHARE), tl.minimum((part + 1) * SHARE, end)
            result, lse = attended(
                q, keys, values, tables, scale, softcap, position, token, low, high, end,
                window, block, size, value_size, CAPPED, PRECISION, WIDE, WIDEN, M, N, D, V,
            )  # fmt: skip
            where = (part * n_tokens + rows - first_token) * all_heads + heads
            tl.store(lses + where, lse, mask=real)
            tl.store(out + where[:, None] * value_size + v[None, :], result, mask=shown)
    else:
        share = tl.cdiv(tl.cdiv(end - begin, splits), N) * N
        low = begin + split * share
        high = tl.minimum(low + share, end)
        result, lse = attended(
            q, keys, values, tables, scale, softcap, position, token, low, high, end,
            window, block, size, value_size, CAPPED, PRECISION, WIDE, WIDEN, M, N, D, V,
        )  # fmt: skip
        where = rows * all_heads + heads
        if SPLIT:
            where = (split * n_tokens + rows - first_token) * all_heads + heads
            tl.store(lses + where, lse, mask=real)
        elif SINKS:
            sink = tl.load(sinks + heads, mask=real, other=0.0).to(WIDE)
            result = result / (1 + tl.exp(sink - lse))[:, None]
        result = result.to(out.dtype.element_ty)
        tl.store(out + where[:, None] * value_size + v[None, :], result, mask=shown)


@triton.jit  # type: ignore[untyped-decorator]
def attended(  # type: ignore[no-untyped-def]
    q,
    keys,
    values,
    table,
    scale,
    softcap,
    position,
    token,
    low,
    high,
    end,
    window: tl.constexpr,
    block: tl.constexpr,
    size: tl.constexpr,
    value_size: tl.constexpr,
    CAPPED: tl.constexpr,
    PRECISION: tl.constexpr,
    WIDE: tl.constexpr,
    WIDEN: tl.constexpr,
    M: tl.constexpr,
    N: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
):
    """What the keys from `low` to `high` give to a tile's queries, and their log-sum-exp."""
    d, v, n = tl.arange(0, D), tl.arange(0, V), tl.arange(0, N)
    at = position + token
    most = tl.full([M], -float("inf"), WIDE)
    total = tl.zeros([M], WIDE)
    sums = tl.zeros([M, V], WIDE)
    for start in range(low, high, N):
        there = start + n
        held = there < end
        if window > 0:  # what is before it may be gone
            held = held & (there > position - window)
        number = tl.load(table + there // block, mask=held, other=0).to(tl.int64)
        place = number * block + there % block
        k = tl.load(
            keys + place[None, :] * size + d[:, None],
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
            values + place[:, None] * value_size + v[None, :],
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
    return sums / tl.where(none, 1.0, total)[:, None], lse


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["splits", "first", "n_pairs"], do_not_specialize_on_alignment=["positions"]
)
def join(  # type: ignore[no-untyped-def]
    parts,  # [parts, tokens, H, D]
    lses,  # [parts, tokens, H]
    positions,  # of all query tokens
    sinks,
    out,  # [T, H, D]
    splits,
    first,  # of the query tokens to join
    n_pairs,  # tokens * H
    heads,
    value_size: tl.constexpr,
    window: tl.constexpr,
    SHARE: tl.constexpr,
    SINKS: tl.constexpr,
    WIDE: tl.constexpr,
    S: tl.constexpr,  # parts that are looked at together
    V: tl.constexpr,
):
    """Each part weighs what its scores weigh; a sink weighs too, and gives nothing."""
    pair = tl.program_id(0).to(tl.int64)
    low, high = 0, splits
    if SHARE > 0:
        position = tl.load(positions + first + pair // heads).to(tl.int32)
        high = position // SHARE + 1
        if window > 0:
            low = tl.maximum(position - window + 1, 0) // SHARE
    s, v = tl.arange(0, S), tl.arange(0, V)
    most = tl.full([S], -float("inf"), WIDE)
    for start in range(low, high, S):
        part = start + s
        lse = tl.load(lses + part * n_pairs + pair, mask=part < high, other=-float("inf"))
        most = tl.maximum(most, lse)
    level = tl.max(most, 0)
    total = tl.zeros([S], WIDE)
    sums = tl.zeros([S, V], WIDE)
    for start in range(low, high, S):
        part = start + s
        place = part * n_pairs + pair
        weight = tl.exp(tl.load(lses + place, mask=part < high, other=-float("inf")) - level)
        total += weight
        sums += weight[:, None] * tl.load(
            parts + place[:, None] * value_size + v[None, :],
            mask=(part < high)[:, None] & (v < value_size)[None, :],
            other=0.0,
        )
    whole = tl.sum(total, 0)
    if SINKS:
        whole += tl.exp(tl.load(sinks + pair % heads).to(WIDE) - level)
    result = tl.sum(sums, 0) / whole
    at = first.to(tl.int64) * heads + pair
    tl.store(out + at * value_size + v, result.to(out.dtype.element_ty), mask=v < value_size)
