"""Tilings: which shapes a tile may be computed in is found by what a kernel does, and not believed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from engine.forward.by_sdpa import attention_of
from engine.forward.tiling import STEP, Tiling, find_tiling, tile_of

TILE, SIZES = 64, (8, 12)
EVERY_LENGTH = (16, 32, 48, 64)


def in_order(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Attention that adds up key after key, so that neither what is hidden nor who stands beside shows."""
    scores = torch.zeros(*q.shape[:3], keys.shape[2])
    for at in range(q.shape[3]):
        scores = scores + q[..., at, None] * keys[..., at].unsqueeze(2)
    if mask is not None:
        scores = scores + mask
    weights = torch.exp(scores - scores.amax(-1, keepdim=True))
    out, total = torch.zeros(*q.shape[:3], values.shape[3]), torch.zeros(q.shape[:3])
    for at in range(keys.shape[2]):
        out = out + weights[..., at, None] * values[..., at, :].unsqueeze(2)
        total = total + weights[..., at]
    return out / total.unsqueeze(-1), scores.amax(-1) + total.log()


Differs = Callable[[Tensor, Tensor], bool]
KERNELS: dict[str, tuple[Differs, Tiling | None]] = {
    "never": (lambda q, keys: False, Tiling(TILE, 1, EVERY_LENGTH)),
    "for few queries": (lambda q, keys: q.shape[2] < 4, Tiling(TILE, 4, EVERY_LENGTH)),
    "for an odd number": (lambda q, keys: q.shape[2] % 2 > 0, Tiling(TILE, 2, EVERY_LENGTH)),
    "for some lengths": (lambda q, keys: 16 < keys.shape[2] < 50, Tiling(TILE, 1, (16, 64))),
    "for all but whole tiles": (lambda q, keys: keys.shape[2] < TILE, Tiling(TILE, 1, (64,))),
    "for one tile alone": (lambda q, keys: len(q) == 1, None),
    "for any other number": (lambda q, keys: q.shape[2] != 96, None),
    "for many queries": (lambda q, keys: q.shape[2] > 500, None),
}


@pytest.mark.parametrize("half", [False, True], ids=["float32", "rounded to bfloat16"])
@pytest.mark.parametrize("name", KERNELS)
def test_it_is_the_least_filling_up_at_which_all_shapes_agree(name: str, half: bool) -> None:
    differs, expected = KERNELS[name]

    def attend(q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        turned = (0, 0, 0, 0) if not differs(q, keys) else (2, 2, 2, 3)
        q, keys, values = (tensor.float() for tensor in (q, keys, values))
        if any(turned):  # the same sums, taken from the other end
            keys, values = keys.flip(2), values.flip(2)
            mask = None if mask is None else mask.flip(3)
        out, lse = in_order(q, keys, values, mask)
        return (out.bfloat16() if half else out), lse

    dtype = torch.bfloat16 if half else torch.float32
    assert find_tiling(attend, TILE, SIZES, dtype) == expected


@pytest.mark.parametrize("capped", [None, 5.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_this_machine_has_one(dtype: torch.dtype, capped: float | None) -> None:
    attend = attention_of(torch.device("cpu"), (16, 16), 0.25, capped)
    tiling = find_tiling(attend, 128, (16, 16), dtype)
    assert tiling is not None
    assert tiling.lengths[-1] == tiling.tile == 128


def test_keys_are_filled_up_to_the_next_length_that_agrees() -> None:
    tiling = Tiling(64, 1, (16, 64))
    assert [tiling.length(keys) for keys in (1, 15, 16, 17, 64)] == [16, 16, 16, 64, 64]


@pytest.mark.parametrize(("window", "tile"), [(None, 256), (8, 128), (512, 128), (513, 256), (4096, 256)])
def test_small_windows_have_small_tiles(window: int | None, tile: int) -> None:
    assert tile_of(window) == tile
    assert tile % STEP == 0
