"""The arithmetic of sampling (random numbers, temperature, top-k, top-p), one row a stream.

Two promises shape it. A choice is a function of (seed, token index, that row's logits) alone: there is no
generator state, and no result depends on what else stands in the batch. And equal weights give equal tokens
on any device: weights are whole numbers, small enough that float64 adds them exactly in whatever order a
kernel likes, so that where a cumulative sum passes a target is a fact and not a rounding.

It knows tensors of numbers, and no sequence, slot or request.
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALE = 2.0**34  # weight of the most likely token
MAX_VOCAB = 2**19  # SCALE times this is 2**53: up to it float64 holds every whole number
TOPK_LIMIT = 512  # up to which torch.topk costs less than a search
DIGIT_BITS = 12  # three digits hold SCALE
BINS = 2 + (1 << DIGIT_BITS)  # one for each value of a digit, and the outer two
SHIFTS = (24, 12, 0)
MIN_TEMPERATURE = 1e-30  # a temperature that float32 still holds
BLOCK = 256  # tokens in one step of the coarse search
LANES = {"cuda": 32}  # of a bin: numbers to which as many threads add side by side
HISTOGRAM_BYTES = 2**26  # that those of one search may take


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


GOLDEN = _signed(0x9E3779B97F4A7C15)
MIX_A = _signed(0xBF58476D1CE4E5B9)
MIX_B = _signed(0x94D049BB133111EB)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """`x >> bits` as if unsigned: torch shifts the sign in."""
    mask: int = (1 << (64 - bits)) - 1
    return (x >> bits) & mask


def _mix(x: Tensor) -> Tensor:
    x = (x ^ _shifted(x, 30)) * MIX_A
    x = (x ^ _shifted(x, 27)) * MIX_B
    return x ^ _shifted(x, 31)


def random_bits(seeds: Tensor, indices: Tensor) -> Tensor:
    """64 random bits for each (seed, index), as int64.

    SplitMix64 (Steele, Lea, Flood 2014) read at a counter. The seed is mixed first, so that neighbouring
    seeds stand far apart in its one long cycle; seed 0 mixes to 0 and has the published sequence.
    """
    return _mix(_mix(seeds) + (indices + 1) * GOLDEN)


def uniform(seeds: Tensor, indices: Tensor) -> Tensor:
    """One float64 in [0, 1) for each (seed, index)."""
    return _shifted(random_bits(seeds, indices), 11).double() * 2.0**-53


def weights(scores: Tensor, best: Tensor, temperature: Tensor) -> Tensor:
    """softmax(scores / temperature) before the division by its sum, as whole numbers up to SCALE.

    `best` is each row's maximum. A token less than 2**-35 times as likely as the best has weight 0.
    """
    cold = (scores - best[:, None]).div_(temperature.clamp(min=MIN_TEMPERATURE).to(scores.dtype)[:, None])
    return cold.exp_().mul_(SCALE).round_()


def top_k_floor(weight: Tensor, top_k: Tensor, max_k: int) -> Tensor:
    """The weight of the `top_k`-th heaviest token, a row; `max_k` is the greatest of them."""
    if max_k > TOPK_LIMIT:
        return _floor(weight, torch.ones_like(weight, dtype=torch.float64), top_k.double()).to(weight.dtype)
    return weight.topk(max_k).values.gather(1, top_k[:, None] - 1).squeeze(1)


def top_p_floor(weight: Tensor, top_p: Tensor) -> Tensor:
    """The least weight among the fewest tokens that have the share `top_p` of a row's sum.

    Whoever keeps what is not below a floor keeps or drops equal tokens together; so the answer does not hang
    on how a sort breaks ties.
    """
    mass = weight.double()
    wanted = (mass.sum(1) * top_p).clamp(min=1)  # never nothing
    return _floor(weight, mass, wanted).to(weight.dtype)


def _floor(weight: Tensor, measure: Tensor, wanted: Tensor) -> Tensor:
    """The greatest floor at which the measures of the weights not below it add up to what is wanted.

    In groups of rows whose histograms stay small.
    """
    lanes = LANES.get(weight.device.type, 1)
    group = max(1, HISTOGRAM_BYTES // (BINS * lanes * measure.itemsize))
    groups = [slice(at, at + group) for at in range(0, len(weight), group)]
    return torch.cat([_search(weight[at], measure[at], wanted[at], lanes) for at in groups])


def _search(weight: Tensor, measure: Tensor, wanted: Tensor, lanes: int) -> Tensor:
    """A radix search, digit by digit from the top, over histograms of the measure: the cost is the same for
    flat and for peaked rows, and a quarter of a sort's. The first and last bin hold what lies outside of the
    digit's range.
    """
    keys = weight.long()
    floor = torch.zeros(len(weight), dtype=torch.int64, device=weight.device)
    for shift in SHIFTS:
        places = (keys - (floor - (1 << shift))[:, None]).bitwise_right_shift_(shift).clamp_(0, BINS - 1)
        above = (_histogram(places, measure, lanes).flip(1).cumsum(1) < wanted[:, None]).sum(1)
        floor += (BINS - 2 - above) << shift
    return floor


def _histogram(places: Tensor, measure: Tensor, lanes: int) -> Tensor:
    """The measure in each bin; writes to `places`.

    In a peaked row nearly every token falls into one bin, and threads that add to one number wait for each
    other: so neighbouring tokens add to different lanes of their bin.
    """
    rows, vocab = places.shape
    if lanes > 1:
        places.mul_(lanes).add_(torch.arange(vocab, device=places.device) % lanes)
    spread = measure.new_zeros(rows, BINS * lanes).scatter_add_(1, places, measure)
    return spread.view(rows, BINS, lanes).sum(2)


def pick(weight: Tensor, u: Tensor) -> Tensor:
    """The token at which the weights, added up in the order of token ids, pass the share `u` of their sum.

    A coarse search over sums of blocks, then a fine one within the block: nothing is sorted. A row of NaNs
    gets some valid id.
    """
    rows, vocab = weight.shape
    padded = torch.nn.functional.pad(weight, (0, -vocab % BLOCK)) if vocab % BLOCK else weight
    blocks = padded.view(rows, -1, BLOCK)
    sums = blocks.sum(-1, dtype=torch.float64)
    upto = sums.cumsum(1)
    total = upto[:, -1]
    target = (u * total).floor_()[:, None]  # below total: for u < 1 a product never rounds up to it
    block = (upto <= target).sum(1)[:, None]
    before = upto.gather(1, block) - sums.gather(1, block)
    inside = blocks[torch.arange(rows, device=weight.device), block.squeeze(1)].double().cumsum(1)
    return block.squeeze(1) * BLOCK + (inside <= target - before).sum(1)
