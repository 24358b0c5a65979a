"""From logits and a counter to a token: the arithmetic of a random choice, one row a stream.

Two promises shape it. A choice is a function of (seed, token index, that row's logits) alone: there is no
generator state, and no result depends on what else stands in the batch. And equal weights give equal tokens
on any device: weights are whole numbers, small enough that float64 adds them exactly in whatever order a
kernel likes, so that a sum, and the place where a cumulative sum passes a target, is a fact and not a rounding.

It knows tensors of numbers, and no sequence, slot or request.
"""

from __future__ import annotations

import torch
from torch import Tensor

SCALE = 2.0**34  # weight of the most likely token
MOST_TOKENS = 2**19  # SCALE times this is 2**53: up to it float64 holds every whole number
WIDTH = 1024  # of the head that is ranked before a row's whole vocabulary must be
COLDEST = 1e-30  # a temperature that float32 still holds
BLOCK = 256  # tokens in one step of the coarse search


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


GOLDEN = _signed(0x9E3779B97F4A7C15)
MIX_A = _signed(0xBF58476D1CE4E5B9)
MIX_B = _signed(0x94D049BB133111EB)


def _shifted(x: Tensor, bits: int) -> Tensor:
    """`x >> bits` as if unsigned: torch shifts the sign in."""
    return (x >> bits) & (2 ** (64 - bits) - 1)


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
    cold = (scores - best[:, None]).div_(temperature.clamp(min=COLDEST).to(scores.dtype)[:, None])
    return cold.exp_().mul_(SCALE).round_()


def floors(weight: Tensor, top_k: Tensor, top_p: Tensor, width: int = WIDTH) -> Tensor:
    """The least weight that top_k (0: off) and then top_p (1: off) keep, a row.

    Equal weights are kept or dropped together, so the answer does not hang on how a sort breaks ties. Only
    the `width` heaviest tokens are ranked; a row for which they do not settle it has all of them sorted.
    """
    total = weight.sum(-1, dtype=torch.float64)
    head = weight.topk(min(width, weight.shape[1])).values
    floor, settled = _cut(head, total, top_k, top_p, whole=head.shape == weight.shape)
    rows = (~settled).nonzero().squeeze(1)
    if len(rows):
        ranked = weight[rows].sort(descending=True).values
        floor[rows], _ = _cut(ranked, total[rows], top_k[rows], top_p[rows], whole=True)
    return floor


def _cut(
    ranked: Tensor, total: Tensor, top_k: Tensor, top_p: Tensor, *, whole: bool
) -> tuple[Tensor, Tensor]:
    """The floors by the heaviest weights, descending, and for which rows those were enough to tell."""
    length = ranked.shape[1]
    kth = ranked.gather(1, (top_k.clamp(1, length) - 1)[:, None]).squeeze(1)
    least = torch.where(top_k > 0, kth, 0)
    kept = ranked.double().masked_fill_(ranked < least[:, None], 0)
    upto = kept.cumsum(1)
    # top_p is a share of what top_k left.
    wanted = top_p * torch.where(top_k > 0, upto[:, -1], total)
    # A token stays while those before it have not reached the share (as in transformers, where ascending
    # sums up to 1 - top_p are removed); the first one always stays.
    count = ((upto - kept) < wanted[:, None]).sum(1).clamp(min=1)
    last = ranked.gather(1, count[:, None] - 1).squeeze(1)
    floor = torch.where(top_p < 1, last.maximum(least), least)
    if whole:
        return floor, torch.ones_like(top_p, dtype=torch.bool)
    # A share of what top_k left needs all of that in the head: no equal of the k-th may lie beyond it.
    none_beyond = (ranked[:, -1] < kth) | (ranked[:, -1] == 0)
    settled_k = (top_k <= length) & (none_beyond | (top_p >= 1))
    settled_p = (top_p >= 1) | (upto[:, -1] >= wanted)
    return floor, torch.where(top_k > 0, settled_k, settled_p)


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
    target = (u * total).floor_().minimum(total - 1)[:, None]  # u * total may round up to total
    block = (upto <= target).sum(1)[:, None]
    before = upto.gather(1, block) - sums.gather(1, block)
    inside = blocks[torch.arange(rows, device=weight.device), block.squeeze(1)].double().cumsum(1)
    return block.squeeze(1) * BLOCK + (inside <= target - before).sum(1)
