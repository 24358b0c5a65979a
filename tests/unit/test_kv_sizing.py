"""KV cache sizing: the cache takes what the largest steps leave of the device's share."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from engine.forward.attention import NAME
from engine.forward.by_sdpa import SdpaBackend
from engine.forward.interface import Runner
from engine.forward.kv_pool import KvPool
from engine.forward.model_runner import ModelRunner
from engine.memory.kv_sizing import DeviceMemory, kv_bytes, step_bytes
from engine.sampling.sampler import Sampler
from engine.schedule.batch import Row
from tests.fakes.tiny_models import tiny_model

GIB = 2**30


@pytest.mark.parametrize(
    ("device", "step", "fraction", "left"),
    [
        (DeviceMemory(total=80, free=60), 4, 0.9, 48),  # 72 may be used, 20 are
        (DeviceMemory(total=80, free=60), 4, 1.0, 56),
        (DeviceMemory(total=80, free=5), 4, 0.9, 0),  # others have more than the share leaves
        (DeviceMemory(total=80, free=60), 70, 0.9, 0),
    ],
)
def test_the_cache_has_what_the_rest_leaves(
    device: DeviceMemory, step: int, fraction: float, left: int
) -> None:
    scaled = DeviceMemory(device.total * GIB, device.free * GIB)
    assert kv_bytes(scaled, step * GIB, fraction) == pytest.approx(left * GIB, abs=2)


class Watched:
    """A runner, and the rows that it was asked for."""

    def __init__(self, inner: ModelRunner) -> None:
        self.context, self.eos = inner.context, inner.eos
        self.copy_blocks, self.zero_blocks = inner.copy_blocks, inner.zero_blocks
        self.asked: list[list[int]] = []
        self._inner = inner

    def forward(self, rows: list[Row]) -> object:
        self.asked.append([row.count for row in rows])
        return self._inner.forward(rows)


def watched() -> tuple[Watched, Sampler]:
    model = tiny_model("llama")
    model.set_attn_implementation(NAME)
    sampler = Sampler(8, model.config.vocab_size, eos=[1])
    pool = KvPool(3, 2, 16, tokens=48, dtype=model.dtype, device="cpu")
    runner = ModelRunner(
        model, pool, SdpaBackend(pool, 4), sampler.latest_tokens, block_size=4, context=48, eos=frozenset()
    )
    return Watched(runner), sampler


def test_a_full_chunk_and_a_full_batch_are_tried_and_what_is_captured_stays() -> None:
    runner, sampler = watched()
    costs = iter([700, 30, 20])

    def meter(work: Callable[[], object]) -> int:
        work()
        return next(costs)

    tried: Runner = runner  # type: ignore[assignment]
    assert step_bytes(tried, sampler, chunk=40, rows=5, block_size=4, groups=1, meter=meter) == 720
    assert runner.asked == [[40], [1] * 5, [1] * 5]
