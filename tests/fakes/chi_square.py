"""Chi-square: whether things came as often as they should have."""

from __future__ import annotations

from torch import Tensor

FEW = 10  # what is expected less often is counted together


def surprise(seen: Tensor, expected: Tensor) -> float:
    """How many standard deviations what was seen is off what is expected, whose shares add up to one.

    By Wilson and Hilferty's cube root, which makes a chi-square normal. What is expected never must not
    have been seen.
    """
    seen, wanted = seen.double(), expected.double() * seen.sum()
    rare = wanted < FEW
    assert (seen[expected == 0] == 0).all()
    off = ((seen - wanted) ** 2 / wanted)[~rare].sum()
    cells = int((~rare).sum())
    if wanted[rare].sum() > 0:
        off += (seen[rare].sum() - wanted[rare].sum()) ** 2 / wanted[rare].sum()
        cells += 1
    if cells < 2:
        return 0.0
    free = cells - 1
    ninth = 2 / (9 * free)
    return float(((off / free) ** (1 / 3) - (1 - ninth)) / ninth**0.5)
