"""Stories: streams with tools, guards and grammars, to which anything valid is said at any time, while
connections stall and go and engines die. Thousands of them, each drawn from a seed.

What is wrong here is mostly where two things meet that nobody thought of together: a result that is taken
back before it is told, an end amid a rewind. One that was wrong is told again, line by line, by its seed:
`python -m bench.reliability stories --seed 40017`.
"""

from __future__ import annotations

import asyncio
import traceback
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

import torch

from bench.reliability.story import Story

STORIES, SEED = 4000, 40_000
WORKERS, AT_A_TIME = 2, 20
SAID = 400  # characters of what was wrong, at most


class Found(NamedTuple):
    happened: Counter[str]
    wrong: dict[int, str]  # by seed


async def measure(scale: float, seeds: Sequence[int] | None = None) -> dict[str, Any]:
    if seeds is not None:
        found = [await told([seed], aloud=True) for seed in seeds]
    else:
        every = range(SEED, SEED + max(int(STORIES * scale), 1))
        parts = [every[at : at + AT_A_TIME] for at in range(0, len(every), AT_A_TIME)]
        with ProcessPoolExecutor(WORKERS) as pool:
            loop = asyncio.get_running_loop()
            found = await asyncio.gather(*(loop.run_in_executor(pool, tell, part) for part in parts))
    happened = sum((one.happened for one in found), Counter[str]())
    wrong = {seed: what for one in found for seed, what in one.wrong.items()}
    return {
        "name": "stories",
        **{what: happened[what] for what in ("stories", "streams", "frames", "of them refused", "calls")},
        "compared with what another engine would be given": happened["resubmitted"],
        "with what another gateway would build": happened["rebuilt"],
        "with what the SDK begins again": happened["begun again"],
        "wrong": len(wrong),
        "their seeds, and why": dict(list(wrong.items())[:5]),
        "goal": f"none of {STORIES:,} stories is wrong",
        "met": not wrong,
    }


def tell(seeds: Iterable[int]) -> Found:
    """In a process of its own, of which there are as many as cores: one thread each."""
    torch.set_num_threads(1)
    return asyncio.run(told(seeds))


async def told(seeds: Iterable[int], *, aloud: bool = False) -> Found:
    happened, wrong = Counter[str](), dict[int, str]()
    for seed in seeds:
        story = Story(seed, *[print] if aloud else [])
        try:
            await story.run()
        except Exception as failure:  # noqa: BLE001 - whatever it is, it must not be
            wrong[seed] = f"{failure!r}"[:SAID] + traceback.format_exc(-1)[-SAID:]
            if aloud:
                traceback.print_exception(failure)
        happened.update(
            {
                "stories": 1,
                "streams": len(story.accounts),
                "frames": story.world.answers.asked,
                "of them refused": story.world.answers.refused,
                "calls": sum(len(set(account.calls)) for account in story.accounts.values()),
                "resubmitted": story.world.compared,
                "rebuilt": story.world.server.adoptions,
                "begun again": story.elsewhere.begun,
            }
        )
    return Found(happened, wrong)
