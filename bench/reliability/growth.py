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
import sys
import traceback
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any, NamedTuple

from bench.reliability.growth_acts import ACTS, ACTS_ON_MANY, MANY, Act, NothingThereError
from bench.reliability.growth_states import STATES, Build
from bench.reliability.growth_world import TimedLoop, World, model, page_s
from bench.reliability.story_world import Complaints

WORKERS = 2
QUARTER = 4
MOST_GROWTH = 1.5 * QUARTER  # times
LONG_MS, MOST_MS = 25.0, 50.0  # where it grows by more, and in any case; what takes less is tried once
TRIES = 3
PATIENCE_S = 60.0
MAKING = "its making"
TOLD = 10

_fork, _each_apart = get_context("fork"), get_context("forkserver")


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
    _each_apart.set_forkserver_preload([__name__])
    costs: list[Cost] = []
    with ProcessPoolExecutor(WORKERS, mp_context=_each_apart, max_tasks_per_child=1) as pool:
        jobs = [loop.run_in_executor(pool, tried, name, scale) for name in names]
        for at, job in enumerate(asyncio.as_completed(jobs), 1):
            costs += (found := await job)
            longest = max(found, key=lambda cost: cost.played.ms)
            print(f"{at} of {len(names)}: {longest}", file=sys.stderr, flush=True)
    costs.sort(key=lambda cost: cost.played.ms, reverse=True)
    too_much = [str(cost) for cost in costs if cost.is_too_much]
    wrong = [f"{cost.state}, {cost.act}: {cost.played.wrong}" for cost in costs if cost.played.wrong]
    return {
        "name": "growth",
        "states": len(names),
        "acts": len(ACTS) + len(ACTS_ON_MANY),  # beside its making
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
    model()  # which takes long once
    build, most = STATES[name]
    size = max(QUARTER, int(most * scale))
    large, making = made(build, size)
    acts = ACTS | (ACTS_ON_MANY if len(large.streams) >= MANY else {})
    found = {MAKING: best_of(lambda: made(build, size)[1], making)}
    found |= {act: best_of(partial(done, large, acts[act])) for act in acts}
    dear = [act for act, played in found.items() if played.ms > LONG_MS]
    before = dict[str, float]()
    if dear:
        quarter, making = made(build, size // QUARTER)
        before = {act: best_of(partial(done, quarter, acts[act])).ms for act in dear if act in acts}
        before[MAKING] = making.ms
    return [Cost(name, act, played, before.get(act)) for act, played in found.items()]


def best_of(play: Callable[[], Played], best: Played | None = None) -> Played:
    """Of a few tries, where it takes long."""
    best = best or _apart(play)
    for _ in range(TRIES - 1):
        if best.wrong or best.ms <= LONG_MS:
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


def made(build: Build, size: int) -> tuple[World, Played]:
    """Until the stream is so large. Copies of the process write to none of it that they do not ask for."""
    gc.disable()
    complaints = Complaints()
    with asyncio.Runner(loop_factory=TimedLoop) as runner, complaints:
        world = runner.run(build(size))
        ms = longest_ms(runner)
    world.begin_anew()
    gc.collect()
    gc.freeze()
    return world, Played(ms, wrong="; ".join(complaints.said))


def done(world: World, act: Act) -> Played:
    wrong, outcome, complaints = "", "", Complaints()
    TimedLoop.page_s = page_s()
    with asyncio.Runner(loop_factory=TimedLoop) as runner, complaints:
        try:
            runner.run(world.after(act))
        except NothingThereError:
            outcome = "nothing there"
        except Exception:  # noqa: BLE001 - whatever it is, it must not be
            wrong = traceback.format_exc(-4)
        ms = longest_ms(runner)
    return Played(ms, outcome or world.outcome, wrong or "; ".join(complaints.said))


def longest_ms(runner: asyncio.Runner) -> float:
    loop = runner.get_loop()
    assert isinstance(loop, TimedLoop)
    return 1000 * loop.longest_s
