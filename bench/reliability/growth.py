"""Growth: whatever is done to a stream that is large in one way holds others up for no longer than it must.

Each state of `growth_states.py` is made as large as the server lets it be, and each act of `growth_acts.py`
is done to it, in a process that is forked off for it: every time to the same stream. Looked at is the longest
turn of the event loop, also while the state is made, by the time of the processor that its thread had, so
that other processes do not count. What takes long is done to a stream of a quarter as well: it may take
longer as the stream grows, and not by more.
"""

from __future__ import annotations

import asyncio
import gc
import math
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

from bench.reliability.growth_acts import ACTS, Act, NothingThereError
from bench.reliability.growth_states import STATES, Build
from bench.reliability.growth_world import TimedLoop, World
from bench.reliability.story_world import Complaints

WORKERS = 2
QUARTER = 4
MOST_GROWTH = 1.5 * QUARTER  # times
LONG_MS, MOST_MS = 25.0, 50.0  # where it grows by more, and in any case
WORTH_A_LOOK_MS = 15.0  # what takes less is tried once, and not held against a quarter
TRIES = 3
PATIENCE_S = 600.0
MAKING = "its making"
TOLD = 10

_fork = get_context("fork")


class Played(NamedTuple):
    """What an act came to: its longest turn, what was refused or how it ended, and what went wrong."""

    ms: float
    outcome: str = ""
    wrong: str = ""


class Cost(NamedTuple):
    state: str
    act: str
    played: Played
    of_a_quarter_ms: float | None  # None where it is too little to be looked at

    @property
    def growth(self) -> float:
        """By how much more than for a quarter."""
        return 0.0 if self.of_a_quarter_ms is None else self.played.ms / max(self.of_a_quarter_ms, 0.01)

    @property
    def is_too_much(self) -> bool:
        return self.played.ms > MOST_MS or (self.played.ms > LONG_MS and self.growth > MOST_GROWTH)

    def __str__(self) -> str:
        grown = "" if self.of_a_quarter_ms is None else f", {self.growth:.1f} times a quarter's"
        outcome = f" ({self.played.outcome})" if self.played.outcome else ""
        return f"{self.state}, {self.act}: {self.played.ms:.1f} ms{grown}{outcome}"


async def measure(scale: float, states: Sequence[str] = ()) -> dict[str, Any]:
    """`states`: these alone."""
    names = states or list(STATES)
    if unknown := set(names) - set(STATES):
        raise ValueError(f"no state {', '.join(sorted(unknown))}; there are {', '.join(STATES)}")
    loop = asyncio.get_running_loop()
    with ProcessPoolExecutor(WORKERS, mp_context=get_context("spawn")) as pool:
        jobs = [loop.run_in_executor(pool, tried, name, scale) for name in names]
        costs = [cost for found in await asyncio.gather(*jobs) for cost in found]
    costs.sort(key=lambda cost: cost.played.ms, reverse=True)
    too_much = [str(cost) for cost in costs if cost.is_too_much]
    wrong = [f"{cost.state}, {cost.act}: {cost.played.wrong}" for cost in costs if cost.played.wrong]
    return {
        "name": "growth",
        "states": len(names),
        "acts": len(ACTS),  # beside its making
        "plays": len(costs),
        "the longest": [str(cost) for cost in costs[:TOLD]],
        "too much": too_much,
        "wrong": wrong[:TOLD],
        "goal": f"nothing raises, no turn takes more than {MOST_MS:g} ms, and none more than {LONG_MS:g} ms "
        f"that takes over {MOST_GROWTH:g} times as long where the stream has {QUARTER} times the size",
        "met": not (too_much or wrong),
    }


def tried(name: str, scale: float) -> list[Cost]:
    """All acts on one state, in a process of its own."""
    build, most = STATES[name]
    size = max(QUARTER, int(most * scale))
    large, less = built(build, size), size // QUARTER
    found = {MAKING: best_of(partial(made, build, size))}
    found |= {act: best_of(partial(done, large, ACTS[act])) for act in ACTS}
    dear = [act for act, played in found.items() if played.ms >= WORTH_A_LOOK_MS]
    before = {MAKING: best_of(partial(made, build, less)).ms} if MAKING in dear else {}
    quarter = built(build, less) if dear else large
    before |= {act: best_of(partial(done, quarter, ACTS[act])).ms for act in dear if act in ACTS}
    return [Cost(name, act, played, before.get(act)) for act, played in found.items()]


def built(build: Build, size: int) -> World:
    with asyncio.Runner(loop_factory=TimedLoop) as runner:
        return runner.run(_built(build, size))


async def _built(build: Build, size: int) -> World:
    return await build(size)


def best_of(play: Callable[[], Played]) -> Played:
    """Of a few tries, where it takes long."""
    gc.collect()
    gc.freeze()
    best = _apart(play)
    for _ in range(TRIES - 1):
        if best.wrong or best.ms < WORTH_A_LOOK_MS:
            break
        best = min(best, _apart(play))
    return best


def _apart(play: Callable[[], Played]) -> Played:
    """In a process that is forked off for it."""
    ours, theirs = _fork.Pipe(duplex=False)
    child = _fork.Process(target=lambda: theirs.send(play()))
    child.start()
    theirs.close()
    try:
        if ours.poll(PATIENCE_S):
            return ours.recv()  # type: ignore[no-any-return]
        child.kill()
        return Played(math.inf, wrong="it does not end")
    except EOFError:
        return Played(math.inf, wrong="its process has died")
    finally:
        child.join()
        ours.close()


def made(build: Build, size: int) -> Played:
    """What it takes until the stream is so large."""
    gc.disable()
    with asyncio.Runner(loop_factory=TimedLoop) as runner:
        return runner.run(_made(build, size))


async def _made(build: Build, size: int) -> Played:
    complaints = Complaints()
    with complaints:
        await build(size)
    loop = asyncio.get_running_loop()
    assert isinstance(loop, TimedLoop)
    return Played(1000 * loop.longest_s, wrong="; ".join(complaints.said))


def done(world: World, act: Act) -> Played:
    gc.disable()
    world.begin_anew()
    with asyncio.Runner(loop_factory=TimedLoop) as runner:
        return runner.run(_done(world, act))


async def _done(world: World, act: Act) -> Played:
    loop, wrong, outcome = asyncio.get_running_loop(), "", ""
    assert isinstance(loop, TimedLoop)
    loop.longest_s = 0.0
    complaints = Complaints()
    with complaints:
        try:
            await act(world)
        except NothingThereError:
            outcome = "nothing there"
        except Exception:  # noqa: BLE001 - whatever it is, it must not be
            wrong = traceback.format_exc(-4)
    wrong = wrong or "; ".join(complaints.said)
    return Played(1000 * loop.longest_s, outcome or world.outcome, wrong)
