"""Turns: mixes of streams that come, stop, go on and go, on the scheduler alone.

Its promises are checked at every step: it is work-conserving, who has credit and memory is served within the
bound that `docs/architecture.md` has, nothing is taken in vain, and no lower rank goes before a higher one.
"""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from tests.fakes.scheduler_mix import Mix, Sizes

MIXES, STEPS, SEED = 4000, 150, 120_000


def sizes(pick: random.Random) -> Sizes:
    return Sizes(
        blocks=pick.randint(17, 200),
        step_tokens=pick.randint(2, 40),
        batch_rows=pick.randint(2, 12),
        streams=pick.randint(1, 40),
        tenants=pick.randint(1, 4),
        overlap=pick.random() < 0.5,
    )


async def measure(scale: float) -> dict[str, Any]:
    happened = Counter[str]()
    broken = []
    mixes = max(1, int(MIXES * scale))
    for seed in range(SEED, SEED + mixes):
        try:
            happened += Mix(seed, sizes(random.Random(seed))).play(STEPS)
        except AssertionError as broke:
            broken.append(f"{seed}: {broke}")
    return {
        "name": "Turns and victims",
        "mixes": mixes,
        "steps": mixes * STEPS,
        "rows": happened["rows"],
        "claims on others' memory": happened["taken"] + happened["left"],
        "in vain": happened["left"],
        "told": happened["told"],
        "broken": broken[:10],
        "goal": "no promise is broken at any step of any mix",
        "met": not broken,
    }
