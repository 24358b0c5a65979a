"""Steering in process: how many tokens a stream of the toy model has left while it is steered without pause,
with steps one at a time, as on the CPU, and overlapped, as on a device."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator

from bench.result_tables import Figure
from engine import api
from engine.engine import Engine
from tests.fakes.engine_driver import TOY, Limits, engine_of

STEPS = 600
PROMPT = list(range(60, 80))
PARAMETERS = api.Sampling(seed=1, ignore_eos=True)
OTHERS = api.Sampling(seed=1, ignore_eos=True, temperature=0.5)
Control = Callable[[int, int], list[api.AnyCommand]]  # in a step, of a stream that has so many tokens
NONE, EACH, TENTH = 0, 1, 10
CONTROLS: dict[str, tuple[int, Control]] = {
    "an adjust at each step": (EACH, lambda step, _: [api.Adjust(1, OTHERS if step % 2 else PARAMETERS)]),
    "a pause and a resume at each tenth": (TENTH, lambda step, _: [api.Pause(1), api.Resume(1)]),
    "a rewind by one at each tenth": (TENTH, lambda _, tokens: [api.Truncate(1, tokens - 1)]),
    "an inject at each tenth": (TENTH, lambda step, _: [api.Append(1, [70, 71])]),
}


class Run:
    """One stream, steered in every so many steps."""

    def __init__(self, overlap: bool, every: int = NONE, control: Control = lambda *_: []) -> None:
        self.tokens = self.controls = self.discarded = 0
        self.seconds: list[float] = []  # of each step
        self._engine: Engine = engine_of(TOY, Limits(kv_tokens=4096, block_size=16, overlap=overlap))
        self._engine.send([api.Submit(1, PROMPT, PARAMETERS, credit=4096)])
        while self._engine.tokens_total < 8:
            self._engine.step()
        self._every, self._control = every, control
        self._before = self._engine.tokens_total

    def step(self, number: int) -> None:
        if self._every and number % self._every == 0:
            self.controls += 1
            self._engine.send(self._control(number, self._engine.scheduler.sequences[1].num_outputs))
        began = time.perf_counter()
        output = self._engine.step()
        self.seconds.append(time.perf_counter() - began)
        self.discarded += output.stats.discarded
        self.tokens = self._engine.tokens_total - self._before


def compared(overlap: bool) -> Iterator[Figure]:
    how = "overlapped" if overlap else "one step at a time"
    for name, (every, control) in CONTROLS.items():
        quiet, steered = Run(overlap), Run(overlap, every, control)
        for number in range(STEPS):  # in turns: what else the machine does is shared
            quiet.step(number)
            steered.step(number)
        share = steered.tokens / quiet.tokens
        yield Figure(f"tokens with {name}, {how}", steered.tokens, "tokens", ">= 0.9 x", share, "none")
        lost = steered.discarded / steered.controls
        yield Figure("  discarded", lost, "tokens a control", "<= 1")
        ratio = statistics.median(steered.seconds) / statistics.median(quiet.seconds)
        yield Figure("  a step", statistics.median(steered.seconds) * 1e6, "us", "", ratio, "none")


def measure() -> list[Figure]:
    return [*compared(overlap=False), *compared(overlap=True)]


if __name__ == "__main__":
    from bench.__main__ import report

    sys.exit(report(measure()))
