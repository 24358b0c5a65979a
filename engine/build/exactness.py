"""Exactness: whether a token's logits follow from its own context alone, to the bit.

It is tried on the model itself when an engine starts: the same tokens are computed alone and in company, as
one chunk, in parts and one by one, and in blocks that lie otherwise. Where the products of a CPU are not the
same for any number of rows they mostly are for any multiple of a few, so that is looked for. On a CUDA device
products are ours, and are the same or not: there the engine's own runner is tried, with the decode step as it
was captured and a context that attention cuts. What is found is a fact about these weights on this machine;
whatever makes two results differ, it is seen here. In half precision it is seen seldom: there
`product_trial.py` says from which multiple on to try.

It knows the option `--exact`, a model's products, a runner and numbers of tokens, and neither scheduler nor
stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from engine.api import EngineOptions, Sampling
from engine.build.product_trial import least_multiple, product_shapes
from engine.forward.interface import Runner
from engine.model.preflight import ModelError
from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence

NOT_EXACT = (
    "not exact: what is computed for a stream is not the same bits in any company on this machine, so that"
    " the same start with the same steering may come to other tokens"
)
MULTIPLES = (1, 2, 4, 8, 16)
TOKENS = 23  # of the sequence that is tried
DEVICE_TOKENS = 1500  # on a CUDA device, where attention cuts long contexts
LEAST_TOKENS = 8
CROWDS = [(3, 5), (7, 16), (7, 1), (34, 1)]  # in each step so many rows of so many tokens


def may_be_exact(options: EngineOptions, device: str) -> bool:
    """Raises `ModelError` where it is asked for and not to be had."""
    if options.exact == "off":
        return False
    if device == "cpu" and options.devices == 1:
        return True
    if options.exact == "on":
        if device.startswith("cuda") and options.devices == 1:
            return True
        place = device if options.devices == 1 else f"{options.devices} devices"
        raise ModelError(f"--exact on is not to be had on {place}: it is on one CPU or one CUDA device")
    return False


def find_row_multiple(
    runner_of: Callable[[int], Runner],
    vocab: int,
    block_size: int,
    *,
    least: int | None = 1,
    groups: int = 1,
) -> int | None:
    """The least multiple of rows, from `least` on, at which the model is exact, or None. `runner_of` makes a
    runner for one, whose pool has `trial_tokens` for each group of layers."""
    if least is None:
        return None
    for multiple in MULTIPLES:
        if multiple >= least and _Trial(runner_of(multiple), vocab, block_size, groups, TOKENS).passes():
            return multiple
    return None


def is_exact(runner: Runner, vocab: int, block_size: int, *, groups: int, tokens: int) -> bool:
    """Whether the model is as it stands, on a sequence of so many tokens; for each group of layers the
    runner's pool has `trial_tokens`."""
    return tokens >= LEAST_TOKENS and _Trial(runner, vocab, block_size, groups, tokens).passes()


def least_row_multiple(
    model: nn.Module, dtype: torch.dtype, device: str | torch.device = "cpu"
) -> int | None:
    """From which on to try, if any: in half precision that at which the model's products are exact."""
    if dtype.itemsize >= torch.float32.itemsize:
        return 1
    return least_multiple(product_shapes(model), dtype, MULTIPLES, device)


def trial_tokens(block_size: int, tokens: int = TOKENS) -> int:
    """How many of each group of layers the pool of a runner that is tried must hold."""
    return 3 * -(-tokens // block_size) * block_size


def device_trial_tokens(block_size: int, held: int, longest: int) -> int:
    """How long a sequence a runner can be tried on whose pool holds so many tokens, and which takes at most
    so many of a sequence."""
    return min(DEVICE_TOKENS, longest, held // block_size // 3 * block_size)


@dataclass(frozen=True, slots=True)
class _Trial:
    runner: Runner
    vocab: int
    block_size: int
    groups: int
    tokens: int

    def passes(self) -> bool:
        """Whether the last two tokens' logits are the same each time."""
        blocks = self._blocks
        here, there = list(range(blocks)), list(reversed(range(blocks, 2 * blocks)))
        *_, before, last = self._logits(here, [self.tokens - 2, 1, 1], [(0, 1)] * 3)
        (whole,) = self._logits(here, [self.tokens], [(0, 1)])
        if not torch.equal(whole, last):
            return False
        *_, other, another = self._logits(there, [5, self.tokens - 7, 1, 1], CROWDS)
        return torch.equal(other, before) and torch.equal(another, last)

    def _logits(
        self, blocks: list[int], counts: list[int], crowds: list[tuple[int, int]]
    ) -> Iterator[Tensor]:
        """Behind each chunk of the sequence, computed beside so many rows of so many tokens."""
        at = 0
        for count, (others, each) in zip(counts, crowds, strict=True):
            rows = [self._row(1 + other, self._elsewhere, 0, each) for other in range(others)]
            rows.insert(others // 2, self._row(0, blocks, at, count))
            yield self.runner.forward(rows)[others // 2].clone()  # a captured step writes to the same place
            at += count

    @property
    def _elsewhere(self) -> list[int]:
        """What the others have in common: nobody looks at what they compute."""
        return list(range(2 * self._blocks, 3 * self._blocks))

    @property
    def _blocks(self) -> int:
        return -(-self.tokens // self.block_size)

    def _tables(self, blocks: list[int]) -> list[list[int]]:
        """A block holds what one group of layers keeps."""
        apart = 3 * self._blocks
        return [[number + group * apart for number in blocks] for group in range(self.groups)]

    def _row(self, seed: int, blocks: list[int], start: int, count: int) -> Row:
        tokens = torch.randint(self.vocab, (self.tokens,), generator=torch.Generator().manual_seed(seed))
        sequence = Sequence(-1 - seed, tokens.tolist(), Sampling(), credit=1, context=self.tokens + 1)
        sequence.slot = min(seed, 1)  # the others have one table
        sequence.blocks, *sequence.other_blocks = self._tables(blocks)
        sequence.blocks_version = 1 + blocks[0]
        return Row(sequence, start, count, True, sequence.sampling)
