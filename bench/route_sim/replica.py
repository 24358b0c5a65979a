"""A replica, step by step: it decodes all rows, and computes prompts in chunks, in the order of their
arrival; its cache keeps the blocks that were used last.

Steps in which nothing but decoding is done are made many at once, up to the next end.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from dataclasses import dataclass

from bench.route_sim.trace import BLOCK, Request

STEP_S, ROW_S, TOKEN_S = 0.010, 0.00015, 1 / 12_000
STEP_TOKENS, ROWS, BLOCKS = 2048, 128, 1000


@dataclass(eq=False)
class Waiting:
    request: Request
    arrived_s: float
    missing: int  # tokens of its prompt that are not computed


class Replica:
    def __init__(self) -> None:
        self.cache = OrderedDict[int, None]()
        self.waiting_tokens = 0
        self.first_token_s = list[float]()
        self.found = self.asked = 0
        self.busy_s = 0.0
        self.decoded = 0  # tokens
        self._waiting = deque[Waiting]()
        self._ends = list[int]()  # of its rows: behind how many steps of its life
        self._steps = 0
        self._now = 0.0  # when the last step ended

    @property
    def requests(self) -> int:
        return len(self._waiting) + len(self._ends)

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._ends)

    def add(self, request: Request) -> None:
        """It has been brought to when the request comes."""
        self._now = max(self._now, request.at_s)
        held = 0
        for digest in request.blocks:
            if digest not in self.cache:
                break
            held += 1
        missing = max(1, request.tokens - held * BLOCK)
        self.found += min(held * BLOCK, request.tokens)
        self.asked += request.tokens
        self.waiting_tokens += missing
        self._waiting.append(Waiting(request, request.at_s, missing))

    def advance(self, until: float) -> None:
        """Make the steps that begin before then."""
        while self.busy and self._now < until:
            if self._waiting and len(self._ends) < ROWS:
                self._step()
            else:
                self._decode(until)

    def _step(self) -> None:
        budget, prefilled, first = STEP_TOKENS - len(self._ends), 0, list[Waiting]()
        decoding = len(self._ends)
        while self._waiting and prefilled < budget and decoding + len(first) < ROWS:
            head = self._waiting[0]
            chunk = min(budget - prefilled, head.missing)
            head.missing -= chunk
            prefilled += chunk
            if not head.missing:
                first.append(self._waiting.popleft())
        self.waiting_tokens -= prefilled
        self._pass(1, STEP_S + ROW_S * decoding + TOKEN_S * prefilled)
        for one in first:
            self.first_token_s.append(self._now - one.arrived_s)
            heapq.heappush(self._ends, self._steps + one.request.output)
            self.decoded += one.request.output
            self._keep(one.request.blocks)

    def _decode(self, until: float) -> None:
        each = STEP_S + ROW_S * len(self._ends)
        steps = self._ends[0] - self._steps
        if until < self._now + steps * each:
            steps = min(steps, int((until - self._now) / each) + 1)
        self._pass(steps, steps * each)

    def _pass(self, steps: int, seconds: float) -> None:
        self._steps += steps
        self._now += seconds
        self.busy_s += seconds
        while self._ends and self._ends[0] <= self._steps:
            heapq.heappop(self._ends)

    def _keep(self, blocks: tuple[int, ...]) -> None:
        for digest in blocks:
            self.cache[digest] = None
            self.cache.move_to_end(digest)
        while len(self.cache) > BLOCKS:
            self.cache.popitem(last=False)
