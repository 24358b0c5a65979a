"""Hangs in a fleet: each of three engines stops answering in its turn, under load, and all goes as when one
dies."""

from __future__ import annotations

import signal
from typing import Any

from bench.reliability.fleet_deaths import ENGINES, strike, told
from bench.reliability.scoring import rank
from bench.reliability.trial_server import serving

HANGS = 100
STEP_MS = 20
SILENCE_S = 2.0  # --engine-silence-s, which is longer by default: the model of an engine may be slow
MOST_MEDIAN_S = 1.0  # beside the silence


async def measure(scale: float) -> dict[str, Any]:
    count = max(int(HANGS * scale), ENGINES)
    options = ("--engines", str(ENGINES), "--engine-spare", "on", "--toy-step-ms", str(STEP_MS))
    async with serving(*options, "--engine-silence-s", str(SILENCE_S)) as served:
        score, watched = await strike(served, signal.SIGSTOP, count)
    return {
        "name": "hangs in a fleet",
        "hangs": watched.blows,
        **told(score, watched),
        "of that the silence, s": SILENCE_S,
        "goal": f"{HANGS} hangs, nothing lost, resumed {MOST_MEDIAN_S:g} s after the silence, median",
        "met": not score.wrong
        and watched.blows >= count
        and rank(watched.resumed_s, 0.5) <= SILENCE_S + MOST_MEDIAN_S,
    }
