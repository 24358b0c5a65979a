"""Grammars in the engine: how they begin and end, what they force, what fits into them, and whom a bad one
hurts. On the toy; `tests/properties/test_grammars.py` tries them in every order."""

from __future__ import annotations

import gc
import itertools
import threading
import tracemalloc
import weakref
from collections.abc import Iterable
from concurrent.futures import Future, wait
from threading import Event
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from engine import api, toy_model
from engine.schedule.batch import Row
from engine.step.command_queue import CommandQueue
from engine.step.matcher_threads import PIECE, PIECE_S, MatcherThreads
from engine.step.patience import Patience
from engine.structure.constraint import Constraint
from engine.structure.matcher import MOST_FORCED, GrammarError, Matcher
from midstream.protocol import Grammar
from tests.fakes.engine_driver import TOY, Driver, Limits, engine_of, greedy
from tests.fakes.grammars import LIST, PERSON, matches, told
from tests.fakes.ranks_in_step import Ranks
from tests.fakes.small_tokenizers import toy_vocabulary

PROMPT = [72, 101, 300]
JSON = Grammar(json_schema=PERSON)
SOME = api.Sampling(seed=3, temperature=2.0, max_tokens=90, grammar=told(JSON))
OF_ITSELF = {  # behind a key, where no first step comes to it
    "type": "object",
    "properties": {"a": {"$ref": "#/$defs/a"}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"a": {"$ref": "#/$defs/a"}},
}
OVERLAPS = pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])


def new(overlap: bool = False) -> Driver:
    return Driver(engine_of(TOY, Limits(kv_tokens=4096, overlap=overlap)))


def threads_of(driver: Driver) -> MatcherThreads:
    threads = driver.engine._constraining._lookout
    assert isinstance(threads, MatcherThreads)
    return threads


def regex(text: str, **params: Any) -> api.Sampling:
    return replace(SOME, **{"grammar": told(Grammar(regex=text)), **params})


def text_of(driver: Driver, stream: int = 1) -> str:
    tokens = [token for token in driver.told[stream].tokens if token != toy_model.EOS]
    return toy_vocabulary().tokenizer.decode_str(tokens)


def forced(driver: Driver) -> int:
    return sum(news.forced for output in driver.outputs for news in output.news)


def rows(driver: Driver) -> int:
    return sum(output.stats.decode_rows + output.stats.prefill_rows for output in driver.outputs)


@OVERLAPS
def test_what_is_forced_is_not_computed_token_by_token(overlap: bool) -> None:
    driver, sampled = new(overlap), new(overlap)
    driver.settle(api.Submit(1, PROMPT, SOME, 1000))
    assert driver.told[1].finish == api.Finish("eos")
    assert matches(JSON, driver.told[1].tokens, toy_vocabulary())
    sampled.settle(api.Submit(1, PROMPT, replace(SOME, grammar=told(JSON, force=False)), 1000))
    assert sampled.told[1].tokens == driver.told[1].tokens
    assert forced(sampled) == 0
    assert forced(driver) > len(driver.told[1].tokens) / 2
    assert rows(driver) < rows(sampled) / 2


def test_what_is_forced_stays_within_credit_and_max_tokens() -> None:
    driver = new()
    driver.settle(api.Submit(1, PROMPT, regex("abcdefghij"), 4))
    assert text_of(driver) == "abcd"
    driver.settle(api.Grant(1, 5))
    assert text_of(driver) == "abcde"
    driver.settle(api.Adjust(1, regex("abcdefghij", max_tokens=7)), api.Grant(1, 1000))
    assert text_of(driver) == "abcdefg"
    assert driver.told[1].finish == api.Finish("length")


def test_very_much_that_is_forced_comes_in_pieces_and_is_the_same() -> None:
    written = f"(ab cd ef ){{{MOST_FORCED // 2}}}"
    driver, sampled = new(), new()
    driver.settle(api.Submit(1, PROMPT, regex(written, max_tokens=2000), 2000))
    unforced = regex(written, grammar=told(Grammar(regex=written), force=False), max_tokens=2000)
    sampled.settle(api.Submit(1, PROMPT, unforced, 2000))
    assert driver.told[1].tokens == sampled.told[1].tokens
    assert driver.told[1].finish == api.Finish("eos")
    at_once = [news.forced for output in driver.outputs for news in output.news if news.forced]
    assert len(at_once) > 3
    assert max(at_once) <= 2 * MOST_FORCED, "a piece before a step, and one in it"


def test_logprobs_of_many_tokens_that_are_forced_at_once_are_put_behind_those_before() -> None:
    driver = new()
    lifecycle = driver.engine._lifecycle
    driver.send(api.Submit(1, PROMPT, replace(SOME, logprobs=1), credit=0))
    driver.step()
    sequence = driver.engine.scheduler.sequences[1]
    lifecycle.add_forced(sequence, [5])
    before = lifecycle.news(sequence).logprobs
    lifecycle.add_forced(sequence, [6, 7])
    assert lifecycle.news(sequence).logprobs is before, "else each would cost as much as all before it"
    assert before == [api.Logprob(0.0, [(token, 0.0)]) for token in (5, 6, 7)]


