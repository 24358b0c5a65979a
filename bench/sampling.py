"""Sampling: what the tokens of a step cost on one core, by what their streams ask for.

Beside the least that anybody pays, torch's maximum of each row, in turn with it, in the processor's time.
Rows are peaked as a model's are: a few likely tokens, and a long tail in random order. Contexts have 400
tokens.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from bench.result_tables import Figure
from engine.api import Sampling
from engine.sampling.readback import SampleRequest
from engine.sampling.sampler import Sampler
from engine.schedule.sequence import Sequence

VOCABS, ROWS = (49_152, 128_000), (1, 32)
CONTEXT, ROUNDS = 400, 25
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "greedy": ("", {"temperature": 0.0}),
    "temperature": ("<= 2 x", {}),
    "top_p": ("<= 4 x", {"top_p": 0.9}),
    "top_k": ("", {"top_k": 50}),
    "min_p": ("", {"min_p": 0.05}),
    "penalties": ("<= 4 x", {"repetition_penalty": 1.1, "presence_penalty": 0.1, "frequency_penalty": 0.1}),
    "penalties and top_p": ("", {"repetition_penalty": 1.1, "top_p": 0.9}),
}


def logits(rows: int, vocab: int) -> Tensor:
    """The r-th token of a row about as likely as r ** -1.3."""
    dice = torch.Generator().manual_seed(1)
    tail = torch.arange(1, vocab + 1).log().mul(-1.3)
    order = torch.rand(rows, vocab, generator=dice).argsort(1)
    return tail[order] + 0.3 * torch.randn(rows, vocab, generator=dice)


class Step:
    """A step's rows, all of which ask for the same."""

    def __init__(self, scores: Tensor, asked: dict[str, Any]) -> None:
        rows, vocab = scores.shape
        self._scores = scores
        self._sampler = Sampler(rows, vocab, eos=[])
        self._seqs = [self._sequence(slot, Sampling(seed=slot, **asked)) for slot in range(rows)]

    def _sequence(self, slot: int, sampling: Sampling) -> Sequence:
        known = [(7919 * at + slot) % self._scores.shape[1] for at in range(CONTEXT)]
        seq = Sequence(slot, known, sampling, credit=10**9, context=10**9)
        seq.slot = slot
        return seq

    def __call__(self) -> None:
        readback = self._sampler.launch(
            self._scores, [SampleRequest(seq, seq.num_outputs) for seq in self._seqs]
        )
        for seq, sampled in zip(self._seqs, readback.read(), strict=True):
            assert sampled.token is not None
            seq.append_output(sampled.token)


def measure() -> list[Figure]:
    torch.set_num_threads(1)
    return [figure for vocab in VOCABS for rows in ROWS for figure in _figures(logits(rows, vocab))]


def _figures(scores: Tensor) -> list[Figure]:
    rows, vocab = scores.shape
    steps: dict[str, Callable[[], object]] = {name: Step(scores, asked) for name, (_, asked) in ASKED.items()}
    took = _in_turn({**steps, "least": lambda: scores.max(1)})
    shape = f"{rows} x {vocab:,}"
    return [
        Figure(f"{name}, {shape}", took[name] * 1e3, "ms", goal, took[name] / took["least"], "torch.max")
        for name, (goal, _) in ASKED.items()
    ]


def _in_turn(works: dict[str, Callable[[], object]]) -> dict[str, float]:
    seconds: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(ROUNDS):
        for name, work in works.items():
            since = time.process_time()
            work()
            seconds[name].append(time.process_time() - since)
    return {name: statistics.median(times) for name, times in seconds.items()}


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure()))
