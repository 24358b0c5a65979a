"""Failing rows: what goes wrong in a step ends the stream that it belongs to, and no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedModel

from engine import api
from engine.forward.interface import Runner
from tests.fakes.engine_driver import PLENTY, TOY, Driver, Limits, Wrap, engine_of, greedy, model_engine
from tests.fakes.faulty_runner import FaultyRunner
from tests.fakes.greedy_oracle import oracle
from tests.fakes.tiny_models import tiny_model

PROMPT = [(at * 31 + 5) % 400 for at in range(30)]
CULPRIT = 2
BAD = 463  # a token that no prompt of these holds
TIGHT = Limits(kv_tokens=160, step_tokens=16)
LIMITS = {"plenty": PLENTY, "tight": TIGHT, "overlapped": replace(TIGHT, overlap=True)}
MODELS = ["llama", "gemma2", "gpt_oss", TOY]


def with_a_bad_token(architecture: str) -> PreTrainedModel:
    model = tiny_model(architecture, dtype=torch.float64)
    weight = model.get_input_embeddings().weight
    assert isinstance(weight, torch.Tensor)
    with torch.no_grad():
        weight[BAD] = torch.nan
    return model


def raising(after: int) -> Wrap:
    return lambda runner: FaultyRunner(runner, raises=CULPRIT, after=after)


def spoiling(after: int) -> Wrap:
    return lambda runner: FaultyRunner(runner, spoils=CULPRIT, after=after)


def short_of_memory(runner: Runner) -> Runner:
    return FaultyRunner(runner, max_rows=2)


def submits() -> list[api.StreamCommand]:
    """Streams with the culprit's beginning, before it and behind it."""
    lengths = {0: 3, 1: 13, CULPRIT: 17, 3: 25, 4: 9}
    return [api.Submit(stream, PROMPT[:length], greedy(24), 1000) for stream, length in lengths.items()]


def check(driver: Driver, model: str) -> None:
    """The culprit failed, and what everybody wrote is what they would have written."""
    for told in driver.told.values():
        assert told.finish is not None
        assert (told.finish.reason == "error") == (told.submit.stream == CULPRIT)
        assert told.finish.reason == "error" or len(told.tokens) == 24
        oracle(model).check(told)
    assert driver.stats.kv_used == 0
    assert driver.stats.kv_free + driver.stats.kv_cached == driver.engine.cache.total


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("after", [0, 26], ids=["prefill", "decode"])
def test_only_the_stream_whose_rows_raise_fails(model: str, limits: Limits, after: int) -> None:
    driver = Driver(engine_of(model, limits, raising(after)))
    driver.settle(*submits())
    check(driver, model)
    assert driver.told[CULPRIT].finish == api.Finish("error", "the model failed on this stream")
    assert bool(driver.told[CULPRIT].tokens) == bool(after)


@pytest.mark.parametrize("model", [model for model in MODELS if model != TOY])
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
@pytest.mark.parametrize("after", [0, 26], ids=["prefill", "decode"])
def test_what_is_no_number_is_never_read_by_anybody_else(model: str, limits: Limits, after: int) -> None:
    driver = Driver(engine_of(model, limits, spoiling(after)))
    driver.settle(*submits())
    check(driver, model)
    # Its blocks are free, and its prompt is not found computed: whoever comes next has clean ones.
    again = [api.Submit(10 + at, PROMPT[: 17 + at], greedy(24), 1000) for at in range(8)]
    driver.settle(*again)
    for told in driver.told.values():
        oracle(model).check(told)


@pytest.mark.parametrize("model", ["llama", "mistral", "gemma2", "gpt_oss"])
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_a_token_that_a_model_makes_no_number_of_hurts_only_its_own_stream(
    model: str, limits: Limits
) -> None:
    """Nothing raises, and within the step the neighbours' rows lie beside the spoiled one's keys."""
    driver = Driver(model_engine(with_a_bad_token(model), limits))
    driver.send(*submits())
    driver.until(driver.has(CULPRIT, 5))
    driver.settle(api.Append(CULPRIT, [BAD]))
    check(driver, model)
    driver.settle(*(api.Submit(10 + at, PROMPT[: 17 + at], greedy(24), 1000) for at in range(8)))
    for told in driver.told.values():
        oracle(model).check(told)


