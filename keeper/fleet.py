"""What a fleet is told to do: to be as its plan says, to be replaced engine by engine, to go.

It knows the plan, the ledger and engines by name, and what it does it says, in lines. It does not know Ray.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Protocol

from keeper.plan import (
    GATEWAY,
    Kept,
    Need,
    Plan,
    PlanError,
    is_gateway,
    missing,
    model_and_number,
    new_engine,
    surplus,
)

LOOK_EVERY_S = 0.2
PLACED_WITHIN_S = 15.0  # a new engine, beside the old one; else there is no room for both


class Engines(Protocol):
    def engines(self) -> list[str]: ...
    def start(self, name: str, need: Need, arguments: list[str], token: str) -> None: ...
    def end(self, name: str, *, hands_over: bool) -> None: ...


class Entries(Protocol):
    def plan(self) -> Plan | None: ...
    def set_plan(self, plan: Plan) -> None: ...
    def forget(self) -> None: ...
    def kept(self) -> dict[str, Kept]: ...
    def strike_out(self, engine: str) -> None: ...


class Fleet:
    def __init__(self, engines: Engines, ledger: Entries, say: Callable[[str], None]) -> None:
        self._engines = engines
        self._ledger = ledger
        self._say = say

    def follow(self, plan: Plan, models: Collection[str] | None = None) -> None:
        """In these models, or in all. Engines that are there stay as they were started."""
        before = self._ledger.plan()
        self._ledger.set_plan(plan)
        self._end_surplus(plan, models)
        for model in missing(plan, self._engines.engines()):
            if models is None or model in models:
                self._start(plan, model)
        for model in _otherwise(before, plan):
            these = "gateways" if model == GATEWAY else f'engines of "{model}"'
            self._say(f"{these} that run have their former options: `midstream fleet roll` gives them these")

    def roll(self, models: Collection[str], *, begun: Callable[[], None]) -> None:
        """All engines of these models, or of all, by new ones: one by one, each beside the old one until it
        is ready, if there is room for both. `begun`: the plan says so, and others scale by it."""
        plan = self.plan()
        plan.check(models)
        self._end_surplus(plan, models or None)  # of a roll that was killed; it would take the room of others
        old = [
            name
            for name in sorted(self._engines.engines(), key=model_and_number)
            if model_and_number(name)[0] in (models or plan.models)
        ]
        self._ledger.set_plan(plan.rolled({model_and_number(name)[0] for name in old}))
        try:
            begun()
            for name in old:
                self._replace(plan, model_and_number(name)[0], name)
        finally:
            self._ledger.set_plan(self.plan().rolled([]))

    def down(self) -> None:
        there = sorted(self._engines.engines(), key=model_and_number)
        for name in sorted(there, key=is_gateway, reverse=True):  # nobody comes any more
            self._end(name)
        self._ledger.forget()

    def plan(self) -> Plan:
        plan = self._ledger.plan()
        if plan is None:
            raise PlanError("there is no fleet here yet: `midstream fleet up` brings one up")
        return plan

    def _end_surplus(self, plan: Plan, models: Collection[str] | None) -> None:
        for name in surplus(plan, self._engines.engines()):
            if models is None or model_and_number(name)[0] in models:
                self._end(name)

    def _replace(self, plan: Plan, model: str, old: str) -> None:
        new = self._start(plan, model)
        if not self._placed(new):
            self._say(f"no machine has room for {new} beside the others: {old} goes first")
            self._end(old)
            self._until_ready(new)
        else:
            self._until_ready(new)
            self._end(old)

    def _placed(self, name: str) -> bool:
        until = time.monotonic() + PLACED_WITHIN_S
        while time.monotonic() < until:
            if name in self._ledger.kept():
                return True
            time.sleep(LOOK_EVERY_S)
        return False

    def _until_ready(self, name: str) -> None:
        while True:
            kept = self._ledger.kept().get(name)
            if kept is not None and kept.state == "ready":
                return
            if name not in self._engines.engines():
                raise PlanError(f"{name} is gone: somebody else has ended it")
            if kept is not None and kept.state == "failed":
                raise PlanError(f"{name} does not start, and the others stay as they are: {kept.why}")
            time.sleep(LOOK_EVERY_S)

    def _start(self, plan: Plan, model: str) -> str:
        name, as_planned = new_engine(model, self._engines.engines()), plan.models[model]
        self._engines.start(name, as_planned.need, as_planned.arguments, plan.token)
        self._say(f"{name} is started, and asks for {as_planned.need}")
        return name

    def _end(self, name: str) -> None:
        was_somewhere = name in self._ledger.kept()
        self._engines.end(name, hands_over=was_somewhere)
        self._ledger.strike_out(name)
        self._say(f"{name} {'has handed over, and' if was_somewhere else 'had no machine, and'} is ended")


def _otherwise(before: Plan | None, plan: Plan) -> list[str]:
    if before is None:
        return []
    return [
        name
        for name, model in plan.models.items()
        if name in before.models and before.models[name].arguments != model.arguments
    ]
