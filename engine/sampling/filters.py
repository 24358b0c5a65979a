"""Which tokens may be drawn: the edge of top_k, and on which side of top_p's a token is.

Both keep or drop equal tokens together, so no answer hangs on how a sort breaks ties. And it follows from
its row alone: masses are whole numbers, small enough that float64 adds them exactly in whatever order a
kernel likes, so that where a sum passes a target is a fact and not a rounding.

It knows tensors of numbers, and no sequence, slot or request.
"""

from __future__ import annotations

from math import factorial

import torch
from torch import Tensor
from torch.nn.functional import threshold

from engine.nonblocking_transfer import upload

SCALE_BITS = 34
SCALE = 2.0**SCALE_BITS  # mass of the most likely token
MAX_VOCAB = 2**19  # SCALE times this is 2**53: up to it float64 holds every whole number
TOPK_LIMIT = 512  # up to which torch.topk costs less than a selection in each row

# The exponential, in float32: two to a whole power, times e to what is left, by its series.
COLDEST = -80.0  # below -25 nothing is left of a mass
LOG2E = 1.4426950408889634
LN2_HIGH = 355 / 512  # so short that its product with a whole number is exact
LN2_LOW = 0.6931471805599453 - LN2_HIGH
POWERS = tuple(1 / factorial(power) for power in range(7, -1, -1))
EXPONENT_BIAS = 127 + SCALE_BITS


def top_k_edge(scores: Tensor, top_k: list[int]) -> Tensor:
    """The last score of each row that is kept."""
    vocab, most = scores.shape[1], max(top_k)
    if most > TOPK_LIMIT:
        pairs = zip(scores, top_k, strict=True)
        return torch.stack([row.kthvalue(vocab - k + 1).values for row, k in pairs])
    last = upload([k - 1 for k in top_k], scores.device)
    return scores.topk(most).values.gather(1, last[:, None]).squeeze(1)


def mass(cold: Tensor) -> Tensor:
    """What tokens weigh that are so far below the best, in temperatures: whole numbers. As with noise, each
    operation is rounded in one way, so that the bits are the same on any device."""
    x = cold.float().clamp(min=COLDEST)
    whole = (x * LOG2E).add_(0.5).floor_()
    x = x.sub_(whole * LN2_HIGH).sub_(whole * LN2_LOW)
    power = torch.full_like(x, POWERS[0])
    for term in POWERS[1:]:
        power = power.mul_(x).add_(term)
    scale = (whole.int() + EXPONENT_BIAS).bitwise_left_shift_(23).view(torch.float32)
    return power.mul_(scale).add_(0.5).floor_()


def outside_top_p(cold: Tensor, token: int, top_p: float) -> bool:
    """Whether better tokens than this one already have the share `top_p` of a row's mass. `cold` is how far
    each token of the row is below the best, in temperatures."""
    masses = mass(cold)
    wanted = max(1.0, masses.sum(dtype=torch.float64).item() * top_p)  # the best is never outside
    better = threshold(masses, masses[token].item(), 0.0)
    return better.sum(dtype=torch.float64).item() >= wanted
