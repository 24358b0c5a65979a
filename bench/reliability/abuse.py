"""Abuse: one connection says valid frames of every kind, alone and in pairs, as fast as it can, with the
dearest parameters that may stand, and reads nothing, little or all; so do many connections of one address,
and so does one address with requests over HTTP. Others' answers, others' tokens and the gateway's memory are
looked at meanwhile; and random sequences of frames are ranked by what they cost.

With the toy, to which a row more costs next to nothing; and what has an engine compute most, with the default
model."""

from __future__ import annotations

import asyncio
import itertools
import random
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import midstream
from bench.reliability.abuse_attack import READS
from bench.reliability.abuse_search import search, top_ten
from bench.reliability.abusive_frames import KINDS, SEED
from bench.reliability.abusive_requests import REQUESTS
from bench.reliability.process_memory import own_mib
from bench.reliability.trial_server import complaints, serving
from engine.model import default_model
from tests.server.server_process import Served

ATTACK_S, QUIET_LOOKS = 4.0, 5
SEQUENCES = 300
CROWDS = (7, 20, 50)  # connections of one address
MOST_HEALTH_MS, MOST_GAP, MOST_MIB = 50.0, 1.5, 32.0
TOY = ("--toy-step-ms", "20")
COMPUTED_S = 10.0  # seconds of each attack on the default model
COMPUTED = (
    "many choices, all, 1",
    "many long choices, all, 1",
    "many prompts, all, 1",
    "fork from a token, all, 1",
    "inject many tokens, nothing, 7",
)


class Case(NamedTuple):
    kinds: tuple[str, ...]
    reads: str
    connections: int

    def __str__(self) -> str:
        crowd = f", {self.connections} connections" if self.connections > 1 else ""
        return f"{' + '.join(self.kinds)}, reading {self.reads}{crowd}"


class Seen(NamedTuple):
    health_ms: float  # p99
    gap_ms: float  # p99
    mib: float  # the most


class Outcome(NamedTuple):
    """Of an attack, beside what was seen of the same server without."""

    case: Case
    seen: Seen
    quiet: Seen
    busy: Seen  # beside a process that is busy, and talks to nobody
    before_mib: float  # what was kept of those before it is theirs

    @property
    def health_ms(self) -> float:
        return self.seen.health_ms

    @property
    def gap(self) -> float:
        """In times of quiet."""
        return self.seen.gap_ms / self.quiet.gap_ms

    @property
    def gap_beside_busy(self) -> float:
        return self.seen.gap_ms / self.busy.gap_ms

    @property
    def mib(self) -> float:
        return self.seen.mib - self.before_mib

    @property
    def mib_in_all(self) -> float:
        """With what is kept of all attacks before it."""
        return self.seen.mib - self.quiet.mib

    def __str__(self) -> str:
        return (
            f"{self.case}: {self.health_ms:.1f} ms, {self.gap:.2f} x quiet, {self.gap_beside_busy:.2f} x "
            f"beside a busy process, {self.mib:.1f} MiB more, {self.mib_in_all:.1f} above quiet"
        )


def p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100)[98] if len(values) > 1 else float("inf")


async def look(served: Served, seconds: float) -> Seen:
    """Ask `/healthz` and read a stream, for so long."""
    health: list[float] = []
    gaps: list[float] = []
    mib = [own_mib(served.process.pid)]

    def ask() -> None:
        urllib.request.urlopen(served.http + "/healthz").read()

    async def probe() -> None:
        while True:
            since = time.perf_counter()
            await asyncio.to_thread(ask)
            health.append((time.perf_counter() - since) * 1000)
            mib.append(own_mib(served.process.pid))
            await asyncio.sleep(0.01)

    async def read() -> None:
        async with midstream.connect(served.http) as client:
            stream = await client.start(prompt="Once", ignore_eos=True, max_tokens=8000)
            last = None
            async for _ in stream:
                now = time.perf_counter()
                if last is not None:
                    gaps.append((now - last) * 1000)
                last = now

    tasks = [asyncio.create_task(work()) for work in (probe, read)]
    await asyncio.wait(tasks, timeout=seconds)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return Seen(p99(health), p99(gaps), max(mib))


async def quiet_looks(served: Served, seconds: float) -> Seen:
    """As long as an attack each, so that what is compared is as rare among as many."""
    await look(served, 1.0)
    looks = [await look(served, seconds) for _ in range(QUIET_LOOKS)]
    return Seen(*map(statistics.median, zip(*looks, strict=True)))


