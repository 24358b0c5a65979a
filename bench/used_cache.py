"""Decode steps on a KV cache that was used: how long they take beside those on a fresh one.

A cache is used once it has turned over five times, by chats of all lengths. What they compute does not matter
for where their blocks lie, so it is left out: their steps go through the engine, and through no model. The
same holds for the prompts of the streams that are measured; their decode steps are real.

`python -m bench.used_cache 4000` measures streams that know so many tokens alone.
"""

from __future__ import annotations

import random
import statistics
import sys
from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from bench.contestants import default_engine
from bench.result_tables import Figure
from engine import api
from engine.engine import Engine
from engine.forward.interface import Runner
from engine.sampling.sampler import Sampler
from engine.schedule.batch import Row
from engine.schedule.block_cache import BlockCache
from engine.schedule.scheduler import Scheduler

TURNED_OVER, AT_ONCE, SLOTS = 5, 8, 64
ROWS, CONTEXTS = (1, 4, 16, 32), (300, 1000, 4000)
STEPS, ROUNDS = 6, 3


class SkippingRunner:
    """A runner that computes nothing, until it is told to."""

    def __init__(self, runner: Runner, vocab: int) -> None:
        self.context = runner.context
        self.eos = runner.eos
        self.copy_blocks, self.zero_blocks = runner.copy_blocks, runner.zero_blocks
        self.skips = True
        self._runner = runner
        self._vocab = vocab

    def forward(self, rows: Rows[Row]) -> Tensor:
        if not self.skips:
            return self._runner.forward(rows)
        return torch.zeros(sum(row.samples for row in rows), self._vocab)


class Bench:
    """One model, under engines whose caches are fresh or used."""

    def __init__(self, runner: Runner, vocab: int, blocks: int, block_size: int) -> None:
        self.runner = SkippingRunner(runner, vocab)
        runner.zero_blocks(list(range(blocks)))  # else most of what is read would be one page of zeros
        self._vocab = vocab
        self._blocks = blocks
        self._block_size = block_size
        self._dice = random.Random(1)
        self._streams = 0

    def fresh(self) -> Engine:
        sampler = Sampler(SLOTS, self._vocab, eos=[], rows=SLOTS)
        cache = BlockCache(self._blocks, self._block_size)
        scheduler = Scheduler(cache, step_tokens=2048, batch_rows=SLOTS, tenant_prefill=10**9)
        return Engine(self.runner, sampler, cache, scheduler, slots=SLOTS)

    def used(self) -> Engine:
        engine = self.fresh()
        computed = 0
        while computed < TURNED_OVER * self._blocks * self._block_size:
            missing = AT_ONCE - len(engine.scheduler.sequences)
            engine.send([self._start(self._dice.randrange(50, 1000), 300) for _ in range(missing)])
            stats = engine.step().stats
            computed += stats.prefill_tokens + stats.decode_rows
        self._settle(engine)
        return engine

    def step_s(self, engine: Engine, rows: int, context: int) -> float:
        """Of a decode step of so many streams that know so many tokens."""
        engine.send([self._start(context - 8, 10**6) for _ in range(rows)])
        while engine.step().stats.decode_rows < rows:
            pass
        self.runner.skips = False
        engine.step()
        took = [engine.step().stats.step_s for _ in range(STEPS)]
        self.runner.skips = True
        self._settle(engine)
        return statistics.median(took)

    def _start(self, prompt: int, tokens: int) -> api.Submit:
        self._streams += 1
        sampling = api.Sampling(temperature=0, ignore_eos=True, max_tokens=self._dice.randrange(tokens) + 30)
        return api.Submit(self._streams, [self._streams % self._vocab] * prompt, sampling, 10**9)

    def _settle(self, engine: Engine) -> None:
        engine.send([api.Cancel(stream) for stream in engine.scheduler.sequences])
        engine.step()


def measure(contexts: Rows[int] = CONTEXTS) -> list[Figure]:
    engine, hello = default_engine("auto")
    return figures(Bench(engine.runner, hello.vocab, engine.cache.total, hello.block), contexts)


def figures(bench: Bench, contexts: Rows[int]) -> list[Figure]:
    used, found = bench.used(), []
    for context in contexts:
        for rows in ROWS:
            if rows * (context + bench._block_size) > bench._blocks * bench._block_size:
                continue
            rounds = [
                (bench.step_s(bench.fresh(), rows, context), bench.step_s(used, rows, context))
                for _ in range(ROUNDS)
            ]
            fresh_s, used_s = (statistics.median(column) for column in zip(*rounds, strict=True))
            name = f"decode step on a used cache, {rows} streams of {context} tokens"
            found.append(Figure(name, used_s * 1e3, "ms", "<= 1.1 x", used_s / fresh_s, "a fresh one"))
    return found


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure([int(context) for context in sys.argv[1:]] or CONTEXTS)))
