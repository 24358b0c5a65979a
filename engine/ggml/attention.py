"""Attention over the pool, as operators for ggml's graphs.

What a token's query gives follows from its own context alone, to the bit: its context is cut into tiles at
fixed positions, which are weighed one after the other. Some queries of a row, and the heads that share keys,
go through a tile together, which changes no sum. What is computed of a tile beyond what a query sees weighs
nothing.

It knows addresses, and what is read as `reading.py` says it; it knows neither model nor graph.
"""

from __future__ import annotations

import numpy as np
from numba.np.numpy_support import carray

from engine.compiled import callback, compiled
from engine.ggml.reading import HEADER, PART, ROW, TOGETHER
from engine.ggml.tile import LANES, floats_at, longs_at, multiply_floats

REAL = 4  # bytes
TILE = 64  # keys
LAYER = 4  # numbers of where a layer reads: keys, values, from head to head, and what rows read
SUMS = 16  # of weights, side by side
NOTHING, NONE = np.float32(-np.inf), np.float32(0)
LOG2E, LN2_HIGH = np.float32(1.4426950408889634), np.float32(355 / 512)
LN2_LOW, HALF = np.float32(0.6931471805599453 - 355 / 512), np.float32(0.5)
COLDEST = np.float32(-87)
C2, C3, C4, C5, C6, C7 = (np.float32(1 / number) for number in (2, 6, 24, 120, 720, 5040))
ONE = np.float32(1)


def scratch_bytes(head_dim: int, heads_together: int) -> int:
    """Of each thread."""
    most = max(TOGETHER, heads_together)
    wide = head_dim + -head_dim % LANES
    return REAL * (most * (head_dim + TILE + wide + SUMS + 1) + TILE * (head_dim + wide)) + 64


@compiled()
def _copy(source, target, count):  # type: ignore[no-untyped-def]
    read = carray(floats_at(source), (count,), np.float32)
    written = carray(floats_at(target), (count,), np.float32)
    for at in range(count):
        written[at] = read[at]


@compiled()
def _exp(x):  # type: ignore[no-untyped-def]
    """Of nothing above zero, operation by operation."""
    whole = np.floor(max(x, COLDEST) * LOG2E + HALF)
    r = (x - whole * LN2_HIGH) - whole * LN2_LOW
    power = ((((((C7 * r + C6) * r + C5) * r + C4) * r + C3) * r + C2) * r + ONE) * r + ONE
    scale = np.int32((np.int32(whole) + np.int32(127)) << np.int32(23)).view(np.float32)
    return NONE if x < COLDEST else power * scale


@compiled()
def _hide(scores, begin, end):  # type: ignore[no-untyped-def]
    """All but those."""
    scores[:begin] = NOTHING
    scores[end:] = NOTHING


@compiled()
def _weigh(weights, best, sums, outs):  # type: ignore[no-untyped-def]
    """A query's scores become weights, and what was found before is made comparable to them. Gives the best
    score."""
    most = best
    for score in weights:
        most = max(most, score)
    faded = _exp(best - most)
    for key in range(len(weights)):
        weights[key] = _exp(weights[key] - most)
    for lane in range(SUMS):
        sums[lane] *= faded
    for first in range(0, len(weights), SUMS):
        for lane in range(SUMS):
            sums[lane] += weights[first + lane]
    if faded != ONE:
        for d in range(len(outs)):
            outs[d] *= faded
    return most


