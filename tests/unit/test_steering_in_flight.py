"""Steering while a token is in flight: what stands, what is void, and how it is told. On the toy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from engine import api
from midstream.protocol import Grammar
from tests.fakes.at_once_threads import AtOnceThreads
from tests.fakes.engine_driver import TOY, Driver, Limits, engine_of, greedy
from tests.fakes.grammars import told
from tests.fakes.greedy_oracle import oracle

PROMPT = [(at * at * 7 + 3) % 400 for at in range(20)]
WARM = api.Sampling(seed=1, ignore_eos=True)
STEPS = 60
Control = Callable[[Driver, int], list[api.StreamCommand]]  # of stream 1, in a step of this number


def adjust(driver: Driver, step: int) -> list[api.StreamCommand]:
    return [api.Adjust(1, replace(WARM, temperature=1.0 + step % 2))]


def bounce(driver: Driver, step: int) -> list[api.StreamCommand]:
    return [api.Pause(1), api.Resume(1)]


def pause_or_resume(driver: Driver, step: int) -> list[api.StreamCommand]:
    return [api.Resume(1) if step % 10 else api.Pause(1)]


def rewind(driver: Driver, step: int) -> list[api.StreamCommand]:
    return [api.Truncate(1, max(0, len(driver.told[1].tokens) - 1))]


def inject(driver: Driver, step: int) -> list[api.StreamCommand]:
    return [api.Append(1, [70, 71])]


def everything(driver: Driver, step: int) -> list[api.StreamCommand]:
    return [command for control in (bounce, rewind, inject, adjust) for command in control(driver, step)]


def running(overlap: bool, tokens: int = 5) -> Driver:
    """Stream 1 decodes, and with overlap has a token in flight."""
    driver = Driver(engine_of(TOY, Limits(kv_tokens=4096, overlap=overlap)))
    driver.send(api.Submit(1, PROMPT, WARM, 10_000))
    driver.until(driver.has(1, tokens))
    return driver


def discarded(driver: Driver) -> int:
    return sum(output.stats.discarded for output in driver.outputs)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(
    ("control", "due"),
    [
        (adjust, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}),
        (bounce, {0}),
        (pause_or_resume, {0, 1}),
        (rewind, {0}),
        (inject, {0}),
        (everything, {0}),
    ],
    ids=["adjusts", "bounces", "pauses", "rewinds", "injects", "everything"],
)
def test_a_stream_that_is_steered_keeps_its_pace(control: Control, due: set[int], overlap: bool) -> None:
    driver = running(overlap)
    before, controls = driver.stats.tokens_total, 0
    for step in range(STEPS):
        if step % 10 in due:
            controls += 1
            driver.send(*control(driver, step))
        driver.step()
    assert driver.stats.tokens_total - before >= 0.9 * STEPS
    assert discarded(driver) <= controls


@pytest.mark.parametrize("control", [adjust, bounce, rewind, inject, everything])
def test_a_prompt_is_computed_once_however_it_is_steered(control: Control) -> None:
    driver = Driver(engine_of(TOY, Limits(kv_tokens=8192, step_tokens=256, overlap=True)))
    prompt = [at % 400 for at in range(1792)]
    driver.send(api.Submit(1, prompt, WARM, 10_000))
    driver.step()
    for step in range(7):
        driver.send(*control(driver, step))
        driver.step()
    driver.until(driver.has(1, 1))
    computed = sum(output.stats.prefill_tokens + output.stats.decode_rows for output in driver.outputs)
    assert computed <= driver.told[1].known + 7


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("back", [1, 2, 15, 16, 17, 40])
def test_after_a_rewind_one_token_is_computed_again(overlap: bool, back: int) -> None:
    driver = Driver(engine_of(TOY, Limits(kv_tokens=4096, block_size=16, overlap=overlap)))
    driver.settle(api.Submit(1, PROMPT, greedy(100), 50))
    for _ in range(2):  # the second time its blocks have been cached once more
        steps = len(driver.outputs)
        driver.settle(api.Truncate(1, 50 - back))
        outputs = driver.outputs[steps:]
        assert sum(output.stats.decode_rows for output in outputs) == back
        assert sum(output.stats.prefill_tokens for output in outputs) == 0
    oracle(TOY).check(driver.told[1])


def test_a_pause_and_an_adjust_are_answered_behind_the_token_in_flight() -> None:
    driver = running(overlap=True)
    said = len(driver.told[1].tokens)
    driver.send(api.Adjust(1, WARM), api.Pause(1), api.Resume(1), api.Pause(1))
    driver.step()
    assert (len(driver.told[1].tokens), driver.told[1].changes) == (said + 1, [])
    driver.step()
    at = said + 2
    expected = [api.Adjusted(at), api.Paused(at), api.Resumed(at), api.Paused(at)]
    assert driver.told[1].changes == expected
    driver.step(3)
    assert len(driver.told[1].tokens) == at
    assert discarded(driver) == 0


def test_a_rewind_overtakes_no_answer() -> None:
    driver = running(overlap=True)
    driver.send(api.Adjust(1, WARM), api.Truncate(1, 2), api.Append(1, [7]), api.Adjust(1, WARM))
    driver.step()
    said = len(driver.told[1].voided[0][0])
    expected = [api.Adjusted(said), api.Truncated(2), api.Appended(2, 1), api.Adjusted(2)]
    assert driver.told[1].changes == expected


def test_a_cancel_overtakes_no_answer() -> None:
    driver = running(overlap=True)
    driver.send(api.Adjust(1, WARM), api.Cancel(1))
    driver.step()
    told = driver.told[1]
    assert (told.changes, told.finish) == ([api.Adjusted(len(told.tokens))], api.Finish("cancelled"))


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("more", [-3, 0, 1, 2])
def test_a_limit_holds_for_the_token_in_flight(overlap: bool, more: int) -> None:
    driver = running(overlap)
    limit = len(driver.told[1].tokens) + 1 + more  # one more comes before the limit is heard of
    driver.settle(api.Adjust(1, replace(WARM, max_tokens=limit)))
    told = driver.told[1]
    assert told.finish == api.Finish("length")
    assert len(told.tokens) == max(limit, limit - more)
    assert [type(change) for change in told.changes] == [api.Adjusted]


@pytest.mark.parametrize("longest", ["params", "context"])
@pytest.mark.parametrize("command", [api.Adjust(1, replace(WARM, seed=2, max_tokens=4)), api.Pause(1)])
def test_the_last_token_in_flight_overtakes_what_would_act_behind_it(
    command: api.StreamCommand, longest: str
) -> None:
    """As an end token does, and as where nothing is in flight."""
    engine = engine_of(TOY, Limits(kv_tokens=8192, step_tokens=4096, overlap=True))
    prompt = PROMPT if longest == "params" else [7] * (engine.runner.context - 4)
    driver = Driver(engine)
    driver.send(api.Submit(1, prompt, replace(WARM, max_tokens=4 if longest == "params" else 9), 10_000))
    driver.until(driver.has(1, 2))
    driver.settle(command)
    told = driver.told[1]
    assert (len(told.tokens), told.changes, told.finish) == (4, [], api.Finish("length"))


def test_an_end_token_ends_by_what_it_was_sampled_with() -> None:
    driver = Driver(engine_of(TOY, Limits(overlap=True)))
    (end,) = driver.engine.runner.eos
    ends = api.Sampling(temperature=0, logit_bias={end: 1000.0})
    goes_on = replace(ends, ignore_eos=True)
    driver.send(api.Submit(1, PROMPT, ends, 100), api.Submit(2, PROMPT[:1], goes_on, 100))
    driver.step()
    driver.settle(api.Adjust(1, goes_on), api.Adjust(2, ends))
    assert [told.finish for told in driver.told.values()] == [api.Finish("eos")] * 2
    assert [told.tokens for told in driver.told.values()] == [[end], [end, end]]
    assert [told.changes for told in driver.told.values()] == [[], [api.Adjusted(1)]]


def test_what_its_grammar_says_of_a_void_token_ends_nothing() -> None:
    """Where its row computed more than what that was sampled behind, the rest of it stands."""
    driver = Driver(engine_of(TOY, Limits(overlap=True, make_lookout=AtOnceThreads)))
    source = told(Grammar(regex="ab")).source
    asked = api.Sampling(grammar=api.Grammar(source, later=told(Grammar(regex="cd")).source))
    driver.send(api.Submit(1, PROMPT, asked, 10, bans=[(0, ord("a"))]))
    driver.step()
    driver.settle(api.Append(1, [7], grammar_anew=True))
    assert driver.told[1].changes == [api.Appended(0, 1)]
    assert bytes(driver.told[1].tokens[:2]) == b"cd"
    assert driver.told[1].finish == api.Finish("eos")