@OVERLAPS
@pytest.mark.parametrize("text", ["<|im_end|>", "a<|im_start|>b", "a<|im_end|>b", "ab<|bos|>"])
def test_what_is_forced_and_spells_a_special_token_is_text(text: str, overlap: bool) -> None:
    driver = new(overlap)
    driver.settle(api.Submit(1, PROMPT, replace(SOME, grammar=told(Grammar(choice=[text]))), 1000))
    assert driver.told[1].finish == api.Finish("eos")
    *tokens, end = driver.told[1].tokens
    assert end == toy_model.EOS
    assert bytes(tokens) == text.encode(), "bytes, each of which is a token"


def test_a_pause_stops_what_is_forced_as_well() -> None:
    driver = new()
    driver.settle(api.Submit(1, PROMPT, regex("abcdefghij"), 1000, paused=True))
    assert text_of(driver) == ""
    driver.settle(api.Resume(1))
    assert text_of(driver) == "abcdefghij"


@pytest.mark.parametrize("force", [False, True])
def test_log_probabilities_are_among_what_is_allowed(force: bool) -> None:
    driver = new()
    grammar = told(Grammar(regex="ab[cd]"), force=force)
    driver.settle(api.Submit(1, PROMPT, replace(SOME, grammar=grammar, logprobs=3), 1000))
    a, b, last, end = driver.told[1].logprobs
    assert (a, b, end) == (
        api.Logprob(0.0, [(97, 0.0)]),
        api.Logprob(0.0, [(98, 0.0)]),
        api.Logprob(0.0, [(toy_model.EOS, 0.0)]),
    )
    assert {token for token, _ in last.top} == {99, 100}


@OVERLAPS
def test_a_grammar_comes_and_goes_in_mid_stream(overlap: bool) -> None:
    driver = new(overlap)
    driver.settle(api.Submit(1, PROMPT, greedy(60), 10))
    driver.settle(
        api.Adjust(1, replace(greedy(60), grammar=told(Grammar(regex="[ab]{8}")))), api.Grant(1, 15)
    )
    driver.settle(api.Adjust(1, greedy(60)), api.Grant(1, 1000))
    assert [change.index for change in driver.told[1].changes] == [10, 15]
    tokens = driver.told[1].tokens
    assert set(tokens[10:15]) <= {97, 98}
    assert len(tokens) == 60
    assert not set(tokens[15:]) <= {97, 98}


@OVERLAPS
def test_the_token_in_flight_is_not_the_new_grammars(overlap: bool) -> None:
    driver = new(overlap)
    driver.send(api.Submit(1, PROMPT, greedy(60), 1000))
    driver.until(driver.has(1, 5))
    driver.settle(api.Adjust(1, replace(greedy(60), grammar=told(Grammar(regex="x[ab]{8}y")))))
    (change,) = driver.told[1].changes
    assert driver.told[1].tokens[change.index] == ord("x")


def test_a_rewind_to_before_its_beginning_begins_it_there() -> None:
    driver = new()
    driver.settle(api.Submit(1, PROMPT, greedy(60), 10))
    driver.settle(api.Adjust(1, replace(greedy(60), grammar=told(Grammar(regex="xyz")))), api.Grant(1, 12))
    driver.settle(api.Truncate(1, 4), api.Grant(1, 1000))
    assert driver.told[1].tokens[4:7] == [ord("x"), ord("y"), ord("z")]


@OVERLAPS
def test_an_injection_fits_or_is_refused_or_begins_it_anew(overlap: bool) -> None:
    driver = new(overlap)
    driver.settle(api.Submit(1, PROMPT, regex("ab[cd]{3}ef"), 3))
    assert text_of(driver)[:2] == "ab"
    driver.settle(api.Append(1, [122]), api.Append(1, [99, 100]), api.Pause(1))
    refused, fitted, paused = driver.told[1].changes
    assert isinstance(refused, api.Refused)
    assert (refused.reason, refused.index) == ("grammar", 3)
    assert fitted == api.Appended(3, 2)
    assert isinstance(paused, api.Paused)
    driver.settle(api.Resume(1), api.Grant(1, 5))
    assert text_of(driver)[3:] == "ef"
    driver.settle(api.Append(1, [122], True), api.Grant(1, 1000))
    assert text_of(driver)[5:7] == "ab"
    assert len(text_of(driver)) == 5 + 7
    assert driver.told[1].finish == api.Finish("eos")


