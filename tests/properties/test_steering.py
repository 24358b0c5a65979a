"""Steering beside what is in flight: whatever crosses what, tokens follow from the answers that were told.

An engine that overlaps its steps, or drafts, is steered at random, also where memory is short and steps fail,
beside streams of other tenants that begin alike. Each stream's answers say at which token its commands took
effect; steered at just those tokens, an engine that does one thing at a time must say the same.

Examples are the same in every run; `MIDSTREAM_EXAMPLES=500` looks further, at others each time.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs

from engine import api, toy_model
from midstream.protocol import Grammar
from tests.fakes import grammars
from tests.fakes.at_once_threads import AtOnceThreads
from tests.fakes.draft_models import draft_by
from tests.fakes.engine_driver import PLENTY, TOY, Driver, Limits, Told, engine_of
from tests.fakes.faulty_runner import FaultyRunner
from tests.fakes.stood import Stood

EXAMPLES = os.environ.get("MIDSTREAM_EXAMPLES")
STEPS = 40  # how long it is steered; then everybody may run to the end
LIMITS = [
    PLENTY,
    Limits(kv_tokens=512, step_tokens=24),
    Limits(kv_tokens=96, step_tokens=9, batch_rows=3),
    Limits(kv_tokens=96, step_tokens=24, host_blocks=20),
]
PROMPTS = [[7], list(range(60, 73)), list(range(60, 100))]
SAMPLINGS = [
    api.Sampling(**(common | asked))
    for common in (
        {"ignore_eos": True, "max_tokens": 60},
        {"ignore_eos": False, "max_tokens": 60, "logit_bias": {toy_model.EOS: 38.0}},
        {"ignore_eos": True, "max_tokens": 60, "logit_bias": {toy_model.EOS: 38.0}},
        # Mostly one of a few tokens, so that drafts are right, and wrong.
        {"ignore_eos": False, "max_tokens": 60, "logit_bias": {300: 9.0, 301: 9.0, toy_model.EOS: 37.0}},
    )
    for asked in (
        {"temperature": 0.0},
        {"seed": 3},
        {"seed": 3, "temperature": 1.6, "min_tokens": 9},
        {"seed": 4, "repetition_penalty": 1.3, "frequency_penalty": 0.4, "logprobs": 1},
        {"seed": 5, "max_tokens": 20},
        {"seed": 6, "hold_at_eos": True},
        {"seed": 7, "logit_bias": {}, "grammar": grammars.told(Grammar(regex="(ab|cd|[a-z]{3} ){1,9}"))},
        {"seed": 8, "logit_bias": {}, "grammar": grammars.told(grammars.MANY[0]), "hold_at_eos": True},
    )
]


@dataclass(frozen=True)
class Act:
    at: int
    stream: int
    kind: str
    amount: int

    def commands(self, told: Told) -> list[api.StreamCommand]:
        stream = self.stream
        match self.kind:
            case "adjust":
                holds = told.submit.sampling.hold_at_eos  # which is a stream's own, for good
                sampling = SAMPLINGS[self.amount % len(SAMPLINGS)]
                return [api.Adjust(stream, structs.replace(sampling, hold_at_eos=holds))]
            case "hold" | "release":
                return [api.Pause(stream, release=self.kind == "release")]
            case "resume":
                return [api.Resume(stream)]
            case "rewind":
                return [api.Truncate(stream, max(0, len(told.tokens) - self.amount % 7))]
            case "ban":
                index = max(0, len(told.tokens) - 1 - self.amount % 3)
                return [api.Truncate(stream, index, ban=[*told.tokens[index:], toy_model.EOS][0])]
            case "inject" | "inject anew":
                put = PROMPTS[1][: 1 + self.amount % 9]
                return [api.Append(stream, put, grammar_anew=self.kind == "inject anew")]
            case "put in place":
                behind = told.known - len(told.submit.tokens) - self.amount % 5
                return [api.Append(stream, [97, 98][: self.amount % 3], behind=max(0, behind))]
            case "grant":
                return [api.Grant(stream, len(told.tokens) + self.amount)]
            case _:
                return [api.Cancel(stream)]


KINDS = ["adjust", "adjust", "hold", "resume", "resume", "release", "rewind", "inject", "grant"]
RARE = ["cancel", "ban", "ban", "inject anew", "inject anew", "put in place", "put in place"]
acts = st.builds(
    Act,
    at=st.integers(0, STEPS - 1),
    stream=st.integers(0, 3),
    kind=st.sampled_from(KINDS * 3 + RARE),
    amount=st.integers(0, 20),
)
starts = st.builds(
    api.Submit,
    stream=st.just(0),
    tokens=st.sampled_from(PROMPTS),
    sampling=st.sampled_from(SAMPLINGS),
    credit=st.sampled_from([0, 5, 1000, 1000]),
    priority=st.sampled_from([0, 0, 1]),
    tenant=st.sampled_from([0, 0, 1]),
    cache_of=st.sampled_from([None, 0]),
)


def play(
    limits: Limits,
    faults: dict[str, int],
    submits: list[api.Submit],
    every: list[Act],
    memory: Limits | None = None,
) -> Driver:
    """`memory`: of a model that drafts, and is now and then wrong."""
    driver = Driver(engine_of(TOY, limits, lambda runner: FaultyRunner(runner, **faults)))
    if memory is not None:
        draft_by(driver.engine, engine_of(TOY, memory), wrong=3, beside_lookup=True)
    for stream, submit in enumerate(submits):
        driver.send(structs.replace(submit, stream=stream))
    for step in range(STEPS):
        for act in every:
            told = driver.told.get(act.stream)
            if act.at == step and told is not None and told.finish is None:
                driver.send(*act.commands(told))
        driver.step()
    left = [stream for stream, told in driver.told.items() if told.finish is None]
    driver.settle(*(api.Resume(stream) for stream in left), *(api.Grant(stream, 1000) for stream in left))
    for stream, sequence in driver.engine.scheduler.sequences.items():
        assert sequence.paused, "nobody waits, but who is held before its end"
        assert not driver.told[stream].awaited
    return driver


def grammars_of(driver: Driver) -> bool:
    """Whether any stream followed one: then its rows may have been given up for that."""
    asked = [told.submit.sampling for told in driver.told.values()]
    commands = [command for told in driver.told.values() for _, command, _ in told.steered]
    asked += [command.sampling for command in commands if isinstance(command, api.Adjust)]
    return any(sampling.grammar for sampling in asked)


class Replay:
    """One thing at a time: each stretch between two commands is a stream of its own, rebuilt from what stood
    then."""

    def __init__(self) -> None:
        self._driver = Driver(engine_of(TOY, replace(PLENTY, kv_tokens=16384, make_lookout=AtOnceThreads)))
        self._numbers = itertools.count()

    def check(self, told: Told, context: int) -> None:
        prompt, stands = told.submit.tokens, Stood(told.submit.sampling)
        for stood, command, change in told.steered:
            stretch = self._stretch(stands.submit(next(self._numbers), prompt, len(stood)))
            assert stretch.tokens == stood[len(stands.tokens) :]
            assert stretch.finish is None or stretch.finish.reason == "length", "an end token is the end"
            stands.tokens = list(stood)
            stands.follow(command, change)
            assert change.index == len(stands.tokens)
        failed = (
            told.finish is not None and told.finish.reason == "error"
        )  # by its grammar, at the next token
        stretch = self._stretch(stands.submit(next(self._numbers), prompt, len(told.tokens) + failed))
        assert stretch.tokens == told.tokens[len(stands.tokens) :]
        if told.finish != api.Finish("cancelled") and told.known < context:
            assert stretch.finish == told.finish

    def _stretch(self, submit: api.Submit) -> Told:
        engine = self._driver.engine
        engine.send([submit])
        told = Told(submit, submit.credit)
        while True:
            for news in engine.step().news:
                if news.stream == submit.stream:
                    told.tokens += news.tokens
                    told.finish = news.finish
            if engine.idle:
                break
        engine.send([api.Cancel(submit.stream)])
        engine.step()
        return told


def test_tokens_follow_from_the_answers_that_were_told() -> None:
    happened = Counter[str]()

    @settings(
        max_examples=int(EXAMPLES or 60),
        derandomize=EXAMPLES is None,
        database=None,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(
        st.sampled_from(LIMITS),
        st.sampled_from(["overlap", "lookup", "model"]),
        st.sampled_from(LIMITS),
        st.sampled_from([{}, {}, {"max_rows": 1}, {"max_rows": 2}, {"max_sound": 1}]),
        st.lists(starts, min_size=1, max_size=4),
        st.lists(acts, min_size=15, max_size=50),
    )
    def hold_against_one_thing_at_a_time(
        limits: Limits,
        manner: str,
        memory: Limits,
        faults: dict[str, int],
        submits: list[api.Submit],
        every: list[Act],
    ) -> None:
        overlap = manner == "overlap"
        limits = replace(limits, overlap=overlap, drafts=not overlap)
        driver = play(limits, faults, submits, every, memory if manner == "model" else None)
        replay = Replay()
        for told in driver.told.values():
            replay.check(told, driver.engine.runner.context)
        discarded = sum(output.stats.discarded for output in driver.outputs)
        if limits.kv_tokens == PLENTY.kv_tokens and not faults and not grammars_of(driver):
            assert discarded <= len(every) + len(driver.told), "one a control, and one an end"
        happened.update(
            discarded=discarded,
            preempted=driver.stats.preemptions_total,
            evicted=driver.stats.evictions_total,
            failed=getattr(driver.engine.runner, "shortages", 0),
            eos=len(driver.ended("eos")),
            held=len(driver.engine.scheduler.sequences),
            refused=sum(
                isinstance(change, api.Refused) for told in driver.told.values() for change in told.changes
            ),
            loaded=getattr(driver.engine._swapping._copier, "loaded", 0),
            right=driver.stats.accepted_total,
            right_by_model=driver.stats.model_accepted_total,
            wrong_by_model=driver.stats.model_drafted_total - driver.stats.model_accepted_total,
            wrong=driver.stats.drafted_total - driver.stats.accepted_total,
        )

    hold_against_one_thing_at_a_time()
    assert all(
        happened[event]
        for event in (
            "discarded",
            "preempted",
            "failed",
            "eos",
            "held",
            "refused",
            "loaded",
            "right",
            "wrong",
            "right_by_model",
            "wrong_by_model",
        )
    ), happened
