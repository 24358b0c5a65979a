"""A model that drafts: it changes no token, follows whatever happens to a stream, and keeps to its memory."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

import pytest

from engine import api
from tests.fakes.draft_models import CountingRunner, draft_by
from tests.fakes.engine_driver import PLENTY, TOY, Driver, Limits, engine_of, greedy
from tests.unit.test_drafts import PROMPT, SAMPLINGS, replace_bias, said

LITTLE = Limits(kv_tokens=160, step_tokens=24, batch_rows=3)


def ran(
    limits: Limits = PLENTY,
    architecture: str = TOY,
    *,
    drafts: bool = True,
    memory: Limits = PLENTY,
    wrong: int = 0,
    beside_lookup: bool = False,
) -> Driver:
    engine = engine_of(architecture, replace(limits, drafts=beside_lookup))
    samplings = SAMPLINGS if architecture == TOY else [*map(replace_bias, SAMPLINGS)]
    if drafts:
        draft_by(engine, engine_of(architecture, memory), wrong=wrong, beside_lookup=beside_lookup)
    driver = Driver(engine)
    for stream, sampling in enumerate(samplings):
        driver.send(api.Submit(stream, [stream + 1, *PROMPT], sampling, credit=99))
    driver.settle()
    return driver


def alone(prompt: list[int], sampling: api.Sampling, wrong: int = 0) -> tuple[Driver, CountingRunner]:
    engine = engine_of(TOY, PLENTY)
    runner = draft_by(engine, engine_of(TOY, PLENTY), wrong=wrong)
    driver = Driver(engine)
    driver.settle(api.Submit(0, prompt, sampling, credit=99))
    return driver, runner


@pytest.mark.parametrize("limits", [PLENTY, LITTLE], ids=["plenty", "little memory"])
def test_the_same_model_is_always_right(limits: Limits) -> None:
    """Also where tokens are drawn, with penalties, biases and least lengths: it draws as the stream does."""
    without, driver = ran(limits, drafts=False), ran(limits)
    assert said(driver) == said(without)
    assert len(driver.outputs) < len(without.outputs) / 3
    wrong = driver.stats.model_drafted_total - driver.stats.model_accepted_total
    assert wrong == 0 or limits is LITTLE, "but for rows that were given up"
    assert driver.stats.model_drafted_total == driver.stats.drafted_total


@pytest.mark.parametrize("beside_lookup", [False, True])
@pytest.mark.parametrize("memory", [PLENTY, LITTLE], ids=["plenty", "little memory"])
def test_a_model_that_is_often_wrong_changes_no_token(memory: Limits, beside_lookup: bool) -> None:
    without, driver = (
        ran(drafts=drafts, memory=memory, wrong=3, beside_lookup=beside_lookup) for drafts in (False, True)
    )
    assert said(driver) == said(without)
    stats = driver.stats
    assert 0 < stats.model_accepted_total < stats.model_drafted_total
    assert (stats.drafted_total > stats.model_drafted_total) == beside_lookup


@pytest.mark.parametrize("architecture", ["llama", "gemma2", "gpt_oss"])
def test_so_it_is_with_all_kinds_of_layers(architecture: str) -> None:
    without, driver = (
        ran(architecture=architecture, drafts=drafts, memory=replace(PLENTY, kv_tokens=240))
        for drafts in (False, True)
    )
    for (tokens, _, finish), (others, _, end) in zip(said(driver), said(without), strict=True):
        assert (tokens, finish) == (others, end)
    assert driver.stats.model_accepted_total > 0.8 * driver.stats.model_drafted_total > 0


def test_a_prompt_is_computed_once_and_in_parts_as_large_as_a_step() -> None:
    engine = engine_of(TOY, PLENTY)
    runner = draft_by(engine, engine_of(TOY, Limits(kv_tokens=512, step_tokens=24)))
    driver = Driver(engine)
    driver.settle(api.Submit(0, list(range(60, 160)), greedy(8), credit=99))
    assert max(sum(counts) for counts in runner.computed) == 24
    assert sum(map(sum, runner.computed)) == 100 + 8 - 2, "each once, but the last token and the last draft"


@pytest.mark.parametrize("wrong", [0, 2])
def test_what_stands_is_not_computed_again(wrong: int) -> None:
    driver, runner = alone(PROMPT, greedy(90), wrong=wrong)
    tokens = len(PROMPT) + 90
    assert sum(map(sum, runner.computed)) <= tokens + driver.stats.drafted_total
    assert all(count <= 2 for counts in runner.computed[1:] for count in counts)


STEERING: dict[str, Callable[[Driver], list[api.StreamCommand]]] = {
    "rewind": lambda driver: [api.Truncate(0, 25)],
    "inject": lambda driver: [api.Append(0, [300, 9, 301])],
    "adjust": lambda driver: [api.Adjust(0, api.Sampling(seed=8, max_tokens=90, ignore_eos=True))],
    "pause": lambda driver: [api.Pause(0), api.Resume(0)],
    "release": lambda driver: [api.Pause(0, release=True), api.Resume(0)],
}


@pytest.mark.parametrize("how", STEERING)
def test_it_follows_a_stream_that_is_steered(how: str) -> None:
    """What is told of each is right, and from there on drafts are as before."""
    told = []
    for drafts in (False, True):
        engine = engine_of(TOY, PLENTY)
        runner = draft_by(engine, engine_of(TOY, PLENTY)) if drafts else None
        driver = Driver(engine)
        sampling = api.Sampling(seed=3, max_tokens=90, ignore_eos=True)
        driver.settle(api.Submit(0, PROMPT, sampling, credit=40))
        if runner is not None:
            runner.computed.clear()
        for command in STEERING[how](driver):
            driver.settle(command)
        driver.settle(api.Grant(0, 90))
        told.append(driver.told[0])
        if runner is not None:
            stats = driver.stats
            assert stats.model_accepted_total == stats.model_drafted_total > 60
            assert runner.computed[0][0] <= 30, "what is cached of it is not computed again"
    assert told[0].tokens == told[1].tokens
    assert len(told[0].tokens) == 90


def test_who_has_no_row_holds_none_of_its_memory() -> None:
    engine, other = engine_of(TOY, PLENTY), engine_of(TOY, PLENTY)
    draft_by(engine, other)
    driver = Driver(engine)
    driver.send(*(api.Submit(stream, [stream, *PROMPT], greedy(90), credit=30) for stream in range(3)))
    driver.until(driver.has(0, 20))
    assert other.cache.used > 0
    driver.settle(api.Cancel(2))
    assert other.cache.used == 0
    assert other.cache.cached > 0


def test_a_stream_that_becomes_too_long_for_it_goes_on_without() -> None:
    engine = engine_of(TOY, PLENTY)
    draft_by(engine, engine_of(TOY, Limits(kv_tokens=32)))
    driver = Driver(engine)
    driver.settle(api.Submit(0, PROMPT, greedy(60), credit=99))
    assert len(driver.told[0].tokens) == 60
    assert 0 < driver.stats.model_drafted_total < 60
    without = Driver(engine_of(TOY, PLENTY))
    without.settle(api.Submit(0, PROMPT, greedy(60), credit=99))
    assert driver.told[0].tokens == without.told[0].tokens


def test_one_that_knows_fewer_tokens_drafts_what_it_knows() -> None:
    engine = engine_of("llama", PLENTY)
    runner = draft_by(engine, engine_of("llama", PLENTY))
    (model,) = engine._drafting._drafters
    model._known = 300  # type: ignore[attr-defined]
    inner = runner.forward
    runner.forward = lambda rows: inner(rows)[:, :300]  # type: ignore[method-assign]
    driver = Driver(engine)
    sampling = api.Sampling(seed=1, logit_bias=dict.fromkeys(range(200, 320), 9.0), max_tokens=60)
    driver.settle(
        api.Submit(0, [1, 2, 3], sampling, credit=99), api.Submit(1, [1, 310, 3], greedy(9), credit=99)
    )
    without = Driver(engine_of("llama", PLENTY))
    without.settle(
        api.Submit(0, [1, 2, 3], sampling, credit=99), api.Submit(1, [1, 310, 3], greedy(9), credit=99)
    )
    assert [told.tokens for told in driver.told.values()] == [told.tokens for told in without.told.values()]
    assert max(driver.told[0].tokens) >= 300, "it has come to tokens that the model does not know"
    assert driver.stats.model_drafted_total > 0
    assert engine._drafting._drafters == [model]


def test_one_that_fails_is_not_asked_again_and_ends_no_stream(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_of(TOY, PLENTY)
    runner = draft_by(engine, engine_of(TOY, PLENTY))
    driver = Driver(engine)
    driver.send(*(api.Submit(stream, [stream, *PROMPT], greedy(60), credit=99) for stream in range(3)))
    driver.until(driver.has(0, 20))

    def fail(rows: object) -> None:
        raise MemoryError

    runner.forward = fail  # type: ignore[assignment, method-assign]
    with caplog.at_level(logging.ERROR):
        driver.settle()
    assert len(driver.ended()) == 3
    assert [record.message for record in caplog.records] == [
        "drafts by model have failed, and there are no more of them"
    ]


def test_no_more_are_drafted_than_may_come() -> None:
    driver, runner = alone(PROMPT, greedy(5))
    assert driver.stats.model_drafted_total == 5 - 2, "one comes behind the prompt, and one behind the drafts"
    assert len(runner.computed) == 3
