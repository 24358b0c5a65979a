"""Policies: which replica a request goes to, by what a router sees of them.

Those of others are written anew from their sources, at their defaults: SGLang's cache-aware router, Ray
Serve's prefix affinity, llm-d's scorers, Dynamo's cost.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from typing import NamedTuple

from bench.route_sim.replica import ROW_S, TOKEN_S
from bench.route_sim.trace import BLOCK, Request
from realtime.hub.router import Choice, Pace, choose


class Seen(NamedTuple):
    """A replica, as a router sees it: as it was a moment ago, and what the router has sent it since."""

    number: int
    waiting_tokens: int
    requests: int
    blocks: int  # in its cache
    held: int  # blocks of the request that it holds
    sent: int  # blocks of the request that this router has ever sent there


Policy = Callable[[Request, Sequence[Seen], random.Random], int]


def round_robin() -> Policy:
    last = -1

    def route(request: Request, seen: Sequence[Seen], chance: random.Random) -> int:
        nonlocal last
        last = (last + 1) % len(seen)
        return last

    return route


def least_requests() -> Policy:
    return lambda request, seen, chance: min(seen, key=lambda one: one.requests).number


def least_waiting_tokens() -> Policy:
    return lambda request, seen, chance: min(seen, key=lambda one: (one.waiting_tokens, one.requests)).number


def sglang_cache_aware() -> Policy:
    def route(request: Request, seen: Sequence[Seen], chance: random.Random) -> int:
        loads = [one.requests for one in seen]
        if max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads):
            return min(seen, key=lambda one: one.requests).number
        best = max(seen, key=lambda one: one.sent)
        if best.sent * BLOCK > 0.3 * request.tokens:
            return best.number
        return min(seen, key=lambda one: one.blocks).number

    return route


def ray_prefix_affinity() -> Policy:
    def route(request: Request, seen: Sequence[Seen], chance: random.Random) -> int:
        loads = [one.requests for one in seen]
        best = max(seen, key=lambda one: one.sent)
        if max(loads) - min(loads) <= 10 and best.sent * BLOCK >= 0.1 * request.tokens:
            return best.number
        first, second = chance.sample(list(seen), 2)
        return min(first, second, key=lambda one: one.requests).number

    return route


def llm_d() -> Policy:
    """Scorers, 3 : 2 : 2."""

    def route(request: Request, seen: Sequence[Seen], chance: random.Random) -> int:
        most = max(one.requests for one in seen) or 1
        fullest = max(one.blocks for one in seen) or 1

        def score(one: Seen) -> float:
            prefix = one.held / max(1, len(request.blocks))
            return 3 * prefix + 2 * (1 - one.requests / most) + 2 * (1 - one.blocks / fullest)

        return max(seen, key=score).number

    return route


def dynamo_cost() -> Policy:
    def route(request: Request, seen: Sequence[Seen], chance: random.Random) -> int:
        blocks = math.ceil(request.tokens / BLOCK)
        return min(seen, key=lambda one: blocks - one.held + one.requests).number

    return route


def soonest_of_all() -> Policy:
    def route(request: Request, seen: Sequence[Seen], chance: random.Random) -> int:
        def first_token_s(one: Seen) -> float:
            return TOKEN_S * (one.waiting_tokens + request.tokens - one.held * BLOCK) + ROW_S * one.requests

        return min(seen, key=first_token_s).number

    return route


def ours() -> Policy:
    """The product's."""
    pace = Pace()
    pace.token_s = TOKEN_S

    def route(request: Request, seen: Sequence[Seen], chance: random.Random) -> int:
        choices = [
            Choice(one.number, pace, one.waiting_tokens, one.requests, one.held * BLOCK) for one in seen
        ]
        chosen = choose(choices, request.tokens, chance)
        assert chosen is not None
        return chosen

    return route


POLICIES: dict[str, Callable[[], Policy]] = {
    "round robin": round_robin,
    "least requests": least_requests,
    "least waiting tokens": least_waiting_tokens,
    "SGLang cache-aware": sglang_cache_aware,
    "Ray prefix affinity": ray_prefix_affinity,
    "llm-d 3:2:2": llm_d,
    "Dynamo cost": dynamo_cost,
    "soonest of all": soonest_of_all,
    "ours: soonest of 2 holders and 3 others": ours,
}
