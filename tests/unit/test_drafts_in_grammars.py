"""Drafts of streams that follow a grammar: each position has the mask that it would have had without."""

from __future__ import annotations

import random
from collections.abc import Sequence as Several
from dataclasses import replace

import pytest
import torch
from msgspec.structs import replace as with_

from engine import api, toy_model
from engine.forward.interface import Runner
from engine.schedule.batch import Row
from engine.structure.mask import alone
from engine.structure.matcher import Matcher
from midstream.protocol import Grammar
from realtime.text.grammar import source_of
from tests.fakes.at_once_threads import AtOnceThreads
from tests.fakes.draft_models import draft_by
from tests.fakes.engine_driver import PLENTY, TOY, Driver, engine_of
from tests.fakes.faulty_runner import FaultyRunner
from tests.fakes.grammars import MANY, told, walk
from tests.fakes.small_tokenizers import toy_vocabulary

PROMPT = [72, *b"abcab, abcab, abcac, abcab, "]
SOME = api.Sampling(
    seed=3, max_tokens=40, logprobs=2, grammar=told(Grammar(regex="(abca[bc], ){1,6}end"), force=False)
)
ANY = with_(SOME, grammar=told(Grammar(regex="[ab]{12,30}c")), logit_bias={97: 9.0, 98: 9.0, 99: 5.0})
SAMPLINGS = [
    SOME,
    with_(SOME, seed=4, min_tokens=20),
    ANY,
    with_(ANY, temperature=0.0, repetition_penalty=1.05),
    with_(ANY, seed=7, ignore_eos=True, logit_bias={**ANY.logit_bias, toy_model.EOS: 4.0}),
    with_(ANY, seed=8, grammar=None),
]

# It waits for what is under way before it plans, so that no thread's pace counts.
AT_NO_PACE = replace(PLENTY, make_lookout=AtOnceThreads)


def ran(drafts: bool, architecture: str = TOY, *, by_model: bool = False) -> Driver:
    driver = Driver(engine_of(architecture, replace(PLENTY, drafts=drafts)))
    if by_model:
        draft_by(driver.engine, engine_of(architecture, PLENTY), wrong=3)
    for stream, sampling in enumerate(SAMPLINGS):
        driver.send(api.Submit(stream, [stream + 1, *PROMPT], sampling, credit=99))
    driver.settle()
    return driver


@pytest.mark.parametrize("by_model", [False, True])
@pytest.mark.parametrize("architecture", [TOY, "llama"])
def test_streams_come_to_what_they_come_to_without(architecture: str, by_model: bool) -> None:
    without, driver = ran(False, architecture), ran(True, architecture, by_model=by_model)
    for stream in range(len(SAMPLINGS)):
        assert driver.told[stream].tokens == without.told[stream].tokens
        assert driver.told[stream].finish == without.told[stream].finish
        if architecture == TOY:
            assert driver.told[stream].logprobs == without.told[stream].logprobs
    assert 0 < driver.stats.accepted_total < driver.stats.drafted_total


def test_of_drafts_along_what_is_forced_it_is_looked_once_what_that_is() -> None:
    matcher = Matcher(source_of(Grammar(regex="a(bcd){80}e")), toy_vocabulary())
    matcher.accept([*b"a"])
    matcher.mask()
    made = matcher.masks_made
    matcher.expect((*b"bcdbcdbcdbcdbcdb",))
    masks = matcher.masks_ahead()
    assert matcher.masks_made - made < 5
    for mask, forced in zip(masks, b"cdbcdbcdbcdbcdbc", strict=True):
        assert mask == alone(forced, toy_model.VOCAB)


def test_drafts_spare_a_stream_in_a_grammar_its_steps() -> None:
    steps = []
    for drafts in (False, True):
        driver = Driver(engine_of(TOY, replace(AT_NO_PACE, drafts=drafts)))
        driver.settle(api.Submit(0, PROMPT, SOME, credit=99))
        steps.append(len(driver.outputs))
    assert steps[1] < 0.6 * steps[0]


def test_where_a_guard_leaves_nothing_the_stream_ends_as_without() -> None:
    ends = []
    for drafts in (False, True):
        driver = Driver(engine_of(TOY, replace(PLENTY, drafts=drafts)))
        banned = [(9, token) for token in range(toy_model.VOCAB)]
        submit = api.Submit(0, PROMPT, ANY, credit=99, bans=banned)
        driver.settle(submit)
        ends.append((driver.told[0].tokens, driver.told[0].finish))
    assert ends[0] == ends[1]
    assert "banned at token 9" in str(ends[0][1])


@pytest.mark.parametrize("grammar", MANY, ids=str)
def test_masks_ahead_are_those_that_come_and_leave_nothing_behind(grammar: Grammar) -> None:
    source, vocabulary = source_of(grammar), toy_vocabulary()
    for seed in range(5):
        tokens = walk(Matcher(source, vocabulary), 12, random.Random(seed), vocabulary.ends)
        start = len(tokens) // 3
        inside = [token for token in tokens[start:] if token not in vocabulary.ends]
        matcher, follower = Matcher(source, vocabulary), Matcher(source, vocabulary)
        for one in (matcher, follower):
            one.accept(tokens[:start])
        before = matcher.mask()
        matcher.expect((*inside, 0, 0))  # which no text has
        if any(word in str(grammar) for word in ("max_tokens", "stop")):  # the library cannot go back
            assert matcher.masks_ahead() == []
            continue
        *ahead, wrong, behind_wrong = matcher.masks_ahead()
        assert matcher.mask() == before
        assert matcher.masks_ahead() == []
        for token, mask in zip(inside, ahead, strict=True):
            follower.accept([token])
            assert mask == follower.mask()
        assert wrong is behind_wrong is None


class Watched(FaultyRunner):
    """Notes whether work at a draft's masks is left to be given out when the model computes."""

    def __init__(self, inner: Runner) -> None:
        super().__init__(inner)
        self.left: list[bool] = []

    def forward(self, rows: Several[Row]) -> torch.Tensor:
        self.left += [row.sequence.constraint.due for row in rows if row.drafts and row.sequence.constraint]
        return super().forward(rows)


def test_masks_behind_drafts_are_filled_while_the_model_computes() -> None:
    driver = Driver(engine_of(TOY, replace(AT_NO_PACE, drafts=True), Watched))
    driver.settle(api.Submit(0, PROMPT, SOME, credit=99))
    assert isinstance(driver.engine.runner, Watched)
    assert driver.engine.runner.left
    assert not any(driver.engine.runner.left)
