"""How many engines each model is to have, by what users feel: more where a newcomer's first token would be
late, fewer where as many are not needed, none where nobody needs the model and it may sleep. Pure.

What is too few for a load cannot be known beforehand: it is learnt whenever first tokens come late, and tried
again later and later, but soon where the load is half of what it was.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from keeper.plan import ModelPlan, Plan
from realtime.hub.demand import Demand

LATE_S = 1.0  # for which first tokens are to be late before there are more
QUIET_S = 60.0  # for which fewer are to do before there are fewer; no longer than a model stays loaded
TOO_FEW_S, LONGEST_S = 300.0, 14_400.0  # for which a count is not tried again that was too few
SPARE = 0.5  # of the time that a first token may take, with one engine fewer


def first_token_s(model: ModelPlan, demand: Demand, ready: int) -> float:
    """What a newcomer waits: at the engine where it is soonest, or, while some are still being started, as if
    all had taken their share."""
    if ready and ready >= model.engines:
        busy = [max(wait.work_s, wait.waited_s) for engine, wait in demand.waits.items() if engine]
        return min(busy) if len(busy) >= ready else 0.0
    return sum(wait.work_s for wait in demand.waits.values()) / max(1, model.engines)


def would_do(model: ModelPlan, demand: Demand, engines: int) -> bool:
    """Whether so many, fewer than there are, have first tokens soon, and go on soon with others' streams."""
    waited_s = max((wait.waited_s for wait in demand.waits.values()), default=0.0)
    waiting_s = sum(wait.work_s for wait in demand.waits.values())
    handed_over_s = demand.work_s * (model.engines - engines) / model.engines
    soon = max(waited_s, waiting_s / engines) <= SPARE * model.first_token_s
    return soon and handed_over_s / engines <= model.first_token_s


@dataclass
class Memory:
    """What is remembered of a model."""

    late_since: float | None = None
    quiet_since: float | None = None
    idle_since: float | None = None
    too_few: int = 0  # engines
    for_streams: int = 0
    for_s: float = TOO_FEW_S
    until: float = -math.inf

    def forget(self) -> None:
        """How it was until now."""
        self.late_since = self.quiet_since = self.idle_since = None

    def learn(self, engines: int, streams: int, now: float) -> None:
        """So many were too few."""
        again = self._is_as_it_was(streams) and now < self.until + self.for_s
        self.for_s = min(2 * self.for_s, LONGEST_S) if again else TOO_FEW_S
        self.too_few, self.for_streams, self.until = engines, streams, now + self.for_s

    def least(self, engines: int, streams: int, now: float) -> int:
        """How many are worth a try, where there are so many: half of them, as long as nothing is known."""
        if not self._is_as_it_was(streams):
            return math.ceil(engines / 2)
        return min(engines, self.too_few + 1) if now < self.until else engines - 1

    def _is_as_it_was(self, streams: int) -> bool:
        """The load."""
        return 2 * streams > self.for_streams > 0


class Scaling:
    def __init__(self) -> None:
        self._memory: dict[str, Memory] = {}

    def engines(
        self, plan: Plan, demands: Mapping[str, Demand] | None, ready: Mapping[str, int], now: float
    ) -> dict[str, int]:
        """Of models that are to have more or fewer than the plan says. `demands`: None where no gateway says
        anything, so that nothing is known. `ready`: engines that serve."""
        if demands is None:
            self._memory.clear()
            return {}
        scaled = {name: model for name, model in plan.models.items() if model.scales}
        self._memory = {name: self._memory.get(name, Memory()) for name in scaled}
        wanted = {
            name: _engines(model, demands.get(name, Demand()), ready.get(name, 0), self._memory[name], now)
            for name, model in scaled.items()
        }
        return {name: count for name, count in wanted.items() if count != scaled[name].engines}


def _engines(model: ModelPlan, demand: Demand, ready: int, memory: Memory, now: float) -> int:
    if not model.engines:
        return model.least if demand.streams else 0
    if _is_idle(demand, memory, now) >= _or_for_ever(model.keep_alive_s):
        memory.forget()
        return 0
    late_s = first_token_s(model, demand, ready)
    if late_s > model.first_token_s:
        memory.quiet_since = None
        memory.late_since = now if memory.late_since is None else memory.late_since
        if now - memory.late_since >= LATE_S and model.engines < model.most:
            memory.forget()
            if ready >= model.engines:
                memory.learn(model.engines, demand.streams, now)
            times = min(2.0, late_s / model.first_token_s)
            return min(model.most, max(model.engines + 1, math.ceil(times * model.engines)))
        return model.engines
    memory.late_since = None
    fewer = _fewer(model, demand, memory.least(model.engines, demand.streams, now))
    if fewer == model.engines:
        memory.quiet_since = None
        return fewer
    memory.quiet_since = now if memory.quiet_since is None else memory.quiet_since
    if now - memory.quiet_since < min(QUIET_S, _or_for_ever(model.keep_alive_s)):
        return model.engines
    memory.forget()
    return fewer


def _or_for_ever(seconds: float | None) -> float:
    return math.inf if seconds is None else seconds


def _is_idle(demand: Demand, memory: Memory, now: float) -> float:
    """For how long; -1 where it is not."""
    if demand.streams:
        memory.idle_since = None
        return -1.0
    memory.idle_since = now if memory.idle_since is None else memory.idle_since
    return now - memory.idle_since


def _fewer(model: ModelPlan, demand: Demand, least: int) -> int:
    """The fewest that would do."""
    tried = range(max(least, model.least), model.engines)
    would = (count for count in tried if would_do(model, demand, count))
    return next(would, model.engines)
