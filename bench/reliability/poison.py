"""Poison requests among good ones, in an engine of this process: rows that raise, logits that are no
numbers, injections that do not fit, parameters beyond all sense; and in every other round memory for few rows
at once. Their neighbours' tokens must be those that transformers' own `generate` writes.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Iterator
from typing import Any

from msgspec.structs import replace

from engine import api
from engine.forward.interface import Runner
from tests.fakes.engine_driver import PLENTY, Driver, engine_of, greedy
from tests.fakes.faulty_runner import FaultyRunner
from tests.fakes.greedy_oracle import oracle

POISONED, SEED = 1000, 60_000
MODELS = ("llama", "gemma2", "gpt_oss")
GOOD, TOKENS = 5, 24
RAISES, SPOILS, TOO_LONG, SENSELESS = POISONS = (100, 101, 102, 103)  # streams, by what becomes of them
FEW_ROWS = 3
PROMPT = [(at * 31 + 5) % 400 for at in range(30)]
PARAMETERS: tuple[dict[str, Any], ...] = (
    {"temperature": math.nan},
    {"temperature": 1e-320},
    {"temperature": 1e308, "top_p": 1e-300},
    {"repetition_penalty": 1e-320},
    {"repetition_penalty": math.inf, "frequency_penalty": math.inf},
    {"presence_penalty": 1e308, "frequency_penalty": -1e308},
    {"logit_bias": {7: math.nan}},
    {"logit_bias": {7: math.inf, 8: -math.inf, 10**9: 1.0}, "logprobs": 20},
    {"top_k": 2**31, "min_p": 1.0, "logprobs": 10**6},
    {"seed": -(2**63), "min_tokens": 2**31},
    {"grammar": api.Grammar("start: ((")},
    {"grammar": api.Grammar('start: "ab" X\nX: /[a-z]/ & /[0-9]/')},
)


async def measure(scale: float) -> dict[str, Any]:
    rounds = max(int(POISONED * scale) // len(POISONS), 1)
    wrong: list[str] = []
    logging.disable(logging.ERROR)  # what fails is told there too, as it should be
    for seed in range(SEED, SEED + rounds):
        await asyncio.to_thread(one_round, seed, wrong)
    logging.disable(logging.NOTSET)
    return {
        "name": "poison among good ones",
        "poisoned": len(POISONS) * rounds,
        "neighbours": GOOD * rounds,
        "rounds with too little memory": rounds // 2,
        "wrong": wrong[:5],
        "goal": f"{POISONED}, no neighbour harmed, outputs identical",
        "met": not wrong,
    }


def one_round(seed: int, wrong: list[str]) -> None:
    """The poisoned begin somewhere among five good ones that share their prompt's beginning."""
    chance = random.Random(seed)
    model = MODELS[seed % len(MODELS)]
    most_rows = FEW_ROWS if seed % 2 else None
    after = chance.randrange(TOKENS)
    driver = Driver(engine_of(model, PLENTY, lambda runner: faulty(runner, after, most_rows)))
    streams = [*range(GOOD), *POISONS]
    chance.shuffle(streams)
    for stream in streams:
        prompt = PROMPT[: chance.randint(3, len(PROMPT))]
        odd = PARAMETERS[seed % len(PARAMETERS)] if stream == SENSELESS else {}
        driver.send(api.Submit(stream, prompt, replace(greedy(TOKENS), **odd), 1000))
        driver.step(chance.randrange(4))
    driver.settle(api.Append(TOO_LONG, [7] * PLENTY.kv_tokens))
    wrong += [f"seed {seed}, stream {number}: {what}" for number, what in amiss(driver, model)]


def faulty(runner: Runner, after: int, most_rows: int | None) -> FaultyRunner:
    return FaultyRunner(runner, raises=RAISES, spoils=SPOILS, after=after, max_rows=most_rows)


def amiss(driver: Driver, model: str) -> Iterator[tuple[int | str, str]]:
    """Whoever did not end as it must, or says other than the truth."""
    for number, told in driver.told.items():
        if told.finish is None:
            yield number, "it has no end"
            continue
        if number != SENSELESS and (told.finish.reason == "error") != (number in (RAISES, SPOILS)):
            yield number, f"it ended with {told.finish}"
        try:
            if number != SENSELESS:
                oracle(model).check(told)
        except AssertionError as error:
            yield number, f"it says {told.tokens}: {error}"
    if driver.stats.kv_used:
        yield "none", f"{driver.stats.kv_used} blocks are still in use"
