"""What is to be seen of a fleet: its machines, its engines, and what it lacks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keeper.plan import Kept, Machine, Need, Plan, missing, model_and_number


class Seen(NamedTuple):
    plan: Plan
    machines: Mapping[str, Machine]
    placed: Mapping[str, bool]  # by engine, whether a machine has it
    kept: Mapping[str, Kept]

    @property
    def is_whole(self) -> bool:
        ready = [name for name in self.placed if self._state(name) == "ready"]
        return not missing(self.plan, ready)

    def lines(self) -> list[str]:
        return [*self._of_machines(), "", *self._of_engines(), *self._of_models()]

    def _of_machines(self) -> list[str]:
        rows = [("MACHINE", "CPUS", "GPUS", "ENGINES")]
        for node, machine in self.machines.items():
            here = [name for name in self.placed if self.placed[name] and self._node(name) == node]
            named = ", ".join(sorted(here, key=model_and_number)) or "-"
            rows.append((f"{machine.name} {node[:6]}", str(machine.cpus), str(machine.gpus), named))
        return _table(rows)

    def _of_engines(self) -> list[str]:
        rows = [("ENGINE", "STATE", "ADDRESS")]
        for name in sorted(self.placed, key=model_and_number):
            kept = self.kept.get(name)
            rows.append((name, self._state(name), (kept.address if kept is not None else "") or "-"))
        return _table(rows)

    def _of_models(self) -> list[str]:
        """Those that lack one."""
        return [
            f'"{model}" is to have {plan.engines}, and {there} are there'
            for model, plan in self.plan.models.items()
            for there in [sum(model_and_number(name)[0] == model for name in self.placed)]
            if there < plan.engines
        ]

    def _node(self, name: str) -> str:
        return self.kept[name].machine if name in self.kept else ""

    def _state(self, name: str) -> str:
        if not self.placed[name]:
            return self._waiting(name)
        if name not in self.kept:
            return "loading"
        kept = self.kept[name]
        return f"failed: {kept.why}" if kept.state == "failed" else kept.state

    def _waiting(self, name: str) -> str:
        model = self.plan.models.get(model_and_number(name)[0])
        if model is None:
            return "waits for a machine"
        if not any(_has(machine, model.need) for machine in self.machines.values()):
            return f"waits: no machine has {model.need}"
        return f"waits for a machine with {model.need} to spare"


def _has(machine: Machine, need: Need) -> bool:
    return machine.cpus >= need.cpus and machine.gpus >= need.gpus


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
