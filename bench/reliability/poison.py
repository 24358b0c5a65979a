"""Poisoned requests among good ones, in an engine of this process: rows that raise, numbers that are none,
injections that do not fit. Their neighbours' tokens must be those that they get with nobody beside them.
"""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

from engine import api
from tests.fakes.engines import PLENTY, Driver, engine_of, greedy
from tests.fakes.faults import FaultyRunner
from tests.fakes.oracle import oracle

POISONED, SEED = 1000, 60_000
MODEL = "llama"
GOOD, TOKENS = 5, 24
RAISES, SPOILS, TOO_LONG = 100, 101, 102  # streams, by what becomes of them
PROMPT = [(at * 31 + 5) % 400 for at in range(30)]


async def measure(scale: float) -> dict[str, Any]:
    count = max(int(POISONED * scale), 3)
    wrong: list[str] = []
    logging.disable(logging.ERROR)  # what fails is told there too, as it should be
    for seed in range(SEED, SEED + count // 3):
        await asyncio.to_thread(one_round, seed, wrong)
    logging.disable(logging.NOTSET)
    return {
        "name": "poison among good ones",
        "poisoned": 3 * (count // 3),
        "neighbours": GOOD * (count // 3),
        "wrong": wrong[:5],
        "goal": f"{POISONED}, no neighbour harmed, outputs identical",
        "met": not wrong,
    }


def one_round(seed: int, wrong: list[str]) -> None:
    """Three poisoned streams begin somewhere among five good ones that share their prompt's beginning."""
    chance = random.Random(seed)
    faulty = {"raises": RAISES, "spoils": SPOILS, "after": chance.randrange(TOKENS)}
    driver = Driver(engine_of(MODEL, PLENTY, lambda runner: FaultyRunner(runner, **faulty)))
    streams = [*range(GOOD), RAISES, SPOILS, TOO_LONG]
    chance.shuffle(streams)
    for stream in streams:
        prompt = PROMPT[: chance.randint(3, len(PROMPT))]
        driver.send(api.Submit(stream, prompt, greedy(TOKENS), 1000))
        driver.step(chance.randrange(4))
    driver.settle(api.Append(TOO_LONG, [7] * PLENTY.kv_tokens))
    for number, told in driver.told.items():
        try:
            oracle(MODEL).check(told)
            assert told.finish is not None
            assert (told.finish.reason == "length") == (number not in (RAISES, SPOILS))
        except AssertionError as error:
            wrong.append(f"seed {seed}, stream {number}: {error}")
    if driver.stats.kv_used:
        wrong.append(f"seed {seed}: {driver.stats.kv_used} blocks are still in use")
