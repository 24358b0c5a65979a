"""Accounts: whether what the gateway's memory takes is on some account, of streams that grow.

A state of `growth_states.py`, or of `growth_heavy.py`, is made in one size and in twice that. What it takes
is what Python has allotted by then, without what is played; what is counted is what all accounts say that
have a limit. Only what the larger one has more is looked at: what is there once is nothing. Where memory
grows faster than what is counted, a tenant may have more than its limits say, as often as it may have such a
stream.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import tracemalloc
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any, NamedTuple

from bench.reliability.growth_heavy import HEAVY
from bench.reliability.growth_states import STATES, State
from bench.reliability.growth_world import model
from realtime.config import Options
from realtime.guards import pattern
from realtime.hub import decoded_turns, ended_streams
from realtime.hub.hub import Hub
from realtime.hub.waiting_frames import WaitingLimits

EVERY = STATES | HEAVY
WORKERS = 2
TOLD = 10
LEAST = 8  # to begin with
ENOUGH = 64_000  # bytes that it grows by
MOST_TIMES = 1.25  # as much as is counted
MOST_UNCOUNTED = 32 << 20  # bytes, of one tenant
MANY_TIMES = 8  # as much counted as is taken: refused far too early
STREAMS = Options.max_streams
LITTLE = MOST_UNCOUNTED // STREAMS  # bytes, of each: an interpreter keeps as much for a while


class Accounts(NamedTuple):
    """What all have in bytes that have a limit, or may have, of a tenant."""

    streams: int
    ended: int
    waiting: int
    turns: int


LIMITS = Accounts(
    Options.total_stream_memory_mib << 19,
    ended_streams.BYTE_LIMIT,
    WaitingLimits().tenant_bytes,
    decoded_turns.BYTE_LIMIT,
)


class Weighed(NamedTuple):
    """A state of this size."""

    size: int
    taken: int
    accounts: Accounts
    streams: int


class Account(NamedTuple):
    state: str
    most: int  # that it may be made large in
    half: Weighed
    whole: Weighed

    @property
    def taken(self) -> int:
        return self.whole.taken - self.half.taken

    @property
    def counted(self) -> int:
        return sum(self.whole.accounts) - sum(self.half.accounts)

    @property
    def uncounted(self) -> float:
        """Of one tenant, with as many of them, as large as they may be, as it may have."""
        times = self.most / (self.whole.size - self.half.size)
        grown = [*zip(self.half.accounts, self.whole.accounts, LIMITS, strict=True)]
        grown.append((self.half.streams, self.whole.streams, STREAMS))
        # Of each of these, what one has of it.
        least = ((limit, whole + (whole - half) * (times - 2)) for half, whole, limit in grown)
        return (self.taken - self.counted) * times * min(limit / max(1, each) for limit, each in least)

    @property
    def is_short(self) -> bool:
        return self.taken > MOST_TIMES * self.counted + LITTLE and self.uncounted > MOST_UNCOUNTED

    @property
    def is_coarse(self) -> bool:
        return self.counted > max(ENOUGH, MANY_TIMES * self.taken)

    def __str__(self) -> str:
        return (
            f"{self.state} ({self.half.size}, {self.whole.size}): takes {self.taken >> 10} KiB more, "
            f"{self.counted >> 10} counted; of a tenant {self.uncounted / 2**20:.0f} MiB uncounted"
        )


async def measure(scale: float, states: Sequence[str] = ()) -> dict[str, Any]:
    """`states`: these alone."""
    names = states or list(EVERY)
    if unknown := set(names) - set(EVERY):
        raise ValueError(f"no state {', '.join(sorted(unknown))}; there are {', '.join(EVERY)}")
    loop, accounts = asyncio.get_running_loop(), list[Account]()
    each_apart = get_context("forkserver")
    each_apart.set_forkserver_preload([__name__])
    with ProcessPoolExecutor(WORKERS, mp_context=each_apart, max_tasks_per_child=1) as pool:
        jobs = [loop.run_in_executor(pool, account, name, int(EVERY[name].most * scale)) for name in names]
        for at, job in enumerate(asyncio.as_completed(jobs), 1):
            accounts.append(await job)
            print(f"{at} of {len(names)}: {accounts[-1]}", file=sys.stderr, flush=True)
    accounts.sort(key=lambda account: account.uncounted, reverse=True)
    short = [str(account) for account in accounts if account.is_short]
    return {
        "name": "accounts",
        "states": len(names),
        "least counted": [str(account) for account in accounts[:TOLD]],
        "counted too little": short,
        "counted far too much": [str(account) for account in accounts if account.is_coarse],
        "goal": f"no memory grows {MOST_TIMES:g} times as fast as what is counted of it, where that comes to "
        f"more than {MOST_UNCOUNTED >> 20} MiB of a tenant that nobody counts",
        "met": not short,
    }


def account(name: str, largest: int) -> Account:
    """Of one that is made no larger than that."""
    state = EVERY[name]
    model()
    weighed(state, LEAST)  # what is there once is there from now on
    half, whole = weighed(state, LEAST), weighed(state, 2 * LEAST)
    while 2 * whole.size <= largest:
        found = Account(name, state.most, half, whole)
        if max(found.taken, found.counted) > ENOUGH:
            break
        half, whole = whole, weighed(state, 2 * whole.size)
    return Account(name, state.most, half, whole)


def weighed(state: State, size: int) -> Weighed:
    gc.collect()
    tracemalloc.start()
    try:
        with asyncio.Runner() as runner:
            world = runner.run(state.build(size))
            world.forget_what_is_played()
            forget_patterns()
            gc.collect()
            taken, _ = tracemalloc.get_traced_memory()
            of_all = zip(*map(accounts, world.hubs), strict=True)
            return Weighed(size, taken, Accounts(*map(sum, of_all)), len(world.streams))
    finally:
        tracemalloc.stop()


def accounts(hub: Hub) -> Accounts:
    return Accounts(
        hub.accounts.total.held,
        hub._registry._ended_streams._kept._holdings.total,
        hub._long_texts._waiting_frames._bytes[None],
        hub._turns._kept._holdings.total,
    )


def forget_patterns() -> None:
    """Those that were asked for last, and what all remember, have limits of their own, and no account."""
    pattern._lately = pattern.Lately(pattern.MOST_KEPT)
    for remembered in list(pattern.Remembered._begun.values()):
        remembered.forget()