@OVERLAPS
def test_what_takes_the_place_of_tokens_fits_or_nothing_changes(overlap: bool) -> None:
    driver, whole = new(overlap), new(overlap)
    for one in (driver, whole):
        one.settle(api.Submit(1, PROMPT, regex("ab[cd]{3}ef[gh]*"), 5))
    before = text_of(driver)
    driver.settle(api.Append(1, [122], behind=3), api.Append(1, [97], behind=0))
    refused, began = driver.told[1].changes
    assert isinstance(refused, api.Refused)
    assert (refused.reason, refused.index) == ("grammar", 5)
    assert began == api.Appended(0, 1)
    driver.settle(api.Append(1, [99, 99, 100, 101], behind=2))  # behind what was put there, and one sampled
    assert driver.told[1].injections == [(0, [97]), (1, [99, 99, 100, 101])]
    driver.settle(api.Append(1, [], behind=3), api.Append(1, [100], behind=3))  # in the midst of that
    assert driver.told[1].injections == [(0, [97]), (1, [99]), (1, [100])]
    driver.settle(api.Grant(1, 9))
    assert text_of(driver)[0] == "b"
    assert text_of(driver)[2:4] == "ef"
    whole.settle(api.Append(1, [122], behind=3), api.Grant(1, 9))
    assert text_of(whole)[:5] == before
    assert text_of(whole)[5:7] == "ef", "it goes on as if nothing had been asked"


@OVERLAPS
def test_what_is_left_of_tokens_behind_which_it_began_anew_is_to_fit_as_well(overlap: bool) -> None:
    driver = new(overlap)
    driver.settle(api.Submit(1, PROMPT, regex("ab[cd]{3}e[fg]{4}h"), 2))
    driver.settle(api.Append(1, [122, 99], True), api.Append(1, [99], behind=3))
    assert [type(change) for change in driver.told[1].changes] == [api.Appended, api.Refused]
    driver.settle(api.Append(1, [99, 122], True, behind=2), api.Append(1, [100, 100, 101], behind=3))
    assert driver.told[1].injections == [(2, [99]), (2, [100, 100, 101])]
    driver.settle(api.Grant(1, 4))
    driver.settle(api.Truncate(1, 2), api.Grant(1, 1000))
    assert len(text_of(driver)) == 2 + 5, "of what was taken back nothing is left"
    assert driver.told[1].finish == api.Finish("eos")


@pytest.mark.parametrize("anew", [False, True])
def test_what_takes_the_place_of_all_behind_a_token_fits_as_it_would_behind_a_rewind(anew: bool) -> None:
    """Also where that is before the last beginning, or before the first."""
    for index in range(12):
        for tokens in (b"x", b"xy", b"a", b"ab", b"c"):
            driver, other = new(), new()
            for one in (driver, other):
                one.settle(api.Submit(1, PROMPT, greedy(60), 3))
                first, later = told(Grammar(regex="ab[cd]{6}ef")), told(Grammar(regex="xyz{3}"))
                one.settle(api.Adjust(1, replace(SOME, grammar=replace(first, later=later.source))))
                one.settle(api.Grant(1, 8), api.Append(1, [122], True), api.Grant(1, 11))
            other.settle(api.Truncate(1, index), api.Append(1, [*tokens], anew), api.Grant(1, 1000))
            before = list(driver.told[1].tokens)
            behind = index + (index >= 8)
            driver.settle(api.Append(1, [*tokens], anew, behind=behind))
            if isinstance(driver.told[1].changes[-1], api.Appended):
                driver.settle(api.Grant(1, 1000))
                assert driver.told[1].tokens == other.told[1].tokens, (index, tokens)
            else:
                assert any(isinstance(change, api.Refused) for change in other.told[1].changes)
                assert driver.told[1].tokens == before
                driver.settle(api.Grant(1, 1000))
                assert text_of(driver)[8:] == "xyzzz", "it goes on as if nothing had been asked"


def test_a_rewind_to_before_a_second_beginning_is_in_the_first() -> None:
    driver = new()
    driver.settle(api.Submit(1, PROMPT, regex("ab[cd]{6}ef"), 4))
    before = text_of(driver)
    driver.settle(api.Append(1, [122], True), api.Grant(1, 7))
    assert text_of(driver)[4:6] == "ab"
    driver.settle(api.Truncate(1, 3), api.Grant(1, 1000))
    assert text_of(driver)[:4] == before
    assert text_of(driver)[-2:] == "ef"
    assert len(text_of(driver)) == 10


@OVERLAPS
def test_in_the_midst_of_what_it_began_anew_behind_it_is_in_the_first_and_what_stays_is_of_that(
    overlap: bool,
) -> None:
    """As amending a call does that was put in: of the beginning before, and of one that is built anew."""
    driver, other = new(overlap), new(overlap)
    driver.settle(api.Submit(1, PROMPT, regex("ab[cd]{6}ef[gh]{9}"), 4))
    driver.settle(api.Append(1, [99, 100, 122, 122], True), api.Grant(1, 6))
    assert text_of(driver)[4:] == "ab"
    driver.settle(api.Append(1, [99], behind=7), api.Append(1, [122], behind=6))
    assert [type(change) for change in driver.told[1].changes[1:]] == [api.Refused, api.Refused]
    driver.settle(api.Append(1, [99, 100], behind=6), api.Grant(1, 9))
    assert driver.told[1].injections == [(4, [99, 100]), (4, [99, 100])]
    assert text_of(driver)[4:6] == "ef"
    known = driver.told[1].tokens[:4]
    tokens = [*PROMPT, *known, 99, 100, 99, 100]
    submit = api.Submit(1, tokens, driver.told[1].submit.sampling, 9, prompt=3, injections=[(4, 2), (4, 2)])
    other.send(submit)
    other.told[1].tokens, other.told[1].injections = list(known), [(4, [99, 100]), (4, [99, 100])]
    for one in (driver, other):
        one.settle()
        one.settle(api.Truncate(1, 5), api.Grant(1, 1000))
    assert driver.told[1].tokens == other.told[1].tokens
    assert text_of(driver)[4:6] == "ef"
    assert len(text_of(driver)) == 4 + 2 + 9


