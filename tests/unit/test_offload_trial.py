"""The offload trial: nothing is offloaded where that is not quicker, and what is offloaded is bounded."""

from __future__ import annotations

from collections.abc import Sequence as Rows

import pytest
import torch

from engine.forward.interface import Runner
from engine.forward.model_runner import ModelRunner
from engine.memory.offload_trial import GIB, host_pool_if_faster
from engine.schedule.batch import Row
from tests.fakes.engine_driver import Limits, engine_of

BLOCK_BYTES = 2 * 3 * 2 * 4 * 16 * 8  # of a tiny llama in float64, four tokens a block


def runner() -> ModelRunner:
    made = engine_of("llama", Limits(kv_tokens=64)).runner
    assert isinstance(made, ModelRunner)
    return made


def kept(gib: float, free: int | None = None, wrapped: Runner | None = None) -> int:
    made = runner()
    host = host_pool_if_faster(made.pool, wrapped or made, block_size=4, chunk=64, gib=gib, free=free)
    return 0 if host is None else host.total_blocks


def test_it_is_kept_where_bringing_it_back_is_quicker_and_the_trial_leaves_no_trace() -> None:
    made = runner()
    host = host_pool_if_faster(made.pool, made, block_size=4, chunk=64, gib=32 * BLOCK_BYTES / GIB, free=None)
    assert host is not None
    assert 30 <= host.total_blocks <= 32
    assert not any(tensor.any() for tensor in (*made.pool.keys, *made.pool.values))


def test_no_more_than_half_of_what_is_free_is_taken() -> None:
    assert 14 <= kept(1, free=2 * 16 * BLOCK_BYTES) <= 16


@pytest.mark.parametrize("gib", [0, BLOCK_BYTES / 2 / GIB])
def test_what_holds_no_block_is_no_memory(gib: float) -> None:
    assert kept(gib) == 0


class Instant:
    """A model that computes in no time."""

    def __init__(self, inner: ModelRunner) -> None:
        self.computed: list[int] = []  # tokens of each step
        self.context, self.eos = inner.context, inner.eos
        self.copy_blocks, self.zero_blocks = inner.copy_blocks, inner.zero_blocks
        self._logits = torch.zeros(1, 8)

    def forward(self, rows: Rows[Row]) -> torch.Tensor:
        self.computed.append(sum(row.count for row in rows))
        return self._logits


def test_it_is_not_kept_where_computing_it_again_is_quicker(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 5.0, 5.0, 6.0])  # loading takes five seconds, computing one
    monkeypatch.setattr("engine.memory.offload_trial.time.perf_counter", lambda: next(clock))
    made = runner()
    assert host_pool_if_faster(made.pool, Instant(made), block_size=4, chunk=64, gib=1e-3, free=None) is None


@pytest.mark.parametrize(("chunk", "computed"), [(64, 64), (12, 12), (10, 10), (3, 3), (1000, 64)])
def test_what_is_computed_on_trial_is_no_larger_than_a_step(chunk: int, computed: int) -> None:
    made = runner()
    instant = Instant(made)
    host_pool_if_faster(made.pool, instant, block_size=4, chunk=chunk, gib=1e-3, free=None)
    assert set(instant.computed) == {computed}


@pytest.mark.parametrize(("context", "computed"), [(3, set[int]()), (4, {4}), (7, {4})])
def test_where_no_stream_fills_a_block_there_is_nothing_to_try(context: int, computed: set[int]) -> None:
    made = runner()
    instant = Instant(made)
    instant.context = context
    host = host_pool_if_faster(made.pool, instant, block_size=4, chunk=context, gib=1e-3, free=None)
    assert set(instant.computed) == computed
    assert computed or host is None


def test_memory_that_cannot_be_had_is_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("CUDA error: out of memory")

    monkeypatch.setattr("engine.memory.offload_trial.HostPool", refused)
    assert kept(1) == 0
