"""The draw by a Triton kernel: a program a row finds its token as `draw.py` does, and no one waits for it.

A program reads its row once for the best score, once to race, and once more for top_p's masses; where the
winner is outside of top_p it races again. Blocks that cannot win any more are passed over.

For the same float32 scores tokens are those of the CPU. For that nothing is fused, so that each operation of
the noise and of top_p's masses is rounded as IEEE 754 rounds it.
"""

# ruff: noqa: N803 (what is fixed when a kernel is compiled stands in capitals, as in Triton's own code)

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from engine.sampling import filters, noise, race
from engine.sampling.draw import Asked

TILE = 16  # blocks that are read side by side
WARPS = 8

BLOCK = tl.constexpr(noise.BLOCK)
GOLDEN = tl.constexpr(noise.GOLDEN % 2**64)
MIX_A = tl.constexpr(noise.MIX_A % 2**64)
MIX_B = tl.constexpr(noise.MIX_B % 2**64)
MANTISSA = tl.constexpr(noise.MANTISSA)
UNIT = tl.constexpr(2.0**-noise.MANTISSA)
SQRT_HALF = tl.constexpr(noise.SQRT_HALF)
LN2 = tl.constexpr(noise.LN2)
TERMS = tl.constexpr(len(noise.SERIES))
SLACK = tl.constexpr(race.SLACK)
MIN_TEMPERATURE = tl.constexpr(race.MIN_TEMPERATURE)
COLDEST = tl.constexpr(filters.COLDEST)
LOG2E = tl.constexpr(filters.LOG2E)
LN2_HIGH = tl.constexpr(filters.LN2_HIGH)
LN2_LOW = tl.constexpr(filters.LN2_LOW)
POWER_7, POWER_6, POWER_5, POWER_4, POWER_3, POWER_2 = map(tl.constexpr, filters.POWERS[:6])
EXPONENT_BIAS = tl.constexpr(filters.EXPONENT_BIAS)


def draw(scores: Tensor, asked: Asked) -> Tensor:
    """The token of each row; -1 where its scores are no numbers."""
    tokens = torch.empty(len(scores), dtype=torch.int64, device=scores.device)
    draw_row[(len(scores),)](
        scores,
        asked.keys,
        asked.parameters,
        asked.edges(scores),
        tokens,
        scores.shape[1],
        scores.stride(0),
        asked.parameters.stride(0),
        WIDE=tl.float64 if scores.dtype == torch.float64 else tl.float32,
        TILE=TILE,
        num_warps=WARPS,
        enable_fp_fusion=False,
    )
    return tokens


