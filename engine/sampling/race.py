"""The race: of each row the token whose score, over the temperature, with its noise on top is the greatest.

What a token's runner does follows from its own score and (seed, index, token id), and from nothing else: so
where logits waver, another token wins only where two lead by less than they waver. Of equals the lowest id
wins.

A row is seen in blocks. The greatest score of a block and its least time say how far its runners can come at
most, and the row's best token how far the winner comes at least. What cannot win is left out, first blocks
and then tokens; which those are has no say in who wins.

It knows tensors of numbers, and no sequence, slot or request.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import threshold

from engine.sampling import noise
from engine.sampling.noise import BLOCK

MIN_TEMPERATURE = 1e-30  # a temperature that float32 still holds
SLACK = 1e-9  # the share by which a bound, made of rounded numbers, may be too low


def peaks(scores: Tensor) -> Tensor:
    """The greatest score of each block; NaN is above all."""
    rows, vocab = scores.shape
    whole = vocab // BLOCK
    full = scores[:, : whole * BLOCK].view(rows, whole, BLOCK).amax(2)
    if whole * BLOCK == vocab:
        return full
    return torch.cat([full, scores[:, whole * BLOCK :].amax(1, keepdim=True)], 1)


def greedy(scores: Tensor, peaks: Tensor, best: Tensor) -> Tensor:
    """The first token of each row that has the best score; some token where that is no number."""
    block = _first(peaks == best[:, None]).clamp_(max=peaks.shape[1] - 1)
    tokens = block[:, None] * BLOCK + torch.arange(BLOCK, device=scores.device)
    inside = _first(scores.gather(1, tokens.clamp_(max=scores.shape[1] - 1)) == best[:, None])
    return block.mul_(BLOCK).add_(inside).clamp_(max=scores.shape[1] - 1)


def _first(found: Tensor) -> Tensor:
    places = torch.arange(found.shape[1], device=found.device)
    return torch.where(found, places, found.shape[1]).amin(1)


class Race:
    """Rows of scores, their blocks' peaks and their best; and of each row the key of its noise, its
    temperature, and the least score and the lowest number of temperatures below the best that still run."""

    def __init__(
        self,
        scores: Tensor,
        peaks: Tensor,
        best: Tensor,
        keys: Tensor,
        temperature: Tensor,
        edges: Tensor,
        coldest: Tensor,
    ) -> None:
        self._scores = scores
        self._peaks = peaks
        self._best = best
        self._keys = keys
        self._temperature = temperature.clamp(min=MIN_TEMPERATURE)
        self._edges = edges
        self._floor = coldest.to(scores.dtype, copy=True)

    def cooled(self, scores: Tensor, rows: Tensor | int) -> Tensor:
        """How far scores are below the best of their rows, in temperatures."""
        return (scores - self._best[rows]).div_(self._temperature[rows].to(scores.dtype))

    def cold(self, row: int, edge: Tensor) -> Tensor:
        """All of a row's scores, `cooled`; what is below an edge has none."""
        below = edge.nextafter(edge.new_full((), -torch.inf)).item()
        scores = self._scores[row]
        return self.cooled(scores if below == -torch.inf else threshold(scores, below, -torch.inf), row)

    def exclude(self, rows: Tensor, tokens: Tensor) -> None:
        """Of each row a token, and all that are no better."""
        edge = self.cooled(self._scores[rows, tokens], rows)
        self._floor[rows] = edge.nextafter(edge.new_full((), torch.inf))

    def winners(self, rows: Tensor, favourites: Tensor) -> Tensor:
        """The winners in these rows, by their places; a favourite is the best token of its row. The host
        waits for the device."""
        vocab, at = self._scores.shape[1], rows[:, None]
        keys, favourites = self._keys[at], favourites[:, None]
        blocks = torch.arange(self._peaks.shape[1], device=rows.device)
        bits = noise.of_blocks(keys, blocks)
        firsts = noise.first_tokens(bits, blocks)
        times = noise.exponential(torch.cat([bits, noise.of_tokens(keys, favourites)], 1))
        times[:, :-1] *= 1 / BLOCK
        home = favourites // BLOCK
        late = favourites != firsts.gather(1, home)
        times[:, -1:] = times.gather(1, home) + times[:, -1:] * late
        ahead = noise.ln(times).neg_()

        real = firsts < vocab
        certain = torch.cat([firsts.clamp(max=vocab - 1), favourites], 1)
        reached = self._reached(self._scores[at, certain], at, ahead)
        reached[:, :-1].masked_fill_(~real, -torch.inf)
        most = reached.amax(1)
        least = most - SLACK * (1 + most.abs())  # that the winner comes to
        bounds = self._reached(self._peaks[rows], at, ahead[:, :-1])
        row, block = ((bounds >= least[:, None]) & (bounds > -torch.inf)).nonzero().unbind(1)

        tokens = block[:, None] * BLOCK + torch.arange(BLOCK, device=rows.device)
        scores = self._scores[rows[row, None], tokens.clamp(max=vocab - 1)]
        bounds = (scores.double() / self._temperature[rows[row], None]).add_(ahead[row, block, None])
        inside = (bounds >= least[row, None]) & (tokens < vocab)
        at, member = inside.nonzero().unbind(1)
        row, block, token, score = row[at], block[at], tokens[at, member], scores[at, member]

        later = noise.exponential(noise.of_tokens(self._keys[rows[row]], token))
        later.mul_(token != firsts[row, block]).add_(times[row, block])
        reached = self._reached(score, rows[row], noise.ln(later).neg_())
        return _leaders(row, token, reached, len(rows), vocab)

    def _reached(self, scores: Tensor, rows: Tensor, ahead: Tensor) -> Tensor:
        reached = (scores.double() / self._temperature[rows]).add_(ahead)
        out = (scores < self._edges[rows]) | (self.cooled(scores, rows) < self._floor[rows])
        return reached.masked_fill_(out, -torch.inf)


def _leaders(row: Tensor, token: Tensor, reached: Tensor, rows: int, vocab: int) -> Tensor:
    """The token of each row that has come the farthest; a row of no numbers has some token."""
    most = reached.new_full((rows,), -torch.inf).scatter_reduce_(0, row, reached, "amax")
    leading = torch.where(reached == most[row], token, vocab - 1)
    return token.new_full((rows,), vocab - 1).scatter_reduce_(0, row, leading, "amin")
