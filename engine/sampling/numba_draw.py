"""The draw on a CPU, compiled by numba: what `draw.py` finds for each row, in one call and without tensors.

A row is read once to race, and again where top_k has an edge in it or where what won without being the best
may be outside of top_p; where it is, what is better is put together, so that each race that is run again
reads half of what the last has read. Blocks that cannot win are passed over, beginning with the most
promising one. Tokens are those of `draw.py`, bit for bit: nothing is fused, and what may be added in any
order are whole numbers.

It knows arrays of numbers, and no sequence, slot or request.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from engine.compiled import compiled
from engine.sampling import filters, noise, race
from engine.sampling.draw import Asked
from engine.sampling.noise import LN2, MANTISSA, SERIES, SQRT_HALF
from engine.sampling.race import MIN_TEMPERATURE, SLACK

BLOCK = noise.BLOCK
GOLDEN, MIX_A, MIX_B = (np.uint64(number % 2**64) for number in (noise.GOLDEN, noise.MIX_A, noise.MIX_B))
IN_BLOCK = np.uint64(BLOCK - 1)
UNIT = 2.0**-MANTISSA
LOG2E, LN2_HIGH, LN2_LOW = map(np.float32, (filters.LOG2E, filters.LN2_HIGH, filters.LN2_LOW))
POWERS = tuple(map(np.float32, filters.POWERS))
HALF, COLDEST = np.float32(0.5), np.float32(filters.COLDEST)
EXPONENT_BIAS = np.int32(filters.EXPONENT_BIAS)
NOTHING = -np.inf
SURELY_COLDER = 1e-5  # temperatures, by which a token has no greater mass, however it is rounded
SIGN = np.uint32(2**31)


# -- the noise -------------------------------------------------------------------------------------


@compiled()
def _mixed(x):  # type: ignore[no-untyped-def]
    x = (x ^ (x >> np.uint64(30))) * MIX_A
    x = (x ^ (x >> np.uint64(27))) * MIX_B
    return x ^ (x >> np.uint64(31))


@compiled()
def _exponential(bits):  # type: ignore[no-untyped-def]
    """As `noise.exponential`, as `_ln` is `noise.ln`: operation by operation."""
    return -_ln((np.float64(np.int64(bits >> np.uint64(12))) + 0.5) * UNIT)


@compiled()
def _ln(x):  # type: ignore[no-untyped-def]
    bits = np.float64(x).view(np.int64)
    exponent = (bits - SQRT_HALF) >> MANTISSA
    mantissa = np.int64(bits - (exponent << MANTISSA)).view(np.float64)
    s = (mantissa - 1) / (mantissa + 1)
    z = s * s
    series = z * SERIES[8]
    series = (series + SERIES[7]) * z
    series = (series + SERIES[6]) * z
    series = (series + SERIES[5]) * z
    series = (series + SERIES[4]) * z
    series = (series + SERIES[3]) * z
    series = (series + SERIES[2]) * z
    series = (series + SERIES[1]) * z
    series = (series + SERIES[0]) * z
    return (series + 2) * s + np.float64(exponent) * LN2


# -- a row ---------------------------------------------------------------------------------------


@compiled()
def _greatest(peaks):  # type: ignore[no-untyped-def]
    """NaN is above all."""
    most = peaks[0]
    for peak in peaks:
        if peak != peak:
            return peak
        most = max(most, peak)
    return most


@compiled()
def _first(scores, peaks, best):  # type: ignore[no-untyped-def]
    """The lowest id that has the best score."""
    block = 0
    while peaks[block] < best:
        block += 1
    token = block * BLOCK
    while scores[token] < best:
        token += 1
    return token


@compiled()
def _cooled(score, best, degrees):  # type: ignore[no-untyped-def]
    return (score - best) / np.float32(degrees)


# -- the filters -----------------------------------------------------------------------------------


@compiled()
def _top_k_edge(scores, peaks, top_k, room):  # type: ignore[no-untyped-def]
    """The last score that is kept. So many peaks are no less than the last that would be kept of them that
    what is below that is not kept."""
    if not 0 < top_k < len(scores):
        return np.float32(NOTHING)
    least = np.float32(NOTHING)
    if top_k <= len(peaks):
        for at in range(len(peaks)):
            room[at] = _ordered(peaks[at])
        least = _score(_kth_greatest(room[: len(peaks)], top_k))
    count = 0
    for at in range(len(scores)):
        if scores[at] >= least:
            room[count] = _ordered(scores[at])
            count += 1
    return _score(_kth_greatest(room[:count], top_k))


@compiled()
def _kth_greatest(numbers, k):  # type: ignore[no-untyped-def]
    """Bit by bit, the greatest number that is reached by so many."""
    found = np.uint32(0)
    for bit in range(31, -1, -1):
        tried = found | np.uint32(1) << np.uint32(bit)
        count = 0
        for at in range(len(numbers)):
            count += numbers[at] >= tried
        if count >= k:
            found = tried
    return found


@compiled()
def _ordered(score):  # type: ignore[no-untyped-def]
    """Its bits as a whole number, in the order of scores."""
    bits = np.float32(score).view(np.uint32)
    return np.uint32(~bits if bits & SIGN else bits | SIGN)


@compiled()
def _score(ordered):  # type: ignore[no-untyped-def]
    return np.uint32(ordered ^ SIGN if ordered & SIGN else ~ordered).view(np.float32)


@compiled(fastmath={"reassoc"})
def _masses(scores, best, degrees, edge, own):  # type: ignore[no-untyped-def]
    """Of all, and of what is better: sums of whole numbers, which are exact in any order."""
    total, better = 0.0, 0.0
    for at in range(len(scores)):
        held = np.float64(_mass((scores[at] - best) / degrees))
        mass = held if scores[at] >= edge else 0.0
        total += mass
        better += mass if mass > own else 0.0
    return total, better


@compiled()
def _mass(cold):  # type: ignore[no-untyped-def]
    """As `filters.mass`: operation by operation."""
    x = max(cold, COLDEST)
    whole = np.floor(x * LOG2E + HALF)
    x = x - whole * LN2_HIGH - whole * LN2_LOW
    power = POWERS[0]
    power = power * x + POWERS[1]
    power = power * x + POWERS[2]
    power = power * x + POWERS[3]
    power = power * x + POWERS[4]
    power = power * x + POWERS[5]
    power = power * x + POWERS[6]
    power = power * x + POWERS[7]
    scale = np.int32((np.int32(whole) + EXPONENT_BIAS) << np.int32(23)).view(np.float32)
    return np.floor(power * scale + HALF)


# -- the race --------------------------------------------------------------------------------------


@compiled()
def _run_blocks(key, bits, times, ahead):  # type: ignore[no-untyped-def]
    """Of each block: the bits of its noise, its least time, and how far that gets whoever has it."""
    for block in range(len(bits)):
        bits[block] = _mixed(key - np.uint64(block + 1) * GOLDEN)
        times[block] = _exponential(bits[block]) * (1 / BLOCK)
        ahead[block] = -_ln(times[block])


@compiled()
def _winner(  # type: ignore[no-untyped-def]
    scores, tokens, begins, peaks, best, key, bits, times, ahead, degrees, edge, floor, beaten
):
    """Of these tokens, whose scores are given, and where those of each block begin: some of it, but then its
    best is among them."""
    likely, most = 0, NOTHING
    for block in range(len(peaks)):
        bound = np.float64(peaks[block]) / degrees + ahead[block]
        if bound > most and begins[block] < begins[block + 1]:
            likely, most = block, bound
    most, winner = NOTHING, np.int64(0)
    for turn in range(-1, len(peaks)):
        block = turn if turn >= 0 else likely
        if turn == likely or np.float64(peaks[block]) / degrees + ahead[block] < _certain(most):
            continue
        first = block * BLOCK + np.int64(bits[block] & IN_BLOCK)
        for at in range(begins[block], begins[block + 1]):
            score, token = scores[at], np.int64(tokens[at])
            cold = _cooled(score, best, degrees)
            start = np.float64(score) / degrees
            if score < edge or cold < floor or cold <= beaten or start + ahead[block] < _certain(most):
                continue
            time = times[block]
            if token != first:
                time += _exponential(_mixed(key + np.uint64(token + 1) * GOLDEN))
            reached = start - _ln(time)
            if reached > most or (reached == most and token < winner):
                most, winner = reached, token
    return winner


@compiled()
def _certain(most):  # type: ignore[no-untyped-def]
    return most - SLACK * (1 + abs(most))


@compiled()
def _winner_inside(  # type: ignore[no-untyped-def]
    scores, peaks, best, key, bits, times, ahead, degrees, edge, floor, top_p, token, room
):
    """Of those that top_p leaves, where `token` has won of all. One race is run after the other, each by
    what is warmer than who won the last: half as much, more or less."""
    beaten = _cooled(scores[token], best, degrees)
    if top_p >= 1 or beaten == 0:  # the best is never outside
        return token
    total, better = _masses(scores, best, np.float32(degrees), edge, _mass(beaten))
    least = max(1.0, total * top_p)  # that better tokens have of the mass if one is outside
    if better < least:
        return token
    left, tokens, begins = np.empty(len(scores), np.float32), room, np.empty(len(peaks) + 1, np.int64)
    put = False
    while better >= least and beaten != 0:
        warm = max(edge, np.float32(scores[token] - SURELY_COLDER * degrees))
        if put:
            _keep_warm(left, tokens, begins, warm)
        else:
            _put_warm(scores, peaks, left, tokens, begins, warm)
            put = True
        token = _winner(
            left, tokens, begins, peaks, best, key, bits, times, ahead, degrees, edge, floor, beaten
        )
        beaten = _cooled(scores[token], best, degrees)
        _, better = _masses(left[: begins[-1]], best, np.float32(degrees), edge, _mass(beaten))
    return token


@compiled()
def _put_warm(scores, peaks, left, tokens, begins, warm):  # type: ignore[no-untyped-def]
    """Put together what is so warm, and where each block begins among it."""
    put = 0
    for block in range(len(peaks)):
        begins[block] = put
        if peaks[block] >= warm:
            for at in range(block * BLOCK, min(block * BLOCK + BLOCK, len(scores))):
                left[put], tokens[put] = scores[at], at
                put += scores[at] >= warm
    begins[-1] = put


@compiled()
def _keep_warm(left, tokens, begins, warm):  # type: ignore[no-untyped-def]
    """The same of what was put together before."""
    kept, begin = 0, 0
    for block in range(len(begins) - 1):
        end = begins[block + 1]
        begins[block] = kept
        for at in range(begin, end):
            score = left[at]
            left[kept], tokens[kept] = score, tokens[at]
            kept += score >= warm
        begin = end
    begins[-1] = kept


# -- all rows --------------------------------------------------------------------------------------


@compiled("void(f4[:, ::1], f4[:, ::1], u8[::1], f8[:, ::1], i8[::1], i8[::1])")
def _draw_rows(scores, peaks, keys, parameters, top_k, tokens):  # type: ignore[no-untyped-def]
    blocks, vocab = peaks.shape[1], scores.shape[1]
    begins = np.minimum(np.arange(blocks + 1) * BLOCK, vocab)
    bits, times, ahead = np.empty(blocks, np.uint64), np.empty(blocks), np.empty(blocks)
    every, room = np.arange(vocab).astype(np.uint32), np.empty(vocab, np.uint32)
    for row in range(len(tokens)):
        temperature, top_p, coldest = parameters[row, 0], parameters[row, 1], parameters[row, 2]
        best = _greatest(peaks[row])
        if not np.isfinite(best):
            tokens[row] = -1
        elif temperature == 0:
            tokens[row] = _first(scores[row], peaks[row], best)
        else:
            edge = _top_k_edge(scores[row], peaks[row], top_k[row], room)
            degrees = max(temperature, MIN_TEMPERATURE)
            floor = np.float32(coldest)
            _run_blocks(keys[row], bits, times, ahead)
            token = _winner(
                scores[row],
                every,
                begins,
                peaks[row],
                best,
                keys[row],
                bits,
                times,
                ahead,
                degrees,
                edge,
                floor,
                np.float32(NOTHING),
            )
            tokens[row] = _winner_inside(
                scores[row],
                peaks[row],
                best,
                keys[row],
                bits,
                times,
                ahead,
                degrees,
                edge,
                floor,
                top_p,
                token,
                room,
            )


def draw(scores: Tensor, asked: Asked) -> Tensor:
    """The token of each row; -1 where its scores are no numbers."""
    scores = scores.float().contiguous()
    tokens = torch.empty(len(scores), dtype=torch.int64)
    _draw_rows(
        scores.numpy(),
        race.peaks(scores).numpy(),
        asked.keys.numpy().view(np.uint64),
        asked.parameters.contiguous().numpy(),
        np.array(asked.top_k, np.int64),
        tokens.numpy(),
    )
    return tokens
