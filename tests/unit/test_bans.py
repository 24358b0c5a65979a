"""Bans in the engine: a token that may not stand at an index, whatever chooses there, and for as long as what
stands before it does. On the toy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from msgspec.structs import replace

from engine import api, toy_model
from engine.sampling.sampler import Sampler
from engine.schedule.sequence import Sequence
from midstream.protocol import Grammar
from tests.fakes.counted_work import counted
from tests.fakes.engine_driver import TOY, Driver, Limits, engine_of
from tests.fakes.grammars import told

PROMPT = [72, 101, 300]
OVERLAPS = pytest.mark.parametrize("overlap", [False, True], ids=["", "overlap"])
WAYS = pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 1.0},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 0.01},
        {"temperature": 1.0, "repetition_penalty": 1.3, "presence_penalty": 0.5, "logprobs": 2},
        {"temperature": 0.0, "min_tokens": 30},
    ],
    ids=str,
)


def new(overlap: bool = False) -> Driver:
    return Driver(engine_of(TOY, Limits(kv_tokens=4096, overlap=overlap)))


def sampling(**params: Any) -> api.Sampling:
    return replace(api.Sampling(seed=5, max_tokens=24, ignore_eos=True), **params)


@OVERLAPS
@WAYS
def test_a_banned_token_is_not_chosen_at_its_index_and_may_be_anywhere_else(
    params: dict[str, Any], overlap: bool
) -> None:
    driver = new(overlap)
    driver.settle(api.Submit(1, PROMPT, sampling(**params), credit=20))
    first, banned = list(driver.told[1].tokens), set[int]()
    for _ in range(4):
        banned.add(driver.told[1].tokens[7])
        driver.settle(api.Truncate(1, 7, driver.told[1].tokens[7]))
        assert driver.told[1].tokens[:7] == first[:7]
        assert driver.told[1].tokens[7] not in banned
    assert len(driver.told[1].tokens) == 20


@OVERLAPS
@WAYS
def test_bans_go_with_what_stands_before_them(params: dict[str, Any], overlap: bool) -> None:
    driver = new(overlap)
    driver.settle(api.Submit(1, PROMPT, sampling(**params), credit=20))
    first = list(driver.told[1].tokens)
    driver.settle(api.Truncate(1, 7, first[7]))
    other = list(driver.told[1].tokens)
    driver.settle(api.Truncate(1, 7))
    assert driver.told[1].tokens == other, "it stands before the ban, and nothing has changed there"
    driver.settle(api.Truncate(1, 6))
    assert driver.told[1].tokens == first


@OVERLAPS
@WAYS
def test_another_engine_that_is_told_of_the_bans_goes_on_alike(params: dict[str, Any], overlap: bool) -> None:
    driver = new(overlap)
    driver.settle(api.Submit(1, PROMPT, sampling(**params), credit=20))
    bans = list[tuple[int, int]]()
    for at in (3, 3, 9):
        bans.append((at, driver.told[1].tokens[at]))
        driver.settle(api.Truncate(1, *bans[-1]))
    tokens = driver.told[1].tokens
    for known in (0, 3, 5, 9, 12):
        again = new(overlap)
        here = [*PROMPT, *tokens[:known]]
        again.send(api.Submit(1, here, sampling(**params), credit=20, prompt=len(PROMPT), bans=bans))
        again.told[1].tokens = tokens[:known]
        again.settle()
        assert again.told[1].tokens == tokens


def test_what_a_bias_wants_most_is_banned_all_the_same() -> None:
    driver = new()
    asked = sampling(logit_bias={44: 100.0}, temperature=0.0)
    driver.settle(api.Submit(1, PROMPT, asked, credit=8, bans=[(2, 44)]))
    assert [token == 44 for token in driver.told[1].tokens] == [at != 2 for at in range(8)]


@OVERLAPS
@pytest.mark.parametrize("force", [True, False])
def test_of_what_a_grammar_allows_the_rest_is_chosen(overlap: bool, force: bool) -> None:
    driver = new(overlap)
    grammar = told(Grammar(regex="[ab]{20}"), force=force)
    asked = api.Sampling(seed=5, temperature=1.0, max_tokens=30, grammar=grammar)
    driver.settle(api.Submit(1, PROMPT, asked, credit=2))
    first = list(driver.told[1].tokens)
    driver.settle(api.Truncate(1, 1, first[1]))
    assert driver.told[1].tokens[1] not in (first[1], 0)
    driver.settle(api.Grant(1, 1000))
    assert driver.told[1].finish == api.Finish("eos")


@OVERLAPS
@pytest.mark.parametrize("force", [True, False])
def test_a_grammar_that_leaves_nothing_else_ends_its_stream_and_no_other(overlap: bool, force: bool) -> None:
    driver = new(overlap)
    grammar = told(Grammar(choice=["green"]), force=force)
    asked = api.Sampling(seed=5, max_tokens=30, grammar=grammar)
    driver.settle(api.Submit(1, PROMPT, asked, credit=2), api.Submit(2, PROMPT, asked, credit=1000))
    tokens = driver.told[1].tokens
    driver.settle(api.Truncate(1, 1, tokens[1]), api.Grant(1, 1000))
    finish = driver.told[1].finish
    assert finish is not None
    assert finish.detail == "The grammar leaves nothing but what a guard has banned at token 1."
    assert driver.told[2].finish == api.Finish("eos")


def test_what_is_banned_elsewhere_is_not_looked_at() -> None:
    """Whoever gives guards other names has more banned with each: a step asks of each token, sampled or
    forced."""
    bans = [(index, 40 + index % 9) for index in range(2000)]
    sequence = Sequence(
        1, [*PROMPT, *[50] * 2000], sampling(), credit=5000, context=5000, num_prompt=3, known_bans=bans
    )
    with counted() as work:
        assert [*sequence.banned_at(1001)] == [40 + 1001 % 9]
        assert [*sequence.banned_at(2000)] == []
    assert work.lines < 20
    sequence.truncate(1001)
    assert [*zip(sequence.ban_indices, sequence.banned, strict=True)] == bans[:1002]


def test_of_very_many_that_are_banned_at_one_index_none_is_looked_at_alone() -> None:
    """All that a model has might be, but for one: by guards that go back to one place, with ever new
    names."""
    sampler = Sampler(8, toy_model.VOCAB, eos=[toy_model.EOS])
    bans = [(0, token) for token in range(toy_model.VOCAB) if token != 99] * 10
    sequences = [
        Sequence(slot, [*PROMPT], sampling(), credit=9, context=99, known_bans=bans if slot else [])
        for slot in range(8)
    ]
    for sequence in sequences:
        sequence.slot = sequence.stream
    with counted() as work:
        chosen = sampler.sample(torch.arange(8.0 * toy_model.VOCAB).view(8, -1), sequences)
    assert work.lines < 1000
    assert [one.token for one in chosen[1:]] == [99] * 7
