"""Which tokens may be drawn: the edge of top_k, and on which side of top_p's a token is.

Both keep or drop equal tokens together, so no answer hangs on how a sort breaks ties. And it follows from
its row alone: masses are whole numbers, small enough that float64 adds them exactly in whatever order a
kernel likes, so that where a sum passes a target is a fact and not a rounding.

It knows tensors of numbers, and no sequence, slot or request.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import threshold

from engine.nonblocking_transfer import upload

SCALE = 2.0**34  # mass of the most likely token
MAX_VOCAB = 2**19  # SCALE times this is 2**53: up to it float64 holds every whole number
TOPK_LIMIT = 512  # up to which torch.topk costs less than a selection in each row


def top_k_edge(scores: Tensor, top_k: list[int]) -> Tensor:
    """The last score of each row that is kept."""
    vocab, most = scores.shape[1], max(top_k)
    if most > TOPK_LIMIT:
        pairs = zip(scores, top_k, strict=True)
        return torch.stack([row.kthvalue(vocab - k + 1).values for row, k in pairs])
    last = upload([k - 1 for k in top_k], scores.device)
    return scores.topk(most).values.gather(1, last[:, None]).squeeze(1)


def outside_top_p(cold: Tensor, token: int, top_p: float) -> bool:
    """Whether better tokens than this one already have the share `top_p` of a row's mass. `cold` is how far
    each token of the row is below the best, in temperatures."""
    mass = cold.exp().mul_(SCALE).round_()
    wanted = max(1.0, mass.sum(dtype=torch.float64).item() * top_p)  # the best is never outside
    better = threshold(mass, mass[token].item(), 0.0)
    return better.sum(dtype=torch.float64).item() >= wanted
