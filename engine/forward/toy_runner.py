"""The toy model's runner: a deterministic model without weights, for tests, demos and load tests.

It goes through the same scheduler, cache and sampler as any model. Its state at a position is a hash of all
tokens up to there, and is kept in the paged pool the way keys and values are: a block lost, mixed up or
written twice changes what it says. What it says are English words, now and then an emoji in four pieces,
and sometimes an end.
"""

from __future__ import annotations

import time
from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from engine.schedule.batch import Row
from engine.toy_model import CONTEXT, EOS, VOCAB, WORDS

_MIX = 0x5851F42D4C957F2D
_EMOJI = (0xF0, 0x9F, 0x99, 0x82)  # byte tokens: each is followed by the next
_EMOJI_EVERY, _END_EVERY = 47, 331


class ToyRunner:
    def __init__(
        self,
        *,
        tokens: int,
        block_size: int,
        context: int = CONTEXT,
        step_ms: float = 0.0,
        latest_tokens: Tensor | None = None,
    ) -> None:
        self.context = context
        self.eos = frozenset({EOS})
        self.block_size = block_size
        self._step_s = step_ms / 1000
        self.pool = [0] * tokens
        self._latest_tokens = latest_tokens
        self._words = torch.arange(WORDS.start, WORDS.stop)

    def forward(self, rows: Rows[Row]) -> Tensor:
        if self._step_s:
            time.sleep(
                self._step_s
            )  # the pace of a real model: what a demo or a test of timeouts wants to see
        read = [self._read(row) for row in rows]
        return self._logits([state for row, own in zip(rows, read, strict=True) for state in _last(own, row)])

    def _read(self, row: Row) -> list[tuple[int, int]]:
        """The state behind each of its tokens, and that token."""
        blocks, size, pool = row.sequence.blocks, self.block_size, self.pool
        at = row.start - 1
        state = pool[blocks[at // size] * size + at % size] if row.start else 0
        read = []
        for position, token in enumerate(self._tokens(row), row.start):
            state = hash((state, token, _MIX))
            pool[blocks[position // size] * size + position % size] = state
            read.append((state, token))
        return read

    def _tokens(self, row: Row) -> list[int]:
        """A placeholder stands for the token that was sampled last."""
        tokens = row.tokens
        if self._latest_tokens is not None and len(tokens) < row.count:
            tokens.append(int(self._latest_tokens[row.sequence.slot]))
        return tokens

    def _logits(self, states: list[tuple[int, int]]) -> Tensor:
        logits = torch.full((len(states), VOCAB), -30.0)
        hashes = torch.tensor([state for state, _ in states], dtype=torch.int64).unsqueeze(1)
        mixed = (hashes ^ (self._words * 0x2545F4914F6CDD1D)) * _MIX
        logits[:, WORDS.start : WORDS.stop] = ((mixed >> 40) & 0xFFFF).float() / 8192
        for row, (state, token) in enumerate(states):
            if token in _EMOJI[:-1]:
                logits[row, _EMOJI[_EMOJI.index(token) + 1]] = 30.0
            elif state % _EMOJI_EVERY == 0:
                logits[row, _EMOJI[0]] = 20.0
            elif state % _END_EVERY == 0:
                logits[row, EOS] = 20.0
        return logits

    def copy_blocks(self, copies: list[tuple[int, int]]) -> None:
        for source, target in copies:
            self.pool[target * self.block_size : (target + 1) * self.block_size] = self.pool[
                source * self.block_size : (source + 1) * self.block_size
            ]

    def zero_blocks(self, blocks: list[int]) -> None:
        for number in blocks:
            self.pool[number * self.block_size : (number + 1) * self.block_size] = [0] * self.block_size


def _last(read: list[tuple[int, int]], row: Row) -> list[tuple[int, int]]:
    """Those behind which it samples."""
    return read[len(read) - row.num_sampled :]
