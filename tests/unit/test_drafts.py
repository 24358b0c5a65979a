"""Drafts change no token: whatever is computed ahead, streams come to what they come to without."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import replace

import pytest
import torch

from engine import api, toy_model
from engine.build.build import build
from engine.drafts.interface import Kind
from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence
from engine.step.drafting import Drafting
from tests.fakes.engine_driver import PLENTY, TOY, Driver, Free, Limits, Told, engine_of
from tests.fakes.faulty_runner import FaultyRunner

PROMPT = [7, 300, 301, 300, 302, 9, 300, 301]
LIKELY = {300: 9.0, 301: 9.0, 302: 8.0}  # so that drafts are right, and wrong
SAMPLINGS = [
    api.Sampling(temperature=0, logprobs=2, max_tokens=40, ignore_eos=True),
    api.Sampling(seed=3, logit_bias=LIKELY, logprobs=3, max_tokens=40, ignore_eos=True),
    api.Sampling(seed=4, logit_bias=LIKELY | {toy_model.EOS: 8.0}, logprobs=0, max_tokens=40, min_tokens=9),
    api.Sampling(seed=5, logit_bias=LIKELY, repetition_penalty=1.05, frequency_penalty=0.3, max_tokens=40),
    api.Sampling(seed=6, logit_bias=LIKELY, presence_penalty=2.0, top_k=2, max_tokens=40),
    api.Sampling(seed=7, logit_bias=LIKELY, top_p=0.6, min_p=0.1, max_tokens=33, ignore_eos=True),
]


def ran(
    limits: Limits, samplings: Several[api.Sampling], architecture: str = TOY, credit: int = 99
) -> Driver:
    driver = Driver(engine_of(architecture, limits))
    for stream, sampling in enumerate(samplings):
        driver.send(api.Submit(stream, [stream + 1, *PROMPT], sampling, credit=credit))
    driver.settle()
    return driver


def said(driver: Driver) -> list[tuple[list[int], list[api.Logprob], api.Finish | None]]:
    return [(told.tokens, told.logprobs, told.finish) for told in driver.told.values()]


@pytest.mark.parametrize(
    "limits",
    [PLENTY, Limits(kv_tokens=4096, step_tokens=11), Limits(kv_tokens=160, step_tokens=24, batch_rows=3)],
    ids=["plenty", "small steps", "little memory"],
)
def test_tokens_log_probabilities_and_ends_are_those_without(limits: Limits) -> None:
    without, driver = ran(limits, SAMPLINGS), ran(replace(limits, drafts=True), SAMPLINGS)
    assert said(driver) == said(without)
    assert 0 < driver.stats.accepted_total < driver.stats.drafted_total
    assert driver.stats.tokens_total == sum(len(told.tokens) for told in driver.told.values())


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_so_are_a_models_in_all_its_kinds_of_layers(architecture: str) -> None:
    samplings = [replace_bias(sampling) for sampling in SAMPLINGS]
    without, driver = (
        ran(replace(PLENTY, drafts=drafts), samplings, architecture) for drafts in (False, True)
    )
    for (tokens, logprobs, finish), (others, _, end) in zip(said(driver), said(without), strict=True):
        assert (tokens, finish) == (others, end)
        assert all(isinstance(one, api.Logprob) for one in logprobs)
    assert 0 < driver.stats.accepted_total < driver.stats.drafted_total


def test_a_draft_that_is_right_spares_its_stream_a_step() -> None:
    without, driver = ran(PLENTY, SAMPLINGS[1:2]), ran(replace(PLENTY, drafts=True), SAMPLINGS[1:2])
    assert len(driver.outputs) == len(without.outputs) - driver.stats.accepted_total
    assert driver.stats.accepted_total > 5


def replace_bias(sampling: api.Sampling) -> api.Sampling:
    """Tokens that are about as likely in a tiny model."""
    return api.Sampling(
        **{
            name: getattr(sampling, name)
            for name in ("seed", "temperature", "logprobs", "max_tokens", "top_k")
        },
        repetition_penalty=sampling.repetition_penalty,
        logit_bias=dict.fromkeys(LIKELY, 9.0),
    )


def test_no_token_goes_beyond_the_credit_and_one_at_a_time_is_the_same() -> None:
    whole = ran(replace(PLENTY, drafts=True), SAMPLINGS)
    driver = ran(replace(PLENTY, drafts=True), SAMPLINGS, credit=0)
    for credit in range(1, 41, 3):
        driver.settle(
            *(api.Grant(stream, credit) for stream in range(len(SAMPLINGS)) if open_(driver, stream))
        )
    assert [tokens for tokens, *_ in said(driver)] == [tokens for tokens, *_ in said(whole)]


def open_(driver: Driver, stream: int) -> bool:
    return driver.told[stream].finish is None


class Wrong:
    """What never comes."""

    kind: Kind = "lookup"

    def seconds(self, rows: int) -> float:
        return 0.0

    def propose(self, wanted: Several[tuple[Sequence, int]]) -> list[list[int]]:
        return [[toy_model.EOS - 1] * most for _, most in wanted]


def test_wrong_drafts_are_found_by_nobody() -> None:
    engine = engine_of(TOY, replace(PLENTY, drafts=True))
    engine._drafting = Drafting(engine.scheduler, [Wrong()], Free())
    driver = Driver(engine)
    sampling = api.Sampling(temperature=0, max_tokens=21, ignore_eos=True)
    driver.settle(api.Submit(0, PROMPT, sampling, credit=99))
    assert driver.stats.drafted_total > 21
    assert driver.stats.accepted_total == 0
    known = [*PROMPT, *driver.told[0].tokens[:9]]
    for stream, more in enumerate((driver.told[0].tokens[9], toy_model.EOS - 1), 1):
        submit = api.Submit(stream, [*known, more], sampling, credit=99)
        driver.settle(submit)
        fresh = Driver(engine_of(TOY, PLENTY))
        fresh.settle(submit)
        assert driver.told[stream].tokens == fresh.told[stream].tokens
    assert driver.told[1].admitted == 16, "what was right is found"


class SpoiltDrafts(FaultyRunner):
    """Whatever is computed behind a draft is no number."""

    def forward(self, rows: Several[Row]) -> torch.Tensor:
        logits, at = super().forward(rows), 0
        for row in rows:
            logits[at + 1 : at + row.num_sampled] = torch.nan
            at += row.num_sampled
        return logits


def test_a_stream_does_not_end_by_what_was_computed_behind_a_draft() -> None:
    driver = Driver(engine_of(TOY, replace(PLENTY, drafts=True), SpoiltDrafts))
    for stream, sampling in enumerate(SAMPLINGS):
        driver.send(api.Submit(stream, [stream + 1, *PROMPT], sampling, credit=99))
    driver.settle()
    assert said(driver) == said(ran(PLENTY, SAMPLINGS))


def test_drafts_take_no_row_from_a_prompt_and_no_memory_from_a_stream() -> None:
    """A step's budget is the same with them, and who holds memory keeps it."""
    limits = Limits(kv_tokens=96, step_tokens=16, batch_rows=4)
    endless = api.Sampling(temperature=0, logit_bias={300: 99.0}, max_tokens=400, ignore_eos=True)
    told: list[Told] = []
    preempted = []
    for drafts in (False, True):
        driver = Driver(engine_of(TOY, replace(limits, drafts=drafts)))
        driver.send(*(api.Submit(stream, [stream, 300, 300], endless, credit=20) for stream in range(2)))
        driver.send(api.Submit(2, list(range(60, 90)), endless, credit=12))
        driver.settle()
        told = list(driver.told.values())
        assert [len(one.tokens) for one in told] == [20, 20, 12]
        preempted.append(driver.stats.preemptions_total)
    assert preempted[1] <= preempted[0]


def test_they_can_be_switched_off() -> None:
    for drafts, some in (("auto", True), ("off", False)):
        engine, _ = build(api.EngineOptions(model=TOY, drafts=drafts))
        assert bool(engine._drafting._drafters) == some