def test_where_it_begins_anew_it_may_be_another() -> None:
    first, later = told(Grammar(regex="ab[cd]{6}ef")), told(Grammar(regex="xyz{3}"))
    both = replace(SOME, grammar=replace(first, later=later.source))
    driver = new()
    driver.settle(api.Submit(1, PROMPT, both, 4))
    driver.settle(api.Append(1, [122], True), api.Grant(1, 6))
    assert text_of(driver)[4:] == "xy"
    driver.settle(api.Truncate(1, 4), api.Grant(1, 1000))
    assert text_of(driver)[4:] == "xyzzz"
    again = new()
    again.settle(api.Submit(1, PROMPT, both, 4))
    again.settle(api.Append(1, [122], True), api.Grant(1, 6))
    again.settle(api.Truncate(1, 3), api.Grant(1, 1000))
    assert text_of(again)[-2:] == "ef"


def test_a_stream_that_is_built_anew_goes_on_where_it_was() -> None:
    whole, parts, first = new(), new(), new()
    whole.settle(api.Submit(1, PROMPT, SOME, 9))
    whole.settle(api.Append(1, [122, 122], True), api.Grant(1, 14))
    known = list(whole.told[1].tokens)
    whole.settle(api.Grant(1, 1000))
    tokens = [*PROMPT, *known[:9], 122, 122, *known[9:]]
    submit = api.Submit(
        1, tokens, SOME, 14, prompt=len(PROMPT), injections=[(9, 2)], grammar_starts=(0, 9 + 2)
    )
    parts.send(submit)
    parts.told[1].tokens, parts.told[1].injections = list(known), [(9, [122, 122])]
    parts.settle()
    parts.settle(api.Grant(1, 1000))
    assert parts.told[1].tokens == whole.told[1].tokens
    parts.send(replace(submit, stream=2))
    parts.told[2].tokens, parts.told[2].injections = list(known), [(9, [122, 122])]
    parts.settle(api.Truncate(2, 8), api.Grant(2, 1000))
    first.settle(api.Submit(1, PROMPT, SOME, 1000))
    assert parts.told[2].tokens == first.told[1].tokens


# -- where grammars meet other parameters ------------------------------------------------------------


def test_an_end_that_is_forbidden_ends_the_stream_with_a_sentence() -> None:
    driver = new()
    driver.send(api.Submit(2, PROMPT, greedy(40), 1000))
    driver.settle(api.Submit(1, PROMPT, regex("ab", min_tokens=5), 1000))
    assert driver.told[1].tokens == [97, 98]
    assert driver.told[1].finish == api.Finish(
        "error", "The grammar leaves nothing but an end at token 2, and `min_tokens` is 5."
    )
    assert driver.told[2].finish == api.Finish("length")


def test_min_tokens_lets_a_grammar_go_on() -> None:
    driver = new()
    driver.settle(
        api.Submit(1, PROMPT, regex("a*", min_tokens=12, temperature=0, logit_bias={463: 90.0}), 1000)
    )
    assert text_of(driver) == "a" * 12


def test_a_bias_against_all_that_is_allowed_changes_nothing() -> None:
    driver = new()
    bias = {97: -100.0, 98: -100.0}
    driver.settle(api.Submit(1, PROMPT, regex("[ab]{5}", logit_bias=bias), 1000))
    assert len(text_of(driver)) == 5


def test_behind_an_end_that_is_ignored_everything_goes() -> None:
    driver = new()
    driver.settle(api.Submit(1, PROMPT, regex("abc", ignore_eos=True, max_tokens=30), 1000))
    assert driver.told[1].tokens[:4] == [97, 98, 99, toy_model.EOS]
    assert len(driver.told[1].tokens) == 30


# -- whom a bad one hurts ----------------------------------------------------------------------------


