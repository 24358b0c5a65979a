"""Two ranks of one engine in one process: whatever rank 0 does in a step the other does behind it, by what it
was told alone, and must come to the same."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from functools import partial
from typing import cast

import msgspec
from torch import Tensor

from engine import api
from engine.engine import Engine
from engine.parallel.ranks import Followers, Leader, LeaderCommandQueue
from engine.pipe import Pipe
from engine.step.told_outlooks import LeaderLookout
from tests.fakes.engine_driver import TOY, Limits, engine_of


class Ranks:
    def __init__(self, limits: Limits) -> None:
        self._chosen = deque[Tensor]()  # tokens, by rank 0
        self._leader = Leader()
        followers = Followers([cast("Pipe", self)])
        lead = partial(LeaderLookout, followers.tell)
        self.first = engine_of(TOY, replace(limits, make_lookout=lead))
        self.first._commands = LeaderCommandQueue(followers)
        self._broadcast(self.first, lambda tokens: self._chosen.append(tokens.clone()))
        self.other = engine_of(TOY, replace(limits, make_lookout=self._leader.make_lookout))
        self.other._commands = self._leader.commands
        self._broadcast(self.other, lambda tokens: tokens.copy_(self._chosen.popleft()))
        self._step, self.first.step = self.first.step, self.step  # type: ignore[method-assign]

    @staticmethod
    def _broadcast(engine: Engine, broadcast: object) -> None:
        engine._executor._sampler._broadcast = broadcast  # type: ignore[assignment]

    def send(self, message: object) -> None:
        self._leader.hears(msgspec.msgpack.encode(message))

    def step(self) -> api.StepOutput:
        here, there = self._step(), self.other.step()
        assert there.news == here.news
        assert _counts(there.stats) == _counts(here.stats)
        return here


def _counts(stats: api.Stats) -> tuple[int, ...]:
    return (
        stats.decode_rows,
        stats.prefill_tokens,
        stats.streams,
        stats.ready,
        stats.kv_used,
        stats.discarded,
    )