@triton.jit(do_not_specialize=["vocab", "scores_row", "parameters_row"])  # type: ignore[untyped-decorator]
def draw_row(  # type: ignore[no-untyped-def]
    scores,
    keys,
    parameters,  # of each row: temperature, top_p, and how cold min_p lets a token be
    edges,
    tokens,
    vocab,
    scores_row,
    parameters_row,
    WIDE: tl.constexpr,
    TILE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    scores += row * scores_row
    key = tl.load(keys + row).to(tl.uint64, bitcast=True)
    temperature = tl.load(parameters + row * parameters_row)
    top_p = tl.load(parameters + row * parameters_row + 1)
    coldest = tl.load(parameters + row * parameters_row + 2).to(WIDE)
    edge = tl.load(edges + row).to(WIDE)
    best, sound = best_score(scores, vocab, WIDE, TILE)
    token = tl.full((), -1, tl.int64)
    if sound:
        if temperature == 0:
            token = first_of(scores, best, vocab, WIDE, TILE)
        else:
            degrees = tl.maximum(temperature, MIN_TEMPERATURE)
            beaten = tl.full((), -float("inf"), WIDE)  # what is no warmer has been found to be outside
            running = True
            while running:
                token = winner(scores, best, key, degrees, edge, coldest, beaten, vocab, WIDE, TILE)
                running = False
                if top_p < 1:
                    beaten = cooled(tl.load(scores + token).to(WIDE), best, degrees, WIDE)
                    running = outside_top_p(scores, best, beaten, degrees, edge, top_p, vocab, WIDE, TILE)
    tl.store(tokens + row, token)


@triton.jit  # type: ignore[untyped-decorator]
def best_score(scores, vocab, WIDE: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The best score, and whether it and all others are numbers."""
    places = tl.arange(0, TILE * BLOCK)
    most = tl.full([TILE * BLOCK], -float("inf"), WIDE)
    broken = tl.zeros([TILE * BLOCK], tl.int32)
    for start in range(0, vocab, TILE * BLOCK):
        score = tl.load(scores + start + places, mask=start + places < vocab, other=-float("inf")).to(WIDE)
        broken = broken | (score != score).to(tl.int32)
        most = tl.maximum(most, score)
    best = tl.max(most, 0)
    return best, (tl.max(broken, 0) == 0) & (best > -float("inf")) & (best < float("inf"))


@triton.jit  # type: ignore[untyped-decorator]
def first_of(scores, best, vocab, WIDE: tl.constexpr, TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """The lowest id that has the best score."""
    places = tl.arange(0, TILE * BLOCK)
    first = tl.full([TILE * BLOCK], vocab, tl.int32)
    for start in range(0, vocab, TILE * BLOCK):
        score = tl.load(scores + start + places, mask=start + places < vocab, other=-float("inf")).to(WIDE)
        first = tl.minimum(first, tl.where(score == best, start + places, vocab))
    return tl.min(first, 0).to(tl.int64)


@triton.jit  # type: ignore[untyped-decorator]
def winner(  # type: ignore[no-untyped-def]
    scores, best, key, degrees, edge, coldest, beaten, vocab, WIDE: tl.constexpr, TILE: tl.constexpr
):
    most = tl.full((), -float("inf"), tl.float64)
    token = tl.full((), 0, tl.int64)
    inside = tl.arange(0, BLOCK)
    for start in range(0, vocab, TILE * BLOCK):
        blocks = start // BLOCK + tl.arange(0, TILE)
        ids = blocks[:, None] * BLOCK + inside[None, :]
        score = tl.load(scores + ids, mask=ids < vocab, other=-float("inf")).to(WIDE)
        cold = cooled(score, best, degrees, WIDE)
        runs = (score >= edge) & (cold >= coldest) & (cold > beaten) & (ids < vocab)
        ahead = tl.where(runs, score.to(tl.float64) / degrees, -float("inf"))
        bits = mixed(key - (blocks + 1).to(tl.uint64) * GOLDEN)
        times = exponential(bits) * (1 / BLOCK)
        bounds = tl.max(ahead, 1) - ln(times)
        if tl.max(bounds, 0) >= most - SLACK * (1 + tl.abs(most)):
            first = (bits & (BLOCK - 1)).to(tl.int32)
            later = exponential(mixed(key + (ids + 1).to(tl.uint64) * GOLDEN))
            later = tl.where(inside[None, :] == first[:, None], 0.0, later) + times[:, None]
            reached = ahead - ln(later)
            farthest = tl.max(tl.max(reached, 1), 0)
            if farthest > most:  # of equals the lowest id, which came before
                most = farthest
                leading = tl.where(reached == farthest, ids, vocab)
                token = tl.min(tl.min(leading, 1), 0).to(tl.int64)
    return token


@triton.jit  # type: ignore[untyped-decorator]
def outside_top_p(  # type: ignore[no-untyped-def]
    scores, best, beaten, degrees, edge, top_p, vocab, WIDE: tl.constexpr, TILE: tl.constexpr
):
    """Whether better tokens already have the share. Masses are whole numbers, so their sums are exact."""
    places = tl.arange(0, TILE * BLOCK)
    own = mass(beaten)
    total = tl.zeros([TILE * BLOCK], tl.int64)
    better = tl.zeros([TILE * BLOCK], tl.int64)
    for start in range(0, vocab, TILE * BLOCK):
        score = tl.load(scores + start + places, mask=start + places < vocab, other=-float("inf")).to(WIDE)
        held = tl.where(score >= edge, mass(cooled(score, best, degrees, WIDE)), 0)
        total += held
        better += tl.where(held > own, held, 0)
    wanted = tl.maximum(tl.sum(total, 0).to(tl.float64) * top_p, 1.0)
    return tl.sum(better, 0).to(tl.float64) >= wanted


@triton.jit  # type: ignore[untyped-decorator]
def cooled(score, best, degrees, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    below = score - best
    return below / degrees if tl.float64 == WIDE else tl.div_rn(below, degrees.to(WIDE))


@triton.jit
def mass(cold):  # type: ignore[no-untyped-def]
    """As `filters.mass`: operation by operation."""
    x = tl.maximum(cold.to(tl.float32), COLDEST)
    whole = tl.floor(x * LOG2E + 0.5)
    x = x - whole * LN2_HIGH - whole * LN2_LOW
    power = x * POWER_7 + POWER_6
    power = power * x + POWER_5
    power = power * x + POWER_4
    power = power * x + POWER_3
    power = power * x + POWER_2
    power = power * x + 1
    power = power * x + 1
    scale = ((whole.to(tl.int32) + EXPONENT_BIAS) << 23).to(tl.float32, bitcast=True)
    return tl.floor(power * scale + 0.5).to(tl.int64)


@triton.jit
def mixed(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> 30)) * MIX_A
    x = (x ^ (x >> 27)) * MIX_B
    return x ^ (x >> 31)


@triton.jit
def exponential(bits):  # type: ignore[no-untyped-def]
    """As `noise.exponential`, as `ln` is `noise.ln`: operation by operation."""
    uniform = ((bits >> 12).to(tl.int64).to(tl.float64) + 0.5) * UNIT
    return -ln(uniform)


@triton.jit
def ln(x):  # type: ignore[no-untyped-def]
    bits = x.to(tl.int64, bitcast=True)
    exponent = (bits - SQRT_HALF) >> MANTISSA
    mantissa = (bits - (exponent << MANTISSA)).to(tl.float64, bitcast=True)
    s = (mantissa - 1) / (mantissa + 1)
    z = s * s
    series = z * (2 / (2 * TERMS + 1))
    for term in tl.static_range(1, TERMS):
        series = (series + 2 / (2 * (TERMS - term) + 1)) * z
    return (series + 2) * s + exponent.to(tl.float64) * LN2