@OVERLAPS
@pytest.mark.parametrize(
    "source",
    [
        'start: "abc" X\nX: /[a-z]/ & /[0-9]/',
        'start: "ab" ' + '"c"? ' * 1200,
        "start: ((",
        "",
        told(Grammar(json_schema=OF_ITSELF)).source,
    ],
    ids=["no such token", "too large", "no grammar", "nothing", "of itself"],
)
def test_a_grammar_that_leads_nowhere_ends_its_own_stream(source: str, overlap: bool) -> None:
    driver = new(overlap)
    driver.send(api.Submit(2, PROMPT, greedy(40), 1000))
    bad = replace(SOME, grammar=api.Grammar(source))
    driver.settle(api.Submit(1, PROMPT, bad, 1000), api.Submit(3, PROMPT, SOME, 1000))
    finish = driver.told[1].finish
    assert finish is not None
    assert finish.reason == "error"
    assert finish.detail is not None
    assert finish.detail.startswith("The grammar")
    assert driver.told[2].finish == api.Finish("length")
    assert driver.told[3].finish == api.Finish("eos")


def broken(matcher: Matcher) -> bytes:
    raise BaseException("what a library of another language raises")


def test_a_matcher_that_breaks_ends_its_own_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = new()
    driver.settle(api.Submit(2, PROMPT, greedy(40), 10), api.Submit(1, PROMPT, SOME, 3))
    monkeypatch.setattr(Matcher, "mask", broken)
    driver.settle(api.Truncate(1, 0), api.Grant(1, 9), api.Grant(2, 40))
    assert driver.told[1].finish == api.Finish("error", "The grammar cannot be followed: its matcher failed.")
    assert driver.told[2].finish == api.Finish("length")


