"""The noise of a race: for each seed, token index and token id a number, and no state.

Each (seed, index) names a SplitMix64 sequence of its own (Steele, Lea, Flood 2014), of which each number is
read where it is wanted. From them comes an exponential time for each token. Where token i is as far as
logit_i / temperature - ln(time_i), the farthest is i as often as softmax says (Gumbel's trick).

The times are drawn from the top down. Of each block of `BLOCK` tokens first the least time, an exponential of
mean 1 / BLOCK, and which token has it; then, for any other token, how much later it comes, an exponential of
mean 1. Since exponentials do not age, that is the law of independent exponentials; and it tells how early a
block can come at all, before any of its tokens is looked at.

A uniform is an odd multiple of 2**-53 in (0, 1): 52 bits and the half of a unit, held exactly by float64, as
are its distances from 0 and from 1. So times reach from 1.1e-16 to 36.7, and the early ones, which win, are
told apart by 2.2e-16: a token of a share of 10**-12 has it within a thousandth. With 24 bits, as float32 has
them, what is rarer than 10**-7 would come too often or never.

All is integers and float64's +, -, * and /, which IEEE 754 rounds in one way, one operation at a time: so the
bits are the same on any device, in any batch, at any place of it. Library logarithms would not promise that.
"""

from __future__ import annotations

import torch
from torch import Tensor

BLOCK = 128  # tokens; a power of two, so that a quotient by it is exact, and no more than 2**12
LN2 = 0.6931471805599453
SQRT_HALF = 0x3FE6A09E667F3BCD  # the bits of float64's
MANTISSA = 52
# 2 atanh(s) / s - 2 as a series in s * s, for |s| < 0.1716: the first term that is missing is below 1e-16.
SERIES = tuple(2 / (2 * power + 1) for power in range(1, 10))


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


GOLDEN = _signed(0x9E3779B97F4A7C15)
MIX_A = _signed(0xBF58476D1CE4E5B9)
MIX_B = _signed(0x94D049BB133111EB)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """`x >> bits` as if unsigned: torch shifts the sign in."""
    mask: int = (1 << (64 - bits)) - 1
    shifted: Tensor = x >> bits
    return shifted.bitwise_and_(mask)


def _mix(x: Tensor) -> Tensor:
    x = _shifted(x, 30).bitwise_xor_(x).mul_(MIX_A)
    x = _shifted(x, 27).bitwise_xor_(x).mul_(MIX_B)
    return _shifted(x, 31).bitwise_xor_(x)


def keys(seeds: Tensor, indices: Tensor) -> Tensor:
    """64 random bits for each (seed, index), as int64: where its own sequence begins.

    The seed is mixed first, so that neighbouring seeds stand far apart in the generator's one long cycle;
    seed 0 mixes to 0 and has the published sequence.
    """
    return _mix(_mix(seeds) + (indices + 1) * GOLDEN)


def ln(x: Tensor) -> Tensor:
    """The natural logarithm of positive, normal float64, within a few units of the last place."""
    bits = x.view(torch.int64)
    exponent = (bits - SQRT_HALF) >> MANTISSA
    mantissa = (bits - (exponent << MANTISSA)).view(torch.float64)  # from sqrt(1/2) to sqrt(2)
    s = (mantissa - 1).div_(mantissa + 1)
    z = s * s
    series = z * SERIES[-1]
    for term in SERIES[-2::-1]:
        series = series.add_(term).mul_(z)
    return series.add_(2).mul_(s).add_(exponent.double().mul_(LN2))


def exponential(bits: Tensor) -> Tensor:
    """Of mean 1, from the upper 52 bits."""
    return ln(_shifted(bits, 12).double().add_(0.5).mul_(2.0**-MANTISSA)).neg_()


def of_blocks(keys: Tensor, blocks: Tensor) -> Tensor:
    """The bits of each block: of its least time, and of which token has it. They stand before the key."""
    return _mix(keys - (blocks + 1) * GOLDEN)


def of_tokens(keys: Tensor, tokens: Tensor) -> Tensor:
    """The bits of each token: of how much later than its block's least time it comes, unless it has that."""
    return _mix(keys + (tokens + 1) * GOLDEN)


def first_tokens(bits: Tensor, blocks: Tensor) -> Tensor:
    """Which token of each block comes first; it may be one that the vocabulary has no more."""
    return (bits & (BLOCK - 1)).add_(blocks * BLOCK)
