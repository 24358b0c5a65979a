"""Steps that fail: a few streams that are steered, on a device that runs out of memory in every step, held
against transformers' own `generate`.

They share prompts, have slots, blocks and rows of sampling parameters one after the other, come back from the
host's memory, and have blocks copied: all of what an engine remembers to stand on its device.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from engine import api
from engine.memory.host_pool import HostPool
from engine.schedule.host_cache import BlockCopy
from engine.step.swapping import Swapping
from tests.fakes.engine_driver import Driver, Limits, greedy, model_engine
from tests.fakes.failing_device import FailingDevice
from tests.fakes.greedy_oracle import Oracle, generate_of, oracle_of
from tests.fakes.late_block_copier import LateBlockCopier
from tests.fakes.tiny_models import tiny_model

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
TIGHT = Limits(kv_tokens=48, step_tokens=16, batch_rows=5, host_blocks=24)
BACKENDS = {
    "sdpa": TIGHT,
    "tables": replace(TIGHT, attention="gathered"),
    "captured": replace(TIGHT, attention="gathered", captured=True),
    "flash_attn": replace(TIGHT, attention="flash_attn"),
    "flashinfer": replace(TIGHT, attention="flashinfer"),
}
LIMITS = BACKENDS | {
    f"{name}, overlapped": replace(limits, overlap=True) for name, limits in BACKENDS.items()
}
TEXT = [(at * 37 + 11) % 400 for at in range(60)]
REPETITION = 1.3
PENALISED = api.Sampling(temperature=0, repetition_penalty=REPETITION, max_tokens=8, ignore_eos=True)
DRAWN = api.Sampling(
    seed=5, top_k=40, top_p=0.9, frequency_penalty=0.1, logprobs=2, max_tokens=4, ignore_eos=True
)


@cache
def tiny() -> Any:
    return tiny_model("llama", dtype=torch.float64, **SMALL)


@cache
def oracle(**asked: Any) -> Oracle:
    model = tiny_model("llama", dtype=torch.float64, attn_implementation="eager", **SMALL)
    return Oracle(generate_of(model, **asked)) if asked else oracle_of(model)


class CountingPool:
    """The host's memory as the engine uses it, and not as late as other tests have it: what it asks of the
    device is asked at once."""

    def __init__(self, pool: HostPool) -> None:
        self.max_blocks = pool.max_blocks
        self.may_save, self.save, self.fence = pool.may_save, pool.save, pool.fence
        self.loaded = 0
        self._pool = pool

    def load(self, copies: list[BlockCopy]) -> Any:
        self.loaded += len(copies)
        return self._pool.load(copies)


class FailingDriver(Driver):
    """Steps an engine on a device that fails in every step."""

    def __init__(self, limits: Limits, device: FailingDevice) -> None:
        super().__init__(model_engine(tiny(), limits))
        late = self.engine._swapping._copier
        assert isinstance(late, LateBlockCopier)
        assert isinstance(late._inner, HostPool)
        self.device = device
        self.copier = CountingPool(late._inner)
        self.engine._swapping = Swapping(self.engine.scheduler.host_cache, self.copier)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            self.device.begin_step()
            with self.device:
                super().step()


def steered(limits: Limits, device: FailingDevice) -> FailingDriver:
    """Streams that have prompts in common, and slots and blocks one after the other. One comes back from the
    host's memory, is rewound into a block that is shared by then, and so has it copied."""
    driver = FailingDriver(limits, device)
    driver.settle(api.Submit(1, TEXT[:17], greedy(3), credit=99))
    driver.settle(api.Submit(2, TEXT[:18], greedy(12), credit=5), api.Submit(3, TEXT[5:16], PENALISED, 99))
    driver.settle(api.Pause(2, release=True))
    driver.settle(api.Submit(4, TEXT[3:42], greedy(2), credit=99))
    driver.settle(api.Resume(2), api.Append(2, TEXT[30:33]), api.Grant(2, 9))
    known = list(driver.engine.scheduler.sequences[2].tokens)
    driver.settle(api.Submit(5, known, greedy(2), credit=0), api.Submit(6, TEXT[7:17], DRAWN, 99))
    driver.settle(api.Truncate(2, 6), api.Adjust(2, greedy(12)), api.Grant(2, 99), api.Grant(5, 99))
    return driver


def check(driver: FailingDriver, undisturbed: FailingDriver) -> None:
    for stream, told in driver.told.items():
        assert told.finish == api.Finish("length"), "everybody's row is tried again"
        if told.submit.sampling is DRAWN:
            assert told.tokens == undisturbed.told[stream].tokens
        elif told.submit.sampling is PENALISED:
            oracle(repetition_penalty=REPETITION).check(told)
        else:
            oracle().check(told)
    assert driver.stats.kv_used == 0