@OVERLAPS
@pytest.mark.parametrize("force", [True, False])
@pytest.mark.parametrize("step", ["__init__", "accept", "mask"])
def test_nobody_waits_for_a_matcher(
    step: str, force: bool, overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not while it compiles, nor while it follows, nor while it fills a mask."""
    done, original = threading.Event(), getattr(Matcher, step)

    def waits(*arguments: Any) -> Any:
        assert done.wait(60)
        return original(*arguments)

    driver = new(overlap)
    driver.send(api.Submit(2, PROMPT, greedy(500), 1000))
    driver.until(driver.has(2, 3))
    monkeypatch.setattr(Matcher, step, waits)
    grammar = told(Grammar(json_schema=LIST), force=force)
    driver.send(api.Submit(1, PROMPT, replace(SOME, grammar=grammar), 1000))
    driver.step()
    before = len(driver.told[2].tokens)
    driver.step(20)
    assert len(driver.told[2].tokens) == before + 20
    assert driver.told[1].finish is None
    done.set()
    driver.until(lambda: driver.told[1].finish is not None)
    assert driver.told[1].finish == api.Finish("eos")


def test_what_grammars_keep_is_given_back_beside_the_steps() -> None:
    """A large one has some thousands of pieces of memory, and those of very many streams that end in a step
    took a fifth of a second."""
    driver, freed = new(), list[int]()
    sampling = regex("[ab]{40}", max_tokens=4)
    submits = [api.Submit(stream, PROMPT, sampling, 3, tenant=stream) for stream in (1, 2, 3)]
    driver.settle(*submits)
    gone = threading.Semaphore(0)

    def went() -> None:
        freed.append(threading.get_ident())
        gone.release()

    for sequence in driver.engine.scheduler.sequences.values():
        assert sequence.constraint is not None
        weakref.finalize(sequence.constraint._matcher, went)
    del sequence
    driver.settle(*(api.Grant(submit.stream, 10) for submit in submits))
    assert all(gone.acquire(timeout=10) for _ in submits)
    assert threading.get_ident() not in freed


def test_what_many_grammars_keep_is_given_back_in_one_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Were it one for each, what their tenant begins next would wait for as many of others' to be
    compiled."""
    driver, go, others, turns = new(), threading.Event(), list[bool](), list[int]()
    sampling, compiles = regex("[ab]{40}", max_tokens=4), Matcher.__init__
    submits = [api.Submit(stream, PROMPT, sampling, 3, tenant=1) for stream in range(1, 21)]
    driver.settle(*submits)
    for _ in range(50):
        threads_of(driver)._compiling.submit(lambda: others.append(go.wait(60)), 2)
    driver.settle(*(api.Grant(submit.stream, 10) for submit in submits))

    def compiled(*arguments: Any) -> None:
        turns.append(len(others))
        compiles(*arguments)

    monkeypatch.setattr(Matcher, "__init__", compiled)
    driver.send(api.Submit(99, PROMPT, sampling, 3, tenant=1))
    driver.step()
    go.set()
    driver.until(lambda: bool(driver.told[99].tokens))
    assert turns == [2], "the one that was under way, and one more"


def test_a_long_text_that_is_yet_to_be_followed_is_numbers_and_no_objects() -> None:
    """Of forks of a stream with a grammar each had ten times what their tokens take, for as long as others'
    were worked at."""
    driver, go = Driver(engine_of(TOY, Limits(kv_tokens=65536))), threading.Event()
    threads_of(driver)._compiling.submit(lambda: go.wait(60), 2)
    tokens = [*PROMPT, *range(1000, 31000)]
    driver.send(
        api.Submit(1, tokens, regex("a", max_tokens=60_000), 0, prompt=3, grammar_starts=(0,), paused=True)
    )
    tracemalloc.start()
    try:
        driver.step()
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert 1 in driver.engine.scheduler.sequences
    assert taken < 16 * len(tokens)
    go.set()


def test_masks_are_filled_while_the_model_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nothing is forced: a mask that is there only behind the forward costs no step."""
    launched, original = threading.Semaphore(0), Matcher.mask

    def waits(matcher: Matcher) -> bytes | None:
        assert launched.acquire(timeout=10)
        return original(matcher)

    monkeypatch.setattr("engine.step.patience.MOST_S", 20.0)
    sampling = replace(SOME, grammar=told(Grammar(regex="[ab]{40}"), force=False))
    driver = new()
    driver.settle(api.Submit(1, PROMPT, sampling, 3))
    driver.send(api.Grant(1, 30))
    driver.step()
    monkeypatch.setattr(Matcher, "mask", waits)
    driver.step()  # by the mask that is known already
    forward = driver.engine.runner.forward

    def launches(rows: list[Row]) -> torch.Tensor:
        launched.release()
        return forward(rows)

    monkeypatch.setattr(driver.engine.runner, "forward", launches)
    before = len(driver.told[1].tokens)
    driver.step(20)
    assert len(driver.told[1].tokens) == before + 20
    launched.release()


def test_who_begins_waits_for_no_matcher_that_took_long_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.structure.constraint.LONG_S", -1.0)
    driver, blocked, done, original = new(), threading.Event(), threading.Event(), Matcher.accept
    driver.send(api.Submit(3, PROMPT, greedy(900), 900), api.Submit(1, PROMPT, SOME, 20))
    driver.until(driver.has(1, 20))
    constraint = driver.engine.scheduler.sequences[1].constraint
    assert constraint is not None
    assert constraint.slow

    def waits(matcher: Matcher, tokens: list[int]) -> None:
        if matcher is constraint._matcher:
            blocked.set()
            assert done.wait(60)
        original(matcher, tokens)

    monkeypatch.setattr(Matcher, "accept", waits)
    driver.send(api.Grant(1, 100))
    driver.until(blocked.is_set)
    driver.send(api.Submit(2, PROMPT, SOME, 100))
    driver.until(driver.has(2, 1))
    done.set()
    driver.until(lambda: driver.told[1].finish is not None and driver.told[2].finish is not None)


def test_a_tenant_waits_for_no_more_than_one_of_anothers_new_grammars(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, go, compiled, original = new(), threading.Event(), list[str](), Constraint._follow

    def follows(constraint: Constraint, *asked: Any) -> None:
        assert go.wait(60)
        if not constraint.compiled:
            compiled.append(constraint.source)
        original(constraint, *asked)

    monkeypatch.setattr(Constraint, "_follow", follows)
    asked = [told(Grammar(choice=[letter])) for letter in "abcdef"]
    for stream, grammar in enumerate(asked, 1):
        sampling = api.Sampling(max_tokens=1, grammar=grammar)
        driver.send(api.Submit(stream, PROMPT, sampling, 1, tenant=stream // len(asked)))
    driver.until(lambda: len(driver.engine.scheduler.sequences) == len(asked))
    go.set()
    driver.until(lambda: sum(one.finish is not None for one in driver.told.values()) == len(asked))
    assert compiled.index(asked[-1].source) <= 2


@pytest.mark.parametrize(("took_s", "most"), [(0.0, 2 * PIECE), (PIECE_S, PIECE // 2)])
def test_a_matcher_follows_before_most_of_another_tenants_crowd(
    took_s: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, go, followed, original = new(), threading.Event(), list[Constraint](), Constraint._follow
    crowd, alone = range(1, 6 * PIECE), 6 * PIECE
    sampling = replace(SOME, grammar=told(Grammar(regex="[ab]{40}"), force=False))
    for stream in [*crowd, alone]:
        driver.send(api.Submit(stream, PROMPT, sampling, 1, tenant=stream // alone))
    driver.until(lambda: all(driver.has(stream, 1)() for stream in [*crowd, alone]))

    def follows(constraint: Constraint, *asked: Any) -> None:
        assert go.wait(60)
        followed.append(constraint)
        original(constraint, *asked)

    sequences = driver.engine.scheduler.sequences
    constraints = [one for stream in [*crowd, alone] if (one := sequences[stream].constraint)]
    driver.until(lambda: all(one.known for one in constraints))  # else a thread would say another time
    for constraint in constraints:
        constraint.took_s = took_s
    monkeypatch.setattr(Constraint, "_follow", follows)
    driver.send(*(api.Grant(stream, 3) for stream in [*crowd, alone]))
    driver.step()
    go.set()
    driver.until(driver.has(alone, 3))
    assert followed.index(constraints[-1]) <= most


def test_a_tenants_grammars_have_a_part_of_anothers_time_that_has_grammars_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, original = new(), Patience.wait
    alone = list[int]()

    def waits(patience: Patience, jobs: Iterable[Future[None]], streams: int) -> None:
        unsettled = driver.engine._constraining._unsettled.values()
        alone.append(len({sequence.tenant for sequence in unsettled}))
        original(patience, jobs, streams)

    monkeypatch.setattr(Patience, "wait", waits)
    sampling = replace(SOME, grammar=told(Grammar(regex="[ab]{40}"), force=False))
    driver.send(*(api.Submit(stream, PROMPT, sampling, 40, tenant=stream % 2) for stream in range(1, 9)))
    driver.until(lambda: all(driver.has(stream, 30)() for stream in range(1, 9)))
    assert set(alone) <= {1}


def test_whoever_has_few_grammars_is_waited_for_first_and_with_a_patience_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waited = list[tuple[Patience, list[Future[None]]]]()
    monkeypatch.setattr(Patience, "wait_beside_others", lambda *of: waited.append(of))
    threads = MatcherThreads({}, wake=lambda: None, others=lambda streams: False)
    jobs = [Future[None]() for _ in range(5)]
    for _ in range(2):
        threads._await_each({job: (int(job is jobs[3]), {0}) for job in jobs})
    (one, few), (other, many), (again, _), (_, _) = waited
    assert (few, many) == (jobs[3:4], [*jobs[:3], jobs[4]])
    assert one is again is not other
    waited.clear()
    monkeypatch.setattr("engine.step.matcher_threads.MOST_S", 0.0)
    threads._await_each(dict.fromkeys(jobs, (0, {0})))
    assert not waited, "no longer than so long, however many tenants there are"


def test_what_is_answered_for_very_many_is_done_in_several_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 injections that were answered in one step held everybody's next tokens for 50 to 100 ms."""
    driver, streams = new(), range(1, 42)
    alone = streams[-1]
    starts = (
        api.Submit(stream, PROMPT, regex("[a-z]*"), 2, tenant=int(stream == alone)) for stream in streams
    )
    driver.settle(*starts)
    driver.send(*(api.Append(stream, [97, 98]) for stream in streams))
    driver.step()
    wait(threads_of(driver)._jobs.values())
    worked_ms = itertools.count()
    monkeypatch.setattr("time.perf_counter", lambda: next(worked_ms) / 1000)
    begun = len(driver.outputs)
    driver.settle()
    answered = [[news.stream for news in output.news if news.changes] for output in driver.outputs[begun:]]
    assert max(map(len, answered)) <= 12
    assert alone in answered[0], "and nobody waits for another's crowd"
    assert all(driver.told[stream].injections == [(2, [97, 98])] for stream in streams)


class LookedThrough(dict[int, Future[None]]):
    """Jobs by stream, and how many times all of them were looked at."""

    times = 0

    def values(self) -> Any:
        self.times += 1
        return super().values()


def test_what_is_given_to_the_threads_costs_nothing_for_streams_that_stand_idle() -> None:
    """There may be thousands beside those that decode, which may be of a tenant each."""
    driver = new()
    jobs = threads_of(driver)._jobs = LookedThrough()
    for stream in range(8):
        driver.settle(api.Submit(stream, PROMPT, regex("[a-z]{50}"), 1, tenant=stream))
    driver.settle(api.Grant(1, 5), api.Grant(2, 5), api.Cancel(3))
    assert len(driver.told[1].tokens) == 5
    assert jobs.keys() == driver.engine.scheduler.sequences.keys()
    assert jobs.times == 0


def test_what_waited_behind_an_injection_takes_no_longer_in_a_step_than_whatever_is_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each command may take ten milliseconds, where it gives back the memory of a long context, or looks for
    it. And another tenant's wait for no more than one of them."""
    now = 0.0
    driver = new()
    engine = driver.engine
    engine._commands = CommandQueue()
    for stream in (1, 2):
        driver.settle(api.Submit(stream, PROMPT, regex("[a-z]{50}"), 1, tenant=stream))
    asked: list[api.StreamCommand] = [api.Append(1, [97]), *[api.Pause(1)] * 5, api.Resume(1)]
    driver.send(*asked)
    driver.step()
    apply = engine._steering.apply

    def takes_a_second(command: api.StreamCommand) -> None:
        nonlocal now
        apply(command)
        now += 1.0

    monkeypatch.setattr("engine.step.command_queue.time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(engine._steering, "apply", takes_a_second)
    wait(threads_of(driver)._jobs.values())
    driver.send(api.Pause(2))
    of_steps: list[tuple[int, int]] = []
    while len(driver.told[1].changes) < len(asked):
        driver.step()
        of_steps.append((len(driver.told[1].changes), len(driver.told[2].changes)))
    assert of_steps == [(2, 0), (2, 1), *((count, 1) for count in range(3, len(asked) + 1))]


@OVERLAPS
def test_what_was_asked_together_with_an_injection_is_done_before_the_next_token(overlap: bool) -> None:
    driver = new(overlap)
    driver.send(api.Submit(1, PROMPT, regex("[a-z]{50}"), 1000))
    driver.until(driver.has(1, 2))
    driver.settle(api.Append(1, [97]), api.Append(1, [98]), api.Pause(1))
    changes = driver.told[1].changes
    assert [type(change) for change in changes] == [api.Appended, api.Appended, api.Paused]
    assert len({change.index for change in changes}) == 1


def test_what_a_matcher_could_not_follow_it_says_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor where the stream has gone back meanwhile: the tokens behind were not followed either."""
    source = told(Grammar(regex="abc|abd")).source
    constraint, accept = Constraint(source, toy_vocabulary(), 0, lambda: None), Matcher.accept

    def accepts_no_b(matcher: Matcher, tokens: list[int]) -> None:
        if 98 in tokens:
            raise GrammarError("There is no room.")
        accept(matcher, tokens)

    monkeypatch.setattr(Matcher, "accept", accepts_no_b)
    constraint.append([97], 0)
    constraint.append([98], 1)
    constraint.append([99], 2)
    constraint.submit()()
    constraint.truncate(2)
    constraint.submit()()
    assert constraint.outlook.error == "There is no room."


def test_a_matcher_that_could_not_follow_is_gone_with_its_stream() -> None:
    """And not when garbage is looked for: until then it would count for its tenant's other streams."""
    constraint = Constraint(told(Grammar(regex="abc")).source, toy_vocabulary(), 0, lambda: None)
    constraint.append([98], 0)
    constraint.submit()()
    assert constraint.outlook.error is not None
    gone = weakref.ref(constraint)
    gc.collect()
    gc.disable()
    try:
        del constraint
        assert gone() is None
    finally:
        gc.enable()


@OVERLAPS
def test_processes_in_step_do_the_same_where_there_was_no_time_for_all_that_waited_behind_an_injection(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_ms = itertools.count(step=2)
    clock = SimpleNamespace(perf_counter=lambda: next(now_ms) / 1000)
    monkeypatch.setattr("engine.step.command_queue.time", clock)
    first = Ranks(Limits(kv_tokens=4096, overlap=overlap)).first
    first.send([api.Submit(1, PROMPT, regex("[a-z ]*"), 40), api.Submit(2, PROMPT, greedy(40), 40, tenant=1)])
    asked: list[api.AnyCommand] = [api.Append(1, [97]), api.Append(1, [98]), *[api.Pause(1, True)] * 4]
    first.send([*asked, api.Resume(1), api.Truncate(1, 0), api.Append(1, [99])])
    changes = list[api.AnyChange]()
    while len(changes) < len(asked) + 3:
        changes += [change for news in first.step().news for change in news.changes]
    assert [type(change) for change in changes[:6]] == [*[api.Appended] * 2, *[api.Paused] * 4]


@OVERLAPS
def test_processes_in_step_wait_no_longer_for_a_grammar_that_takes_long(
    overlap: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a text that is put into a dear one: all of a shared model's streams stood for five seconds."""
    driver, go, begun = Driver(Ranks(Limits(kv_tokens=4096, overlap=overlap)).first), Event(), Event()
    driver.settle(api.Submit(1, PROMPT, regex("[a-z ]*"), 3), api.Submit(2, PROMPT, SOME, 0, tenant=1))
    fits = Matcher.fits

    def takes_long(matcher: Matcher, tokens: list[int]) -> bool:
        begun.set()
        assert go.wait(60)
        return fits(matcher, tokens)

    monkeypatch.setattr(Matcher, "fits", takes_long)
    driver.send(api.Append(1, [97]), api.Submit(3, PROMPT, greedy(90), 90, tenant=2))
    driver.until(lambda: begun.is_set() and len(driver.told[3].tokens) > 9)
    assert not driver.told[1].changes
    go.set()
    driver.settle(api.Grant(2, 90), api.Grant(1, 20))
    assert [type(change) for change in driver.told[1].changes] == [api.Appended]
    assert len(driver.told[1].tokens) == 20


@OVERLAPS
@pytest.mark.parametrize(
    ("sampling", "bans"),
    [
        (regex("a"), [(0, 97)]),
        (regex("a", min_tokens=2), []),
        (regex("a.{3}", grammar=api.Grammar("start: (")), []),
    ],
    ids=["banned", "min_tokens", "no grammar"],
)
def test_what_leaves_nothing_ends_its_stream_alike_in_processes_that_compute_in_step(
    sampling: api.Sampling, bans: list[tuple[int, int]], overlap: bool
) -> None:
    driver = Driver(Ranks(Limits(kv_tokens=4096, overlap=overlap)).first)
    driver.settle(api.Submit(1, PROMPT, sampling, 9, bans=bans), api.Submit(2, PROMPT, SOME, 90))
    assert (finish := driver.told[1].finish) is not None
    assert finish.reason == "error"
    assert driver.told[2].finish is not None


def test_an_engine_that_knows_no_bytes_says_so() -> None:
    driver = Driver(engine_of("llama"))
    driver.settle(api.Submit(1, PROMPT, SOME, 1000))
    finish = driver.told[1].finish
    assert finish is not None
    assert (finish.reason, finish.detail) == (
        "error",
        "This model's tokens have no bytes that a grammar could be followed by.",
    )
