"""Seeded sampling: tokens depend on the stream alone, on its context, parameters, seed and indices."""

from __future__ import annotations

import pytest

from engine import api
from tests.fakes.engine_driver import PLENTY, TOY, Driver, Limits, engine_of

TOKENS = 40
PROMPT = [(at * at * 7 + 3) % 400 for at in range(22)]
BUSY = Limits(kv_tokens=96, step_tokens=7, batch_rows=4)
WATCHED = 9  # behind its neighbours: of equals, memory is taken from the last
MODELS = ["llama", TOY]
SAMPLING = api.Sampling(
    temperature=1.0,
    top_p=0.9,
    seed=11,
    repetition_penalty=1.2,
    presence_penalty=0.3,
    frequency_penalty=0.2,
    logprobs=2,
    max_tokens=TOKENS,
    ignore_eos=True,
)


def watched(credit: int = 1000) -> api.Submit:
    return api.Submit(WATCHED, PROMPT, SAMPLING, credit)


def neighbour(stream: int, seed: int, temperature: float = 1.3) -> api.Submit:
    sampling = api.Sampling(temperature=temperature, seed=seed, max_tokens=30, top_k=40, ignore_eos=True)
    return api.Submit(stream, PROMPT[: 5 + 3 * stream], sampling, 1000)


def alone(model: str) -> Driver:
    driver = Driver(engine_of(model))
    driver.settle(watched())
    assert len(driver.told[WATCHED].tokens) == TOKENS
    return driver


def same(driver: Driver, other: Driver) -> None:
    told, expected = driver.told[WATCHED], other.told[WATCHED]
    assert told.tokens == expected.tokens
    assert [item.logprob for item in told.logprobs] == pytest.approx(
        [item.logprob for item in expected.logprobs], abs=1e-9
    )


@pytest.mark.parametrize("model", MODELS)
def test_the_seed_decides(model: str) -> None:
    driver = Driver(engine_of(model))
    driver.settle(*(neighbour(stream, seed=stream % 2) for stream in (1, 3)))
    driver.settle(
        *(api.Submit(10 + seed, PROMPT, api.Sampling(seed=seed, max_tokens=20), 20) for seed in (1, 2))
    )
    driver.settle(api.Submit(20, PROMPT, api.Sampling(seed=1, max_tokens=20), 20))
    assert driver.told[11].tokens == driver.told[20].tokens != driver.told[12].tokens


@pytest.mark.parametrize("model", MODELS)
def test_it_says_the_same_beside_others(model: str) -> None:
    driver = Driver(engine_of(model))
    driver.send(*(neighbour(stream, seed=stream) for stream in range(1, 7)))
    driver.step(3)
    driver.settle(watched(), neighbour(7, seed=11), neighbour(8, seed=11, temperature=0))
    same(driver, alone(model))


@pytest.mark.parametrize("overlap", [False, True], ids=["one step at a time", "overlapped"])
@pytest.mark.parametrize("model", MODELS)
def test_it_says_the_same_where_more_are_penalised_than_have_a_row(model: str, overlap: bool) -> None:
    driver = Driver(engine_of(model, Limits(kv_tokens=1024, batch_rows=2, overlap=overlap)))
    driver.settle(watched(), *(api.Submit(stream, PROMPT, SAMPLING, 1000) for stream in range(1, 5)))
    same(driver, alone(model))
    assert all(told.tokens == driver.told[WATCHED].tokens for told in driver.told.values())


@pytest.mark.parametrize("model", MODELS)
def test_it_says_the_same_when_memory_is_taken_from_it(model: str) -> None:
    driver = Driver(engine_of(model, BUSY))
    driver.send(neighbour(1, seed=1), neighbour(2, seed=2), watched())
    driver.until(driver.has(WATCHED, 1))
    driver.settle(neighbour(3, seed=3), neighbour(4, seed=4))
    assert any(isinstance(change, api.Paused) for change in driver.told[WATCHED].changes)
    same(driver, alone(model))


@pytest.mark.parametrize("model", MODELS)
def test_it_says_the_same_after_pauses_grants_and_an_eviction(model: str) -> None:
    driver = Driver(engine_of(model, BUSY))
    driver.settle(watched(credit=0))
    for credit in (1, 2, 9):
        driver.settle(api.Grant(WATCHED, credit))
        assert len(driver.told[WATCHED].tokens) == credit
    driver.settle(api.Pause(WATCHED), api.Grant(WATCHED, 1000))
    driver.settle(*(neighbour(stream, seed=stream) for stream in range(1, 6)))
    assert driver.stats.evictions_total
    driver.settle(api.Resume(WATCHED), api.Adjust(WATCHED, SAMPLING))
    same(driver, alone(model))


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("index", [0, 1, 17, TOKENS - 1])
def test_a_rewind_grows_back_the_same(model: str, index: int) -> None:
    driver = Driver(engine_of(model))
    driver.settle(watched(credit=TOKENS - 1))
    driver.settle(api.Truncate(WATCHED, index), api.Grant(WATCHED, TOKENS))
    same(driver, alone(model))


@pytest.mark.parametrize("model", MODELS)
def test_the_same_steering_at_the_same_indices_replays(model: str) -> None:
    def play(limits: Limits, others: int) -> Driver:
        driver = Driver(engine_of(model, limits))
        driver.send(*(neighbour(stream, seed=stream) for stream in range(1, 1 + others)))
        driver.settle(watched(credit=8))
        driver.settle(api.Append(WATCHED, [7, 8, 9]), api.Grant(WATCHED, 15))
        driver.settle(api.Adjust(WATCHED, hot), api.Grant(WATCHED, 30))
        driver.settle(api.Truncate(WATCHED, 20), api.Append(WATCHED, [301, 302]), api.Grant(WATCHED, TOKENS))
        return driver

    hot = api.Sampling(temperature=1.5, top_k=50, seed=11, max_tokens=TOKENS, ignore_eos=True)
    quiet, busy = play(PLENTY, 0), play(BUSY, 5)
    assert len(quiet.told[WATCHED].tokens) == TOKENS
    assert quiet.told[WATCHED].tokens == busy.told[WATCHED].tokens
    assert quiet.told[WATCHED].tokens[:8] == alone(model).told[WATCHED].tokens[:8]
    assert quiet.told[WATCHED].tokens != alone(model).told[WATCHED].tokens
