"""`make route-sim`: a trace through every policy, and one table. `--trace FILE` plays a file of Mooncake's
form; without one conversations are made up. `--engines` plays fleets of all sizes instead."""

from __future__ import annotations

import argparse
import math
import random
from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from bench.route_sim.policies import POLICIES, Policy, Seen, ours
from bench.route_sim.replica import Replica
from bench.route_sim.trace import Request, made_up, read

SOON_S = 2.0


class Setting(NamedTuple):
    name: str
    replicas: int
    routers: int
    age_s: float  # of what routers know
    times: int  # that the trace is played, side by side


SETTINGS = (
    Setting("8 replicas, 1 router", 8, 1, 0.0, 1),
    Setting("32 replicas, trace x 4, 1 router", 32, 1, 0.0, 4),
    Setting("32 replicas, trace x 4, 8 routers, news 50 ms old", 32, 8, 0.05, 4),
)


class Outcome(NamedTuple):
    mean_s: float
    found: float  # share of prompt tokens
    soon: float  # share of requests with their first token within SOON_S
    cost_us: float  # of a replica's time, for a token that is decoded


# Fleets of all sizes, each with as many conversations for a replica, and a router for every few replicas.
SIZES = (1, 8, 64, 256, 1000)
CONVERSATIONS_A_MINUTE, FEW, NEWS_S = 30, 8, 0.05
QUARTER = 0.25  # of a minute, within which conversations begin
LEAST_REPLICAS = 64  # of smaller fleets so many are played that they have these together


class View:
    """A replica, with its load as it was some time ago."""

    def __init__(self, replica: Replica, age_s: float) -> None:
        self.cache = replica.cache
        self._replica = replica
        self._age_s = age_s
        self._noted = deque[tuple[float, int, int]]()
        self._known = (0, 0)

    def load(self, now: float) -> tuple[int, int]:
        """Tokens that wait, and requests."""
        replica = self._replica
        if not self._age_s:
            return replica.waiting_tokens, replica.requests
        self._noted.append((now, replica.waiting_tokens, replica.requests))
        while self._noted[0][0] <= now - self._age_s:
            self._known = self._noted.popleft()[1:]
        return self._known


class Router:
    def __init__(self, policy: Policy, views: Sequence[View], age_s: float, seed: int) -> None:
        self._policy = policy
        self._views = views
        self._age_s = age_s
        self._chance = random.Random(seed)
        self._sent: list[set[int]] = [set() for _ in views]  # blocks, ever
        self._lately: list[deque[tuple[float, int]]] = [deque() for _ in views]  # tokens

    def route(self, request: Request, now: float) -> int:
        number = self._policy(
            request, [self._seen(at, request, now) for at in range(len(self._views))], self._chance
        )
        self._sent[number].update(request.blocks)
        if self._age_s:
            self._lately[number].append((now, request.tokens))
        return number

    def _seen(self, number: int, request: Request, now: float) -> Seen:
        view = self._views[number]
        waiting, requests = view.load(now)
        lately = self._lately[number]
        while lately and lately[0][0] <= now - self._age_s:
            lately.popleft()
        return Seen(
            number,
            waiting + sum(tokens for _, tokens in lately),
            requests + len(lately),
            len(view.cache),
            _leading(request, view.cache.__contains__),
            _leading(request, self._sent[number].__contains__),
        )


def _leading(request: Request, there: Callable[[int], bool]) -> int:
    return sum(1 for _ in takewhile(there, request.blocks))


def played(trace: list[Request], setting: Setting, made: Callable[[], Policy], seed: int) -> Outcome:
    replicas = [Replica() for _ in range(setting.replicas)]
    views = [View(replica, setting.age_s) for replica in replicas]
    routers = [Router(made(), views, setting.age_s, seed + at) for at in range(setting.routers)]
    chance = random.Random(seed)
    for request in trace:
        for replica in replicas:
            replica.advance(request.at_s)
        replicas[chance.choice(routers).route(request, request.at_s)].add(request)
    for replica in replicas:
        replica.advance(math.inf)
    waits = [wait for replica in replicas for wait in replica.first_token_s]
    return Outcome(
        sum(waits) / len(waits),
        sum(replica.found for replica in replicas) / sum(replica.asked for replica in replicas),
        sum(wait <= SOON_S for wait in waits) / len(waits),
        1e6 * sum(replica.busy_s for replica in replicas) / sum(replica.decoded for replica in replicas),
    )


def fleets(size: int, *, minutes: float, seed: int) -> Outcome:
    """Of this size: the mean of as many as it takes."""
    setting = Setting(f"{size} replicas", size, max(1, size // FEW), NEWS_S, 1)
    conversations = round(CONVERSATIONS_A_MINUTE * minutes * size)
    outcomes = [
        played(made_up(seed + at, conversations, minutes), setting, ours, seed + at)
        for at in range(max(1, LEAST_REPLICAS // size))
    ]
    return Outcome(*(sum(values) / len(outcomes) for values in zip(*outcomes, strict=True)))


def times(trace: list[Request], count: int) -> list[Request]:
    """As if so many had the same day: their blocks are different."""
    most = 1 + max(max(request.blocks, default=0) for request in trace)
    copies = [
        request._replace(blocks=tuple(digest + copy * most for digest in request.blocks))
        for request in trace
        for copy in range(count)
    ]
    return sorted(copies)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.route_sim", description=__doc__)
    parser.add_argument("--trace", type=Path, help="a file of Mooncake's form")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="of the trace that are played (default 60)"
    )
    parser.add_argument(
        "--engines", action="store_true", help=f"fleets of {', '.join(map(str, SIZES))} engines instead"
    )
    asked = parser.parse_args()
    if asked.engines:
        print("| engines | engine's µs a token | mean s to the first | found in caches | within 2 s |")
        print("| --- | --- | --- | --- | --- |")
        for size in SIZES:
            one = fleets(size, minutes=QUARTER, seed=asked.seed)
            told = f"{one.cost_us:,.0f} | {one.mean_s:.2f} | {one.found:.2f} | {one.soon:.2f}"
            print(f"| {size:,} | {told} |", flush=True)
        return 0
    trace = read(asked.trace, asked.seed) if asked.trace else made_up(asked.seed)
    trace = [request for request in trace if request.at_s <= 60 * asked.minutes]
    print(f"{len(trace)} requests, {asked.trace or 'made up'}, seed {asked.seed}:")
    print("mean s to the first token / share of prompts found in caches /")
    print(f"share of requests with their first token within {SOON_S:g} s\n")
    print("| policy | " + " | ".join(setting.name for setting in SETTINGS) + " |")
    print("| --- |" + " --- |" * len(SETTINGS))
    traces = defaultdict[int, list[Request]](list)
    for setting in SETTINGS:
        traces[setting.times] = traces[setting.times] or times(trace, setting.times)
    for name, made in POLICIES.items():
        found = [played(traces[setting.times], setting, made, asked.seed) for setting in SETTINGS]
        cells = [f"{one.mean_s:.2f} / {one.found:.2f} / {one.soon:.2f}" for one in found]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
