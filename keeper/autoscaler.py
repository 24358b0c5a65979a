"""Has more and fewer engines, as gateways feel it. What must outlive it is in the ledger. It does not know
Ray."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Protocol

from keeper.fleet import Engines, Entries, Fleet
from keeper.gateways import Gateways, Said
from keeper.plan import model_and_number
from keeper.scaling import Scaling


class FeltEntries(Entries, Protocol):
    """With what gateways say."""

    def said(self) -> dict[str, Said]: ...
    def forget_gateway(self, gateway: str) -> None: ...


class CommandedEngines(Engines, Protocol):
    @property
    def is_in_hand(self) -> bool:
        """Whether a command is at work."""


class Autoscaler:
    def __init__(self, engines: CommandedEngines, say: Callable[[str], None]) -> None:
        self._engines = engines
        self._say = say
        self._gateways, self._scaling = Gateways(), Scaling()

    def look(self, ledger: FeltEntries, now: float) -> None:
        plan = ledger.plan()
        if plan is None:
            return
        if any(model.is_rolled for model in plan.models.values()) and not self._engines.is_in_hand:
            plan = plan.rolled([])  # who rolled it was killed
            ledger.set_plan(plan)
        for gateway in self._gateways.hear(ledger.said(), now):
            ledger.forget_gateway(gateway)
        ready = Counter(
            model_and_number(name)[0] for name, kept in ledger.kept().items() if kept.state == "ready"
        )
        changed = self._scaling.engines(plan, self._gateways.demands, ready, now)
        if changed:
            for model, count in changed.items():
                self._say(f'"{model}" is to have {count} instead of {plan.models[model].engines}')
            Fleet(self._engines, ledger, self._say).follow(plan.with_engines(changed), changed)