@compiled()
def _gather(  # type: ignore[no-untyped-def]
    keys, values, table, block_size, begin, end, tile, here, size, wide, at_k, at_v
):
    """A tile's keys, number by number, and its values; nothing where nobody sees it."""
    blocks = longs_at(table)
    k = carray(floats_at(at_k), (size, TILE), np.float32)
    v = carray(floats_at(at_v), (TILE, wide), np.float32)
    for at in range(here):
        position = tile + at
        if begin <= position < end:
            place = (blocks[position // block_size] * block_size + position % block_size) * size * REAL
            key = carray(floats_at(keys + place), (size,), np.float32)
            value = carray(floats_at(values + place), (size,), np.float32)
            for d in range(size):
                k[d, at] = key[d]
            for d in range(size):
                v[at, d] = value[d]
            for d in range(size, wide):
                v[at, d] = NONE
        else:
            for d in range(size):
                k[d, at] = NONE
            for d in range(wide):
                v[at, d] = NONE


@compiled()
def _scale(query, query_row, group, scaled):  # type: ignore[no-untyped-def]
    """Copy the queries, by tokens and the heads of each."""
    count, size = scaled.shape
    scale = np.float32(1 / np.sqrt(np.float64(size)))
    for at in range(count):
        source = floats_at(query + at // group * query_row + at % group * size * REAL)
        for d in range(size):
            scaled[at, d] = source[d] * scale


@compiled()
def _divide(outs, sums, out, out_row, group, size):  # type: ignore[no-untyped-def]
    for at in range(len(outs)):
        total = NONE
        for lane in range(SUMS):
            total += sums[at, lane]
        target = floats_at(out + at // group * out_row + at % group * size * REAL)
        for d in range(size):
            target[d] = outs[at, d] / total


@compiled()
def _attend_part(  # type: ignore[no-untyped-def]
    query, query_row, out, out_row, keys, values, table, block_size, start, count, group, size, window, own
):
    """Some queries of a row, at positions from `start` on, and the heads that share keys."""
    queries = count * group
    wide = (size + LANES - 1) // LANES * LANES
    at_q = own
    at_k = at_q + queries * size * REAL
    at_v = at_k + TILE * size * REAL
    at_s = at_v + TILE * wide * REAL
    at_o = at_s + queries * TILE * REAL
    at_b = at_o + queries * wide * REAL
    q = carray(floats_at(at_q), (queries, size), np.float32)
    outs = carray(floats_at(at_o), (queries, wide), np.float32)
    best = carray(floats_at(at_b), (queries,), np.float32)
    sums = carray(floats_at(at_b + queries * REAL), (queries, SUMS), np.float32)
    _scale(query, query_row, group, q)
    best[:], sums[:], outs[:] = NOTHING, NONE, NONE
    last = start + count - 1
    seen = max(0, start - window + 1)
    for tile in range(seen // TILE * TILE, last + 1, TILE):
        here = min(TILE, (last - tile) // LANES * LANES + LANES)
        _gather(
            keys,
            values,
            table,
            block_size,
            max(seen, tile),
            min(last + 1, tile + here),
            tile,
            here,
            size,
            wide,
            at_k,
            at_v,
        )
        for lane in range(0, here, LANES):
            multiply_floats(
                at_q,
                size * REAL,
                at_k + lane * REAL,
                TILE * REAL,
                size,
                at_s + lane * REAL,
                TILE * REAL,
                queries,
                1,
            )
        for at in range(queries):
            behind = start + at // group + 1 - tile
            begin, end = max(0, behind - window), min(here, behind)
            weights = carray(floats_at(at_s + at * TILE * REAL), (here,), np.float32)
            if begin < end:
                _hide(weights, begin, end)
                best[at] = _weigh(weights, best[at], sums[at], outs[at])
            else:  # it sees nothing of this tile
                weights[:] = NONE
        for d in range(0, wide, LANES):
            multiply_floats(
                at_s,
                TILE * REAL,
                at_v + d * REAL,
                wide * REAL,
                here,
                at_o + d * REAL,
                wide * REAL,
                queries,
                0,
            )
    _divide(outs, sums, out, out_row, group, size)


@callback("void(int64, int32, int32, int64)")
def keep(_, thread, threads, told):  # type: ignore[no-untyped-def]
    """Write the tokens' own keys and values to the pool."""
    numbers = longs_at(told)
    key, value, step, layer, key_row, value_row, heads, size = (
        numbers[1],
        numbers[2],
        numbers[3],
        numbers[4],
        numbers[5],
        numbers[6],
        numbers[7],
        numbers[8],
    )
    numbers = longs_at(step + 8 * LAYER * layer)
    keys, values, pitch, read = numbers[0], numbers[1], numbers[2], numbers[3]
    numbers = longs_at(read)
    n_rows, block_size, tables = numbers[0], numbers[2], numbers[3]
    rows = carray(longs_at(read + 8 * HEADER), (n_rows, ROW), np.int64)
    for row in range(n_rows):
        first, count, start, table = rows[row, 0], rows[row, 1], rows[row, 2], rows[row, 3]
        blocks = longs_at(read + 8 * (tables + table))
        for at in range(count):
            token = first + at
            if token % threads != thread:
                continue
            position = start + at
            place = blocks[position // block_size] * block_size + position % block_size
            for head in range(heads):
                target = (head * pitch + place * size) * REAL
                _copy(key + token * key_row + head * size * REAL, keys + target, size)
                _copy(value + token * value_row + head * size * REAL, values + target, size)


@callback("void(int64, int32, int32, int64)")
def attend(_, thread, threads, told):  # type: ignore[no-untyped-def]
    """What the tokens' queries give."""
    numbers = longs_at(told)
    out, query, step, layer, query_row, heads = (
        numbers[0],
        numbers[1],
        numbers[3],
        numbers[4],
        numbers[5],
        numbers[6],
    )
    kv_heads, size, window, scratch, each = numbers[7], numbers[8], numbers[9], numbers[10], numbers[11]
    numbers = longs_at(step + 8 * LAYER * layer)
    keys, values, pitch, read = numbers[0], numbers[1], numbers[2], numbers[3]
    numbers = longs_at(read)
    n_rows, n_parts, block_size, tables = numbers[0], numbers[1], numbers[2], numbers[3]
    rows = carray(longs_at(read + 8 * HEADER), (n_rows, ROW), np.int64)
    parts = carray(longs_at(read + 8 * (HEADER + n_rows * ROW)), (n_parts, PART), np.int64)
    own = scratch + thread * each
    group = heads // kv_heads
    # Of few parts each head is computed by itself, so that all threads have some.
    together = group if n_parts * kv_heads >= 2 * threads else 1
    divided = heads // together
    for unit in range(thread, n_parts * divided, threads):
        part = unit // divided
        row, begin, count = parts[part, 0], parts[part, 1], parts[part, 2]
        head = unit % divided * together
        first, start, table = rows[row, 0], rows[row, 2], rows[row, 3]
        kv = head // group * pitch * REAL
        _attend_part(
            query + (first + begin) * query_row + head * size * REAL,
            query_row,
            out + ((first + begin) * heads + head) * size * REAL,
            heads * size * REAL,
            keys + kv,
            values + kv,
            read + 8 * (tables + table),
            block_size,
            start + begin,
            count,
            together,
            size,
            window,
            own,
        )
