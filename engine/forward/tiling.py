"""The tiling of a kind of layer: at which positions a context is cut, and in which shapes a tile is computed.

Attention to a tile is exact when a query's result depends on that query, the tile and what is hidden of it,
and not on how many queries stand beside it or how many hidden keys fill the tile up. Kernels promise no such
thing, but mostly keep it for most shapes: sums are taken in the same order until a library finds another
blocking better. So the shapes are tried, once, and those are used that give the bits of a whole tile. Which
ones those are changes no bit of any result.

It knows tensors and one function that attends; it knows neither pool nor rows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

TILE = 256  # keys: more would be gathered where a context lies in pieces, fewer be joined of more parts
LEAST_TILE = 128  # of layers with a small window
TILES_IN_WINDOW = 4
STEP = 16  # keys: as many as the widest registers hold numbers
QUANTA = (1, 2, 4, 8, 16, 32)
SOME_QUERIES, MANY_QUERIES = 96, (224, 800)  # the fused kernel takes more at once from 192 and from 768 on
PARTS, HEADS = 2, 2
KEY_MAGNITUDES, VALUE_MAGNITUDES = 6, 11  # powers of two, up and down

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True)
class Tiling:
    tile: int
    queries: int  # heads and tokens are filled up to a multiple of it
    lengths: tuple[int, ...]  # to which the keys of a tile are filled up; the last is the whole tile

    def length(self, keys: int) -> int:
        return self.lengths[bisect_left(self.lengths, keys)]


def tile_of(window: int | None) -> int:
    """A window begins anywhere in a tile: small tiles read little that is not seen."""
    if window is None:
        return TILE
    tile = LEAST_TILE
    while tile < TILE and tile * TILES_IN_WINDOW < window:
        tile *= 2
    return tile


@torch.inference_mode()
def find_tiling(attend: Attend, tile: int, sizes: tuple[int, int], dtype: torch.dtype) -> Tiling | None:
    """The least filling up at which all shapes agree, bit for bit; None where none does.

    `sizes` are those of a key and of a value. `attend` takes queries [B, H, T, D], keys and values
    [B, H, L, D] and what to add to the scores.
    """
    trial = _Trial(attend, tile, sizes, dtype)
    for quantum in QUANTA:
        if trial.same_for_any_queries(quantum):
            lengths = [length for length in range(STEP, tile, STEP) if trial.same_filled_up(length, quantum)]
            return Tiling(tile, quantum, (*lengths, tile))
    return None


class _Trial:
    """Its numbers show another order of adding also where results are rounded to a few bits: they are of all
    magnitudes and come with their opposites, so that their sums are little else than what was rounded off.

    Of three queries one is nothing, which weighs all values alike, one meets every number of a key with its
    opposite, and one is any.
    """

    def __init__(self, attend: Attend, tile: int, sizes: tuple[int, int], dtype: torch.dtype) -> None:
        self._attend = attend
        self._tile, self._dtype = tile, dtype
        self._generator = torch.Generator().manual_seed(0)
        half = sizes[0] // 2
        order = torch.randperm(sizes[0], generator=self._generator)
        keys, q = self._noise(tile, sizes[0]), self._noise(SOME_QUERIES, sizes[0])
        keys *= self._magnitudes(sizes[0], KEY_MAGNITUDES)
        keys[..., order[half : 2 * half]] = -keys[..., order[:half]]
        q[:, :, ::3] = 0
        q[:, :, 1::3, order[half : 2 * half]] = q[:, :, 1::3, order[:half]]
        self._q, self._keys = q.to(dtype), keys.to(dtype)
        self._noisy_values = self._noise(tile, sizes[1]) * self._magnitudes(tile, VALUE_MAGNITUDES).unsqueeze(
            -1
        )

    def _noise(self, count: int, size: int) -> Tensor:
        return torch.randn(PARTS, HEADS, count, size, generator=self._generator)

    def _magnitudes(self, count: int, most: int) -> Tensor:
        return 2.0 ** torch.randint(-most, most + 1, (count,), generator=self._generator)

    def _values(self, seen: int) -> Tensor:
        """Of which so many are seen, half of them the opposites of the others."""
        values, half = self._noisy_values.clone(), seen // 2
        order = torch.randperm(seen, generator=self._generator)
        values[:, :, order[half : 2 * half]] = -values[:, :, order[:half]]
        return values.to(self._dtype)

    def same_for_any_queries(self, quantum: int) -> bool:
        """In any number and order, and beside other tiles or alone."""
        seen = (1, self._tile - 3, self._tile)
        return all(self._same_queries(quantum, some) for some in seen) and all(
            map(self._same_repeated, MANY_QUERIES)
        )

    def _same_queries(self, quantum: int, seen: int) -> bool:
        keys, values, mask = self._keys, self._values(seen), self._hidden(seen, self._tile)
        out, lse = self._attend(self._q, keys, values, mask)
        most = SOME_QUERIES // quantum * quantum
        for count in _some(range(quantum, most + 1, quantum)):
            some = slice(most - count, most)
            turned = self._q[:, :, some].flip(2)
            for parts in (slice(0, PARTS), slice(1, 2)):
                found = self._attend(turned[parts], keys[parts], values[parts], mask)
                if not _equal(found, (out[parts, :, some].flip(2), lse[parts, :, some].flip(2))):
                    return False
        return True

    def _same_repeated(self, count: int) -> bool:
        keys, values = self._keys[:1, :1], self._values(self._tile)[:1, :1]
        q = self._q[:1, :1].repeat(1, 1, -(-count // SOME_QUERIES), 1)[:, :, :count]
        out, lse = self._attend(q[:, :, :SOME_QUERIES], keys, values, None)
        outs, lses = self._attend(q, keys, values, None)
        turns = torch.arange(count) % SOME_QUERIES
        return _equal((outs, lses), (out[:, :, turns], lse[:, :, turns]))

    def same_filled_up(self, length: int, quantum: int) -> bool:
        """With none hidden, one, and as many as can be."""
        q, keys = self._q[:, :, : max(4, quantum)], self._keys
        for seen in (length, length - 1, length - STEP + 1):
            values = self._values(seen)
            whole = self._attend(q, keys, values, self._hidden(seen, self._tile))
            hidden = self._hidden(seen, length)
            if not _equal(self._attend(q, keys[:, :, :length], values[:, :, :length], hidden), whole):
                return False
        return True

    def _hidden(self, seen: int, length: int) -> Tensor | None:
        if seen == length:
            return None
        mask = torch.zeros(1, 1, 1, length, dtype=self._dtype)
        mask[..., seen:] = -torch.inf
        return mask


def _some(counts: range) -> Iterable[int]:
    """The small ones, where libraries change their ways, and some of the others."""
    return [*counts[:9], *counts[9::3]]


def _equal(one: tuple[Tensor, Tensor], other: tuple[Tensor, Tensor]) -> bool:
    return torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
