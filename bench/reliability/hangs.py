"""Engine hangs: engines stop answering under load, a watchdog ends them, and all goes as when they die."""

from __future__ import annotations

import signal
from typing import Any

from bench.reliability.deaths import strike
from bench.reliability.scoring import rank
from bench.reliability.trial_server import serving

HANGS = 100
STEP_MS = 10
BETWEEN = range(50, 100)
SILENCE_S = 2.0  # --engine-silence-s, which is longer by default: the model of an engine may be slow
MOST_P99_S = 2.0  # beside the silence


async def measure(scale: float) -> dict[str, Any]:
    options = ("--engine-spare", "on", "--toy-step-ms", str(STEP_MS), "--engine-silence-s", str(SILENCE_S))
    async with serving(*options) as served:
        score, watched = await strike(served, signal.SIGSTOP, max(int(HANGS * scale), 1), BETWEEN)
    times = watched.resumed_s + watched.cold_s
    return {
        "name": "engine hangs",
        "hangs": len(times),
        "streams played through them": score.plays,
        "wrong": score.wrong,
        "stopped to resumed, median s": round(rank(times, 0.5), 2),
        "stopped to resumed, p99 s": round(rank(times, 0.99), 2),
        "of that the silence, s": SILENCE_S,
        "goal": f"{HANGS} hangs, nothing lost, resumed {MOST_P99_S:g} s after the silence, p99",
        "met": not score.wrong and rank(times, 0.99) <= SILENCE_S + MOST_P99_S,
    }
