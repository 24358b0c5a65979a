"""Grammars under steering: a matcher that went back is like one that never went there; a stream's text
depends neither on whether forced tokens are sampled, nor on who else is there, nor on how steps overlap; and
where it ended, it is what its grammars say."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from engine import api
from engine.step.matcher_threads import MatcherThreads
from engine.structure.matcher import Matcher
from midstream.protocol import Grammar
from realtime.text.grammar import source_of
from tests.fakes.at_once_threads import AtOnceThreads
from tests.fakes.engine_driver import TOY, Driver, Limits, engine_of
from tests.fakes.grammars import MANY, matches, told, walk
from tests.fakes.ranks_in_step import Ranks
from tests.fakes.small_tokenizers import toy_vocabulary

ENDS = toy_vocabulary().ends
PROMPT = [72, 101, 300]
MOST = 60
Steer = tuple[str, int, int]  # what, at how many more tokens, and a number


@given(st.sampled_from(MANY), st.randoms(use_true_random=False), st.lists(st.integers(0, 30), max_size=6))
@settings(max_examples=60)
def test_a_matcher_that_went_back_is_as_one_that_never_went_on(
    grammar: Grammar, chance: random.Random, ways: list[int]
) -> None:
    source = source_of(grammar)
    matcher, tokens = Matcher(source, toy_vocabulary()), list[int]()
    for way in ways:
        tokens += walk(matcher, way, chance, ENDS) if not ENDS.intersection(tokens) else []
        back = chance.randint(0, len(tokens))
        matcher.back(back)
        del tokens[len(tokens) - back :]
        fresh = Matcher(source, toy_vocabulary())
        fresh.accept(tokens)
        assert matcher.mask() == fresh.mask()
        assert fresh.forced()[: len(matcher.forced())] == matcher.forced(), "it may have looked before"


@dataclass(frozen=True)
class Way:
    """How the same stream is run."""

    overlap: bool = False
    drafts: bool = False
    force: bool = True
    crowd: int = 0
    at_once: bool = False
    ranks: bool = False  # two of them, in step
    step_tokens: int = 24


WAYS = [
    Way(force=False),
    Way(overlap=True),
    Way(overlap=True, force=False, crowd=3),
    Way(crowd=5, step_tokens=12),
    Way(overlap=True, crowd=5),
    Way(at_once=True),
    Way(drafts=True),
    Way(drafts=True, force=False, crowd=3),
    Way(drafts=True, at_once=True, crowd=5, step_tokens=12),
    Way(at_once=True, overlap=True),
    Way(ranks=True, crowd=3),
    Way(ranks=True, overlap=True, crowd=5, step_tokens=12),
    Way(ranks=True, overlap=True, force=False),
]


def run(way: Way, start: int | None, script: list[Steer], seed: int) -> tuple[list[int], list[str], object]:
    """The stream's tokens, what its steering was answered, and its end. It is steered where it has no
    credit: at the same indices, however it is run."""
    sampling = api.Sampling(seed=seed, temperature=2.0, max_tokens=MOST, grammar=_of(start, way))
    limits = Limits(
        kv_tokens=4096,
        step_tokens=way.step_tokens,
        overlap=way.overlap,
        drafts=way.drafts,
        make_lookout=AtOnceThreads if way.at_once else MatcherThreads,
    )
    driver = Driver(Ranks(limits).first if way.ranks else engine_of(TOY, limits))
    for at in range(way.crowd):
        grammar = told(MANY[at % len(MANY)]) if at % 2 else None
        other = api.Sampling(seed=seed + at, temperature=1.5, max_tokens=25, grammar=grammar)
        driver.send(api.Submit(100 + at, [*PROMPT, at], other, 25))
    driver.send(api.Submit(1, PROMPT, sampling, 0))
    stream = driver.told[1]
    for what, more, number in script:
        settle(driver, api.Grant(1, len(stream.tokens) + more))
        if stream.finish:
            break
        match what:
            case "adjust":
                sampling = replace(sampling, grammar=_of(None if number % 4 == 0 else number, way))
                settle(driver, api.Adjust(1, sampling))
            case "rewind":
                settle(driver, api.Truncate(1, number % (len(stream.tokens) + 1)))
            case "inject":
                settle(driver, api.Append(1, [44, 32], number % 2 == 0))
            case "inject at":
                behind = number % (len(stream.tokens) + sum(len(put) for _, put in stream.injections) + 1)
                settle(driver, api.Append(1, [44, 32], number % 2 == 0, behind))
            case "release":
                settle(driver, api.Pause(1, True), api.Resume(1))
    settle(driver, api.Grant(1, 1000))
    return stream.tokens, [repr(change) for change in stream.changes], stream.finish


def _of(number: int | None, way: Way) -> api.Grammar | None:
    return None if number is None else told(MANY[number % len(MANY)], force=way.force)


def settle(driver: Driver, *commands: api.StreamCommand) -> None:
    """Until stream 1 has nothing to do, whatever others do."""
    driver.settle(*commands)


SCRIPTS = st.lists(
    st.tuples(
        st.sampled_from(["adjust", "rewind", "inject", "inject at", "release", "nothing"]),
        st.integers(0, 12),
        st.integers(0, 40),
    ),
    max_size=6,
)


@pytest.mark.parametrize("way", WAYS, ids=str)
@given(start=st.none() | st.integers(0, len(MANY) - 1), script=SCRIPTS, seed=st.integers(0, 999))
@settings(max_examples=8)
def test_a_stream_is_the_same_however_it_is_run(
    way: Way, start: int | None, script: list[Steer], seed: int
) -> None:
    tokens, answers, end = run(Way(), start, script, seed)
    again, same_answers, same_end = run(way, start, script, seed)
    assert again == tokens
    assert [a for a in same_answers if "Resumed" not in a] == [a for a in answers if "Resumed" not in a]
    assert same_end == end


@given(
    number=st.integers(0, len(MANY) - 1),
    backs=st.lists(st.integers(0, 40), max_size=4),
    seed=st.integers(0, 999),
)
@settings(max_examples=30)
def test_what_ended_is_what_its_grammar_says(number: int, backs: list[int], seed: int) -> None:
    script: list[Steer] = [("rewind", 9, back) for back in backs]
    tokens, _, end = run(Way(), number, script, seed)
    if end == api.Finish("eos"):
        assert matches(MANY[number], tokens, toy_vocabulary())
    else:
        assert (end, len(tokens)) == (api.Finish("length"), MOST)
