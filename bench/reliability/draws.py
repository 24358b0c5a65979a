"""Draws: does each token come as often as its logits and the filters say, over a million seeds and indices.

Expected is what a plain sort finds. And how often a draw differs where logits waver: only where two lead by
less, which is told beside what the sum of all shares would let through.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from engine.sampling import noise
from engine.sampling.draw import Asked, draw_on
from tests.fakes.chi_square import surprise

DRAWS, AT_ONCE = 10**6, 512
DRAW = draw_on(torch.device("cpu"))
VOCAB = 700
FILTERS: dict[str, dict[str, float]] = {
    "temperature 1": {},
    "temperature 0.6": {"temperature": 0.6},
    "temperature 2": {"temperature": 2.0},
    "top_k": {"top_k": 20},
    "top_p": {"top_p": 0.8},
    "top_p of little": {"top_p": 0.2},
    "min_p": {"min_p": 0.05},
    "all": {"temperature": 1.3, "top_k": 100, "top_p": 0.9, "min_p": 0.01},
}
WAVERING = 4e-6  # of logits, alone and in a crowd, in float32
WIDE = 49_152


def asked(
    rows: int,
    keys: Tensor,
    *,
    temperature: float = 1.0,
    top_k: float = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
) -> Asked:
    coldest = math.log(min_p) if min_p else -math.inf
    parameters = torch.tensor([temperature, top_p, coldest], dtype=torch.float64).expand(rows, 3)
    return Asked([temperature] * rows, [int(top_k)] * rows, [top_p] * rows, keys, parameters)


def logits(vocab: int, seed: int = 1) -> Tensor:
    """With some equal ones among them."""
    scores = torch.randn(1, vocab, generator=torch.Generator().manual_seed(seed)) * 2
    scores[0, ::7] = scores[0, ::7].round()
    return scores


def drawn(scores: Tensor, draws: int, **filters: float) -> Iterator[Tensor]:
    """Tokens, half of them along seeds and half along indices."""
    for first in range(0, draws, AT_ONCE):
        count = torch.arange(first, min(first + AT_ONCE, draws))
        fixed = torch.full_like(count, 11)
        seeds, indices = (count, fixed) if first < draws / 2 else (fixed, count)
        keys = noise.keys(seeds, indices)
        yield DRAW(scores.expand(len(keys), -1), asked(len(keys), keys, **filters))


def expected(
    scores: Tensor, temperature: float = 1.0, top_k: float = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Tensor:
    share = (scores[0].double() / temperature).softmax(0)
    if top_k:
        share = share.where(share >= share.sort(descending=True).values[int(top_k) - 1], 0)
    better = torch.stack([share[share > own].sum() for own in share])
    kept = (better < top_p * share.sum()) & (share >= min_p * share.max())
    share = share.where(kept, 0)
    return share / share.sum()


def off(name: str, draws: int) -> float:
    """By how many standard deviations a filter's draws are off."""
    scores = logits(VOCAB)
    seen = sum(torch.bincount(tokens, minlength=VOCAB) for tokens in drawn(scores, draws, **FILTERS[name]))
    assert isinstance(seen, Tensor)
    return surprise(seen, expected(scores, **FILTERS[name]))


def flips(draws: int, wavering: float) -> int:
    """How many draws from a wide row differ once its logits waver."""
    scores = logits(WIDE) * 1.5
    moved = scores + wavering * torch.randn(scores.shape, generator=torch.Generator().manual_seed(2))
    pairs = zip(drawn(scores, draws), drawn(moved, draws), strict=True)
    return sum(int((here != there).sum()) for here, there in pairs)


async def measure(scale: float) -> dict[str, Any]:
    draws = max(20_000, int(DRAWS * scale))
    found = {name: round(off(name, draws), 2) for name in FILTERS}
    wide = max(500, draws // 50)
    changed = flips(wide, WAVERING)
    return {
        "name": "Draws",
        "draws of each": draws,
        "standard deviations": found,
        "draws of a wide row": wide,
        "changed where logits waver by 4e-6": changed,
        "goal": "chi-square within 4 standard deviations for every filter; one draw in 10,000 may change",
        "met": max(map(abs, found.values())) < 4 and changed <= wide / 10_000 + 1,
    }
