"""Machines that Ray keeps: an engine's keeper is killed, a whole machine is killed or frozen, and Ray's GCS
is killed, which has what it knows in Redis, or nowhere. Streams go on at the engines that are left, in the
time that the fleet promises, and do not wait for Ray; then the fleet is whole again.

Two dozen streams read, steer, pause and stall, and begin anew as they end; others are watched event by event.
What an operator does is done: a machine that is gone is followed by another, and a head by one at the same
address. Without Redis that is a new Ray, whose fleet has to be brought up: until then there is no engine.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.reliability.deaths import Deaths
from bench.reliability.fleet_deaths import WATCHED, Watched, told, under_load
from tests.server.ray_fleet import ENGINES, SILENCE_S, Fleet, redis_server
from tests.server.server_process import serving

EACH, SEED = 20, 20290
BETWEEN_S = (0.2, 2.0)  # from when the fleet is whole to the next blow
MOST_MEDIAN_S = 1.0  # beside the silence, where one is waited for
WHOLE_S = 180.0  # to be waited for
LOOK_EVERY_S = 0.1

Strike = Callable[[Fleet, Watched], Awaitable[None]]


async def measure(scale: float) -> dict[str, Any]:
    count = max(int(EACH * scale), 2)
    found: dict[str, dict[str, Any]] = {}
    async with fleet_of() as fleet:
        for kind in (an_engine, a_machine, a_frozen_machine, the_gcs):
            found |= await struck(fleet, kind, count)
    async with fleet_of(with_redis=True) as fleet:
        found |= await struck(fleet, the_gcs_with_redis, count)
    wrong = [what for figures in found.values() for what in figures["wrong"]]
    late = [
        name
        for name, figures in found.items()
        if figures["blow to resumed, median s"] > MOST_MEDIAN_S + figures["of that the silence, s"]
        and name != named(the_gcs)
    ]
    return {
        "name": "machines that Ray keeps",
        **found,
        "wrong": wrong,
        "goal": f"{EACH} of each, nothing lost, doubled or refused, resumed in {MOST_MEDIAN_S:g} s median"
        " (behind the silence of a frozen machine; where a GCS without Redis dies, when Ray is there again);"
        " then the fleet is whole",
        "met": not wrong and not late and all(figures["blows"] >= count for figures in found.values()),
    }


@asynccontextmanager
async def fleet_of(*, with_redis: bool = False) -> AsyncIterator[Fleet]:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        redis = stack.enter_context(redis_server()) if with_redis else ""
        fleet = await asyncio.to_thread(Fleet, folder, redis=redis)
        try:
            yield fleet
        except BaseException:
            print(fleet.served.log()[-4000:], file=sys.stderr)
            raise
        finally:
            fleet.end()


async def struck(fleet: Fleet, kind: Strike, count: int) -> dict[str, dict[str, Any]]:
    """So often, and what came of it, by its name."""
    name, chance = named(kind), random.Random(SEED)

    async def through(watched: Watched, deaths: Deaths) -> None:
        for number in range(count):
            await asyncio.sleep(chance.uniform(*BETWEEN_S))
            await kind(fleet, watched)
            deaths.one()
            print(
                f"{name}: {number + 1} of {count}, {watched.whole_s[-1]:.1f} s", file=sys.stderr, flush=True
            )

    await whole(fleet)
    score, watched = await under_load(fleet.served, through)
    silence = SILENCE_S if kind is a_frozen_machine else 0.0
    return {
        name: {
            "blows": watched.blows,
            **told(score, watched),
            "blow to a whole fleet, most s": round(max(watched.whole_s), 2),
            "of that the silence, s": silence,
        }
    }


def named(kind: Strike) -> str:
    return kind.__name__.replace("_", " ")


async def an_engine(fleet: Fleet, watched: Watched) -> None:
    (victim, *_) = await asyncio.to_thread(fleet.actors)
    watched.hit(partial(os.kill, victim, signal.SIGKILL))
    await felt_and_whole(fleet, watched)


async def a_machine(fleet: Fleet, watched: Watched) -> None:
    machine = await asyncio.to_thread(fleet.machine)
    watched.hit(partial(tell_all, machine, signal.SIGKILL))
    await felt_and_whole(fleet, watched)
    await asyncio.to_thread(fleet.do, "one more")


async def a_frozen_machine(fleet: Fleet, watched: Watched) -> None:
    machine = await asyncio.to_thread(fleet.machine)
    watched.hit(partial(tell_all, machine, signal.SIGSTOP))
    await felt_and_whole(fleet, watched)
    tell_all(machine, signal.SIGKILL)
    await asyncio.to_thread(fleet.do, "one more")


async def the_gcs(fleet: Fleet, watched: Watched) -> None:
    """What Ray knew is gone. Streams feel nothing of it until all machines are started anew, as must be."""
    os.kill(fleet.gcs, signal.SIGKILL)
    await streams_are_read(watched)
    await asyncio.to_thread(watched.hit, partial(fleet.do, "all again"))
    await asyncio.to_thread(fleet.up)
    await whole(fleet)
    watched.is_whole()


async def the_gcs_with_redis(fleet: Fleet, watched: Watched) -> None:
    """And an engine with it, which nobody starts anew until there is a head: from when that is started the
    fleet is waited for."""
    (victim, *_) = await asyncio.to_thread(fleet.actors)
    watched.hit(partial(tell_all, [fleet.gcs, victim], signal.SIGKILL))
    await fleet.until_felt()
    await streams_are_read(watched)
    since = time.perf_counter()
    await asyncio.to_thread(fleet.do, "head again")
    await whole(fleet)
    watched.whole_s.append(time.perf_counter() - since)


def tell_all(processes: list[int], blow: signal.Signals) -> None:
    for process in processes:
        os.kill(process, blow)


async def streams_are_read(watched: Watched) -> None:
    """As many as are watched, to their ends."""
    before = watched.read
    while watched.read < before + WATCHED:  # noqa: ASYNC110 - of other tasks
        await asyncio.sleep(LOOK_EVERY_S)


async def felt_and_whole(fleet: Fleet, watched: Watched) -> None:
    await fleet.until_felt()
    await whole(fleet)
    watched.is_whole()


async def whole(fleet: Fleet) -> None:
    """The gateway has all engines, and `midstream fleet status` says that they are all."""
    async with asyncio.timeout(WHOLE_S):
        while (await fleet.served.metrics()).get(serving("toy"), 0) < ENGINES:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
        while (await asyncio.to_thread(fleet.tell, "status")).returncode:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)