async def attacked(
    served: Served, kinds: tuple[str, ...], reads: str, connections: int, seconds: float
) -> Seen:
    host = served.http.removeprefix("http://")
    command = [
        "-m",
        "bench.reliability.abuse_attack",
        host,
        "+".join(kinds),
        reads,
        str(seconds),
        str(connections),
    ]
    async with beside(*command) as attacker:
        seen = await look(served, seconds)
        await attacker.wait()
    return seen


@asynccontextmanager
async def beside(*command: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A process that has begun."""
    process = await asyncio.create_subprocess_exec(sys.executable, *command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    await process.stdout.readline()
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def within(one: Outcome) -> bool:
    return one.health_ms <= MOST_HEALTH_MS and one.gap <= MOST_GAP and one.mib <= MOST_MIB


def cases(scale: float) -> list[Case]:
    """Each kind alone with each way of reading, each pair of frames with one of them, and each kind of a
    crowd; a part of all, always the same."""
    chance = random.Random(SEED)
    every = [Case((kind,), reads, 1) for kind in (*KINDS, *REQUESTS) for reads in READS]
    every += [Case(pair, chance.choice(READS), 1) for pair in itertools.combinations(KINDS, 2)]
    every += [
        Case((kind,), reads, crowd) for kind in KINDS for reads in ("nothing", "all") for crowd in CROWDS
    ]
    return chance.sample(every, max(3, int(len(every) * scale)))


async def dearest_frames(sequences: int) -> dict[str, str]:
    found = top_ten(await search(sequences))
    print("\n".join(["the dearest frames:", *(f"  {one}" for one in found)]), file=sys.stderr)
    return {
        "the dearest frame": str(found[0]),
        "what holds most": str(max(found, key=lambda one: one.held_bytes)),
    }


def named(attack: str) -> Case:
    """Such as `fork + rewind by one, all, 50`."""
    kinds, reads, connections = (part.strip() for part in attack.rsplit(",", 2))
    return Case(tuple(kind.strip() for kind in kinds.split("+")), reads, int(connections))


async def one_server(
    cases: Sequence[Case], attack_s: float, *options: str
) -> tuple[list[Outcome], list[str]]:
    """What came of these, one after the other, and what the server complained of."""
    outcomes = list[Outcome]()
    async with serving(*options, loaded=False) as served:
        quiet = await quiet_looks(served, attack_s)
        async with beside("-m", "bench.reliability.busy_neighbour"):
            busy = await quiet_looks(served, attack_s)
        for case in cases:
            before_mib = own_mib(served.process.pid)
            seen = await attacked(served, *case, attack_s)
            outcomes.append(Outcome(case, seen, quiet, busy, before_mib))
            print(outcomes[-1], file=sys.stderr, flush=True)
        said = complaints(served)
        print("\n".join(said), file=sys.stderr)
    return outcomes, said


async def measure(scale: float, attack_s: float = ATTACK_S, attacks: Sequence[str] = ()) -> dict[str, Any]:
    """`attacks`: these alone, each on a server of its own."""
    dearest = {} if attacks else await dearest_frames(int(SEQUENCES * scale))
    outcomes, said = list[Outcome](), list[str]()
    for some in [[named(attack)] for attack in attacks] or [cases(scale)]:
        more, complained = await one_server(some, attack_s, *TOY)
        outcomes += more
        said += complained
    computed = list[Outcome]()
    if not attacks:
        default = "--model", str(default_model.ensure())
        computed, complained = await one_server([*map(named, COMPUTED)], COMPUTED_S, *default)
        said += complained

    def worst(what: str, of: Sequence[Outcome] = outcomes) -> str:
        one = max(of, key=lambda one: getattr(one, what))
        return f"{getattr(one, what):.2f} ({one.case})"

    return {
        "name": "abuse",
        "attacks": len(outcomes),
        "seconds each": attack_s,
        "others' /healthz, quiet, p99 ms": round(outcomes[0].quiet.health_ms, 1),
        "the same beside a busy process": round(outcomes[0].busy.health_ms, 1),
        "others' /healthz, worst p99 ms": worst("health_ms"),
        "others' gap between tokens, worst p99, times quiet": worst("gap"),
        "times quiet beside a busy process": worst("gap_beside_busy"),
        "gateway's memory, most that one attack adds, MiB": worst("mib"),
        "the same behind all of them, above quiet": worst("mib_in_all"),
        **({"gaps with the default model, times quiet": worst("gap", computed)} if computed else {}),
        **dearest,
        "complaints": len(said),
        "goal": f"p99 at most {MOST_HEALTH_MS:g} ms, {MOST_GAP:g} x quiet, {MOST_MIB:g} MiB",
        "met": not said and all(within(one) for one in [*outcomes, *computed]),
    }
