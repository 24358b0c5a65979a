"""A stream that an end token does not end: it stands before it, and only what is put there is computed."""

from __future__ import annotations

import pytest

from engine import api, toy_model
from tests.fakes.engine_driver import TOY, Driver, Limits, engine_of

PROMPT = list(range(60, 80))
RESULT = [70, 71, 72]


def held(length: int, overlap: bool) -> Driver:
    """A stream that has come to an end token behind so many others."""
    driver = Driver(engine_of(TOY, Limits(kv_tokens=4096, step_tokens=512, overlap=overlap)))
    ending = api.Sampling(seed=1, hold_at_eos=True, min_tokens=length, logit_bias={toy_model.EOS: 100.0})
    driver.send(api.Submit(1, PROMPT, ending, 10_000))
    driver.until(lambda: driver.told[1].paused)
    assert len(driver.told[1].tokens) == length
    return driver


def computed(driver: Driver) -> int:
    """All that was computed and counts."""
    return sum(output.stats.prefill_tokens + output.stats.decode_rows for output in driver.outputs)


@pytest.mark.parametrize("length", [1, 3, 4, 5, 8, 12])  # a block has four tokens
def test_nothing_is_computed_twice_when_something_is_put_there(length: int) -> None:
    driver = held(length, overlap=False)
    assert computed(driver) == len(PROMPT) + length
    driver.send(api.Append(1, RESULT), api.Resume(1))
    driver.until(lambda: len(driver.told[1].changes) == 2 and driver.told[1].paused)
    assert computed(driver) == len(PROMPT) + length + len(RESULT)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("length", [3, 4, 8])
def test_it_may_go_on_be_rewound_or_end(length: int, overlap: bool) -> None:
    driver = held(length, overlap)
    told = driver.told[1]
    driver.send(api.Resume(1))
    driver.until(lambda: len(told.changes) == 1 and told.paused)
    assert len(told.tokens) == length, "it comes to the same end token"
    driver.send(api.Truncate(1, 1), api.Resume(1))
    driver.until(lambda: len(told.changes) == 3 and told.paused)
    assert len(told.tokens) == length
    driver.send(api.Cancel(1))
    driver.until(lambda: told.finish is not None)
    assert told.finish == api.Finish("cancelled")
    assert driver.engine.cache.used == 0


@pytest.mark.parametrize("pauses", [False, True])
def test_who_lets_it_go_on_while_its_end_token_is_in_flight_has_said_so_behind_that(pauses: bool) -> None:
    driver = Driver(engine_of(TOY, Limits(kv_tokens=4096, step_tokens=512, overlap=True)))
    ending = api.Sampling(seed=1, hold_at_eos=True, min_tokens=3, logit_bias={toy_model.EOS: 100.0})
    driver.send(api.Submit(1, PROMPT, ending, 10_000))
    told = driver.told[1]
    driver.until(driver.has(1, 3))
    driver.send(*([api.Pause(1)] if pauses else []), api.Resume(1))
    driver.settle()
    ends = [news.finish for output in driver.outputs for news in output.news if news.finish]
    assert ends == [api.Finish("eos", held=True)] * 2, "it went on, and came to the same end token"
    assert told.paused
    assert len(told.tokens) == 3
    driver.send(api.Resume(1), api.Pause(1))
    driver.settle()
    assert told.paused


@pytest.mark.parametrize(
    ("command", "reason"),
    [(api.Cancel(1), "cancelled"), (api.Adjust(1, api.Sampling(max_tokens=2)), "length")],
    ids=["cancel", "adjust"],
)
def test_an_end_that_comes_in_the_step_in_which_it_is_held_is_told_behind_that(
    command: api.Cancel | api.Adjust, reason: str
) -> None:
    driver = Driver(engine_of(TOY, Limits(kv_tokens=4096, step_tokens=512)))
    ending = api.Sampling(seed=1, hold_at_eos=True, min_tokens=3, logit_bias={toy_model.EOS: 100.0})
    driver.send(api.Submit(1, PROMPT, ending, 10_000))
    driver.until(driver.has(1, 3))
    driver.settle(command)
    held, ended = (news.finish for output in driver.outputs for news in output.news if news.finish)
    assert held == api.Finish("eos", held=True)
    assert ended.reason == reason
    assert len(driver.told[1].tokens) == 3, "the end token is not kept"