def test_blocks_of_a_stream_that_failed_are_offered_to_nobody() -> None:
    driver = Driver(engine_of("llama", PLENTY, spoiling(0)))
    driver.settle(api.Submit(CULPRIT, PROMPT, greedy(), 1000))
    assert driver.stats.kv_cached == 0
    runner = driver.engine.runner
    assert isinstance(runner, FaultyRunner)
    assert all(tensor.isfinite().all() for tensor in (*runner.pool.keys, *runner.pool.values))
    driver.settle(api.Submit(3, PROMPT, greedy(), 1000))
    assert driver.told[3].admitted == 0


def test_blocks_that_somebody_else_uses_outlive_a_failure() -> None:
    driver = Driver(engine_of("llama", PLENTY, spoiling(0)))
    driver.settle(api.Submit(1, PROMPT, greedy(), credit=5))
    driver.settle(api.Submit(CULPRIT, PROMPT, greedy(), 1000))
    driver.settle(api.Submit(3, PROMPT, greedy(), 1000), api.Grant(1, 1000))
    assert [told.admitted for told in driver.told.values()] == [0, 28, 28]
    for told in driver.told.values():
        oracle("llama").check(told)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_a_step_that_is_too_large_for_memory_is_done_in_parts(model: str, limits: Limits) -> None:
    driver = Driver(engine_of(model, limits, short_of_memory))
    driver.settle(*submits())
    assert isinstance(driver.engine.runner, FaultyRunner)
    assert driver.engine.runner.shortages
    for told in driver.told.values():
        assert told.finish == api.Finish("length")
        oracle(model).check(told)


def test_whoever_is_left_of_a_step_that_was_too_large_is_tried_alone() -> None:
    driver = Driver(engine_of(TOY, LIMITS["overlapped"], lambda runner: FaultyRunner(runner, max_rows=1)))
    (end,) = driver.engine.runner.eos
    ends = api.Sampling(temperature=0, logit_bias={end: 1000.0})
    driver.send(api.Submit(1, PROMPT[:1], ends, 1000))
    driver.step()
    driver.settle(api.Submit(2, PROMPT[:1], greedy(5), 1000))
    assert [told.finish for told in driver.told.values()] == [api.Finish("eos"), api.Finish("length")]


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_what_a_failed_try_computed_does_not_stand_in_the_way_of_the_next(limits: Limits) -> None:
    driver = Driver(engine_of(TOY, limits, short_of_memory))
    driver.settle(*submits())
    runner = driver.engine.runner
    assert isinstance(runner, FaultyRunner)
    assert runner.shortages
    assert runner.max_held == 0


@pytest.mark.parametrize("limits", LIMITS.values(), ids=LIMITS)
def test_nobody_is_blamed_for_a_device_that_broke(limits: Limits, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise torch.AcceleratorError("an illegal memory access was encountered")

    monkeypatch.setattr("engine.step.failed_attempts.synchronize", broken)
    driver = Driver(engine_of(TOY, limits, raising(0)))
    with pytest.raises(torch.AcceleratorError):
        driver.settle(*submits())
    assert all(told.finish is None for told in driver.told.values())


def test_it_is_told_in_words_fit_for_a_client_and_logged_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    driver = Driver(engine_of(TOY, PLENTY, raising(0)))
    driver.settle(*submits())
    finish = driver.told[CULPRIT].finish
    assert finish is not None
    assert finish.detail is not None
    assert "cannot be computed" not in finish.detail
    (record,) = [record for record in caplog.records if record.name == "engine.step.executor"]
    assert record.exc_info is not None
    assert "cannot be computed" in str(record.exc_info[1])
