"""Steering beside what is in flight: whatever crosses what, tokens follow from the answers that were told.

An engine that overlaps its steps, or drafts, is steered at random, also where memory is short and steps fail.
Each stream's answers say at which token its commands took effect; steered at just those tokens, an engine
that does one thing at a time must say the same.

Examples are the same in every run; `MIDSTREAM_EXAMPLES=500` looks further, at others each time.
"""

from __future__ import annotations

import itertools
import os
from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine import api, toy_model
from tests.fakes.draft_models import draft_by
from tests.fakes.engine_driver import PLENTY, TOY, Driver, Injections, Limits, Told, engine_of
from tests.fakes.faulty_runner import FaultyRunner

EXAMPLES = os.environ.get("MIDSTREAM_EXAMPLES")
STEPS = 40  # how long it is steered; then everybody may run to the end
LIMITS = [PLENTY, Limits(kv_tokens=512, step_tokens=24), Limits(kv_tokens=96, step_tokens=9, batch_rows=3)]
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
                return [api.Adjust(stream, SAMPLINGS[self.amount % len(SAMPLINGS)])]
            case "hold" | "release":
                return [api.Pause(stream, release=self.kind == "release")]
            case "resume":
                return [api.Resume(stream)]
            case "rewind":
                return [api.Truncate(stream, max(0, len(told.tokens) - self.amount % 7))]
            case "inject":
                return [api.Append(stream, PROMPTS[1][: 1 + self.amount % 9])]
            case "grant":
                return [api.Grant(stream, len(told.tokens) + self.amount)]
            case _:
                return [api.Cancel(stream)]


KINDS = ["adjust", "adjust", "hold", "resume", "resume", "release", "rewind", "inject", "grant"]
acts = st.builds(
    Act,
    at=st.integers(0, STEPS - 1),
    stream=st.integers(0, 3),
    kind=st.sampled_from(KINDS * 3 + ["cancel"]),
    amount=st.integers(0, 20),
)
starts = st.builds(
    api.Submit,
    stream=st.just(0),
    tokens=st.sampled_from(PROMPTS),
    sampling=st.sampled_from(SAMPLINGS),
    credit=st.sampled_from([0, 5, 1000, 1000]),
    priority=st.sampled_from([0, 0, 1]),
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
        driver.send(api.Submit(stream, submit.tokens, submit.sampling, submit.credit, submit.priority))
    for step in range(STEPS):
        for act in every:
            told = driver.told.get(act.stream)
            if act.at == step and told is not None and told.finish is None:
                driver.send(*act.commands(told))
        driver.step()
    left = [stream for stream, told in driver.told.items() if told.finish is None]
    driver.settle(*(api.Resume(stream) for stream in left), *(api.Grant(stream, 1000) for stream in left))
    return driver


class Replay:
    """One thing at a time: each stretch between two commands is a stream of its own, rebuilt from what stood
    then."""

    def __init__(self) -> None:
        self._driver = Driver(engine_of(TOY, replace(PLENTY, kv_tokens=16384)))
        self._numbers = itertools.count()

    def check(self, told: Told, context: int) -> None:
        tokens, injections, sampling = list[int](), Injections(), told.submit.sampling
        for stood, command, change in told.steered:
            stretch = self._stretch(told.submit.tokens, tokens, injections, sampling, len(stood))
            assert stretch.tokens == stood[len(tokens) :]
            assert stretch.finish is None or stretch.finish.reason == "length", "an end token is the end"
            tokens = stood[: change.index]
            match command, change:
                case api.Adjust(sampling=asked), _:
                    sampling = asked
                case api.Append(tokens=put), api.Appended():
                    injections.append((len(tokens), put))
                case api.Truncate(), _:
                    injections = [(before, put) for before, put in injections if before <= len(tokens)]
        stretch = self._stretch(told.submit.tokens, tokens, injections, sampling, len(told.tokens))
        assert stretch.tokens == told.tokens[len(tokens) :]
        if told.finish != api.Finish("cancelled") and told.known < context:
            assert stretch.finish == told.finish

    def _stretch(
        self, prompt: list[int], output: list[int], injections: Injections, sampling: api.Sampling, upto: int
    ) -> Told:
        context, at = list(prompt), 0
        for index, put in injections:
            context += [*output[at:index], *put]
            at = index
        number = next(self._numbers)
        submit = api.Submit(
            number,
            [*context, *output[at:]],
            sampling,
            credit=upto,
            prompt=len(prompt),
            injections=[(index, len(put)) for index, put in injections],
        )
        engine = self._driver.engine
        engine.send([submit])
        told = Told(submit, upto)
        while True:
            for news in engine.step().news:
                if news.stream == number:
                    told.tokens += news.tokens
                    told.finish = news.finish
            if engine.idle:
                break
        engine.send([api.Cancel(number)])
        engine.step()
        return told


def test_tokens_follow_from_the_answers_that_were_told() -> None:
    happened = Counter[str]()

    @settings(
        max_examples=int(EXAMPLES or 150),
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
        if limits.kv_tokens == PLENTY.kv_tokens and not faults:
            assert discarded <= len(every) + len(driver.told), "one a control, and one an end"
        happened.update(
            discarded=discarded,
            preempted=driver.stats.preemptions_total,
            evicted=driver.stats.evictions_total,
            failed=getattr(driver.engine.runner, "shortages", 0),
            eos=len(driver.ended("eos")),
            right=driver.stats.accepted_total,
            right_by_model=driver.stats.model_accepted_total,
            wrong_by_model=driver.stats.model_drafted_total - driver.stats.model_accepted_total,
            wrong=driver.stats.drafted_total - driver.stats.accepted_total,
            twice=sum(
                len({news.stream for news in output.news}) < len(output.news) for output in driver.outputs
            ),
        )

    hold_against_one_thing_at_a_time()
    assert all(
        happened[event]
        for event in (
            "discarded",
            "preempted",
            "failed",
            "eos",
            "twice",
            "right",
            "wrong",
            "right_by_model",
            "wrong_by_model",
        )
    ), happened
