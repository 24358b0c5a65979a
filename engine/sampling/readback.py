"""Readback: sampled tokens on their way from the device to the host, with the logprobs that were asked for.

It knows tensors on their way and what they mean. It samples nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from engine.api import Logprob
from engine.nonblocking_transfer import Download
from engine.sampling import race
from engine.sampling.noise import BLOCK
from engine.schedule.sequence import SampledToken, Sequence


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A sequence whose token at an output index is to be sampled, as if it had those ahead behind its own."""

    seq: Sequence
    index: int
    ahead: tuple[int, ...] = ()


class Readback:
    """A batch's sampled tokens on their way to the host."""

    def __init__(self, tokens: Download | None, logprobs: list[LogprobsReadback]) -> None:
        self._tokens = tokens
        self._logprobs = logprobs

    def read(self) -> list[SampledToken]:
        """Wait for them; a token is None where the logits were no numbers."""
        if self._tokens is None:
            return []
        sampled = [SampledToken(token if token >= 0 else None) for token in self._tokens.read().tolist()]
        for readback in self._logprobs:
            for at, logprob in readback.read():
                if sampled[at].token is not None:
                    sampled[at].logprob = logprob
        return sampled


class LogprobsReadback:
    """The sampled token's logprob and those of the `count` most likely, for some rows. Of equally likely
    tokens the lowest ids are told."""

    def __init__(self, rows: list[int], own: Tensor, logprobs: Tensor, count: int) -> None:
        self._rows = rows
        self._own = Download(own)
        self._vocab = logprobs.shape[1]
        self._count = min(count, self._vocab)
        self._top = self._most_likely(logprobs) if count else None

    def _most_likely(self, logprobs: Tensor) -> list[Download]:
        """Their ids and logprobs, the likeliest first, and how many of them can come: a token that cannot is
        no answer to "which are likely", and -inf is no number in JSON."""
        # They stand in as many blocks as they are at most: those of the greatest peaks, the first of equals.
        peaks = race.peaks(logprobs).sort(dim=1, descending=True, stable=True)
        blocks = peaks.indices[:, : self._count].sort(dim=1).values
        ids = (blocks[:, :, None] * BLOCK + torch.arange(BLOCK, device=logprobs.device)).flatten(1)
        inside = logprobs.gather(1, ids.clamp(max=self._vocab - 1))
        inside.masked_fill_(ids >= self._vocab, -torch.inf)
        values, order = inside.sort(dim=1, descending=True, stable=True)
        ids, values = ids.gather(1, order[:, : self._count]), values[:, : self._count]
        return [Download(tensor) for tensor in (ids, values, (values > -torch.inf).sum(1))]

    def read(self) -> list[tuple[int, Logprob]]:
        own = self._own.read().tolist()
        if self._top is None:
            return [(row, Logprob(logprob)) for row, logprob in zip(self._rows, own, strict=True)]
        every = zip(self._rows, own, *(download.read().tolist() for download in self._top), strict=True)
        return [
            (row, Logprob(logprob, list(zip(ids[:known], values[:known], strict=True))))
            for row, logprob, ids, values, known in every
        ]
