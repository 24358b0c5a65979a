"""CUDA graphs of the decode step, and our kernels under whole models: tokens are those of `generate`, and the
host never waits for the device."""

from __future__ import annotations

import gc
import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch

from engine import api
from engine.forward import backends
from engine.forward.by_triton import TritonBackend
from engine.forward.cuda_graphs import NotCapturable, Work, batch_sizes
from engine.forward.model_runner import ModelRunner
from engine.model.preflight import ModelError
from engine.sampling import triton_draw
from tests.fakes.device_waits import NoDeviceWaits
from tests.fakes.devices import ON_DEVICE
from tests.fakes.engine_driver import Driver, Limits, engine_of, greedy, model_engine
from tests.fakes.greedy_oracle import oracle, oracle_of
from tests.fakes.tiny_models import ARCHITECTURES, MIXED, tiny_model
from tests.fakes.triton_kernels import needs_triton

pytestmark = needs_triton
TEXT = [(at * 37 + 11) % 400 for at in range(60)]
PLAIN = Limits(kv_tokens=96, step_tokens=16, batch_rows=5, attention="gathered")
LIMITS = {
    "plain": PLAIN,
    "captured": replace(PLAIN, captured=True),
    "captured and overlapped": replace(PLAIN, captured=True, overlap=True),
}


@pytest.mark.parametrize(("rows", "captured"), [(1, [1]), (5, [1, 2, 4, 5]), (40, [1, 2, 4, 8, 16, 32, 40])])
def test_sizes_hold_any_batch_and_waste_little(rows: int, captured: list[int]) -> None:
    assert batch_sizes(rows) == captured


def test_no_batch_is_filled_up_by_more_than_half() -> None:
    found = batch_sizes(256)
    assert found[-1] == 256
    assert all(larger <= 2 * smaller for smaller, larger in itertools.pairwise(found))


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_steered_streams_say_what_generate_says(architecture: str, limits: Limits) -> None:
    driver = Driver(engine_of(architecture, limits))
    driver.send(
        *(api.Submit(at, TEXT[: 3 + 7 * at], greedy(14), credit=4 + 20 * (at % 2)) for at in range(4))
    )
    driver.until(driver.has(1, 3))
    driver.send(api.Pause(1), api.Adjust(3, greedy(14)))
    driver.settle()
    driver.send(api.Truncate(3, 2), api.Resume(1), api.Append(2, TEXT[40:45]))
    driver.settle(*(api.Grant(at, 100) for at in range(4)))
    for told in driver.told.values():
        assert told.finish == api.Finish("length")
        oracle(architecture).check(told)


@pytest.mark.skipif(ON_DEVICE, reason="there they know no float64: `test_on_device.py`")
def test_a_whole_model_reads_with_our_kernels() -> None:
    """Of each architecture's kinds of layer: windows, caps and sinks, in a chunk and in a captured step."""
    limits = Limits(kv_tokens=32, step_tokens=16, batch_rows=2, attention="triton", captured=True)
    one_of_each: dict[str, Any] = {"num_hidden_layers": 2, "layer_types": MIXED[:2], "dtype": torch.float64}
    driver = Driver(model_engine(tiny_model("gpt_oss", **one_of_each), limits))
    driver.settle(api.Submit(0, TEXT[:9], greedy(3), credit=9))
    plain = tiny_model("gpt_oss", attn_implementation="eager", **one_of_each)
    oracle_of(plain).check(driver.told[0])
    assert len(driver.told[0].tokens) == 3


class CountingCapture:
    """An eager capture that counts."""

    def __init__(self) -> None:
        self.captured = 0
        self.replayed = 0
        self.collected = False

    def __call__(self, work: Work) -> Work:
        self.captured += 1
        self.collected |= gc.isenabled()

        def replay() -> None:
            self.replayed += 1
            work()

        return replay


def captured_llama() -> tuple[Driver, CountingCapture]:
    engine = engine_of("llama", Limits(kv_tokens=512, step_tokens=64, batch_rows=4, attention="gathered"))
    runner, capture = engine._executor._runner, CountingCapture()
    assert isinstance(runner, ModelRunner)
    runner.capture_decode(runner._attention, 4, capture)  # type: ignore[arg-type]
    return Driver(engine), capture


def test_nothing_that_a_client_may_do_is_captured_again() -> None:
    driver, capture = captured_llama()
    assert capture.captured == len(batch_sizes(4))
    penalised = api.Sampling(temperature=0.7, seed=3, repetition_penalty=1.2, logit_bias={7: 1.0}, top_p=0.9)
    driver.send(*(api.Submit(at, TEXT[: 5 + at], greedy(30), credit=1000) for at in range(3)))
    driver.until(driver.has(2, 3))
    driver.send(api.Adjust(0, penalised), api.Pause(1), api.Truncate(2, 1))
    driver.until(driver.has(2, 8))
    driver.settle(api.Resume(1), api.Cancel(0))
    assert capture.captured == len(batch_sizes(4))
    assert capture.replayed > 20


def test_nothing_is_collected_while_steps_are_captured() -> None:
    assert gc.isenabled()
    _, capture = captured_llama()
    assert capture.captured
    assert not capture.collected
    assert gc.isenabled()


def gathering() -> tuple[ModelRunner, TritonBackend]:
    engine = engine_of("llama", Limits(kv_tokens=64, step_tokens=16, batch_rows=4, attention="gathered"))
    runner = engine._executor._runner
    assert isinstance(runner, ModelRunner)
    return runner, runner._attention  # type: ignore[return-value]


def failing(error: RuntimeError) -> type[object]:
    class FailingCapture:
        def __call__(self, work: Work) -> Work:
            raise error

    return FailingCapture


def test_a_model_that_waits_for_the_device_decodes_without_graphs(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(
        "engine.forward.cuda_graphs.CudaGraphCapture", failing(NotCapturable("it looked at a number"))
    )
    runner, backend = gathering()
    backends.capture_decode(runner, backend, 4)
    assert runner._decode_graphs is None
    assert "cannot be captured" in caplog.text
    assert "it looked at a number" in caplog.text


def test_a_capture_that_fails_ends_the_start_with_a_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.forward.cuda_graphs.CudaGraphCapture", failing(RuntimeError("out of memory")))
    with pytest.raises(
        ModelError, match=r"\(out of memory\): a smaller --gpu-memory-fraction .*--attention sdpa"
    ):
        backends.capture_decode(*gathering(), 4)


ASKED = {
    "greedy": greedy(30),
    "drawn": api.Sampling(seed=1),
    "filtered": api.Sampling(seed=1, top_k=5, top_p=0.8, min_p=0.01),
    "edited": api.Sampling(repetition_penalty=1.3, frequency_penalty=0.1, logit_bias={3: 2.0}, min_tokens=99),
    "told": api.Sampling(temperature=0, logprobs=3),
}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
def test_no_step_of_decoding_makes_the_host_wait(asked: api.Sampling) -> None:
    driver, _ = captured_llama()
    driver.engine._executor._sampler._draw = triton_draw.draw
    driver.send(*(api.Submit(at, TEXT[: 5 + at], asked, credit=1000) for at in range(3)))
    driver.until(driver.has(2, 3))
    batch = driver.engine.scheduler.schedule()
    assert [row.count for row in batch.rows] == [1, 1, 1]
    with NoDeviceWaits():  # type: ignore[no-untyped-call]
        driver.engine._executor._launch(batch)
