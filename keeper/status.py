"""What is to be seen of a fleet: its machines, its engines, and what it lacks. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from keeper.plan import GATEWAY, GIB, Kept, Machine, ModelPlan, Need, Plan, missing, model_and_number
from realtime.hub.placement import PlacedEngine, PlacedMachine, PlacedModel, Placement


class Seen(NamedTuple):
    plan: Plan
    machines: Mapping[str, Machine]
    placed: Mapping[str, bool]  # by engine, whether a machine has it
    kept: Mapping[str, Kept]

    @property
    def is_whole(self) -> bool:
        return not missing(self.plan, [one.name for one in self._kept() if one.state == "ready"])

    @property
    def placement(self) -> Placement:
        return Placement(
            [
                PlacedMachine(_named(node, machine), machine.cpus, machine.gpus, machine.memory)
                for node, machine in self.machines.items()
            ],
            [one for one in self._kept() if one.model != GATEWAY],
            [
                PlacedModel(name, model.engines, model.least, model.most, model.may_sleep)
                for name, model in self.plan.served.items()
            ],
        )

    def _kept(self) -> list[PlacedEngine]:
        return [self._one(name) for name in sorted(self.placed, key=model_and_number)]

    def _one(self, name: str) -> PlacedEngine:
        model, _ = model_and_number(name)
        if not self.placed[name]:
            return PlacedEngine(name, model, "waiting", "", "", self._lack(model))
        kept = self.kept.get(name, Kept("loading", ""))
        machine = self.machines.get(kept.machine)
        named = "" if machine is None else _named(kept.machine, machine)
        return PlacedEngine(name, model, kept.state, named, kept.address, kept.why)

    def _lack(self, model: str) -> str:
        if model not in self.plan.models:
            return "for a machine"
        need = self.plan.models[model].need
        if not any(_has(machine, need) for machine in self.machines.values()):
            return f"no machine has {need}"
        return f"for a machine with {need} to spare"

    def lines(self) -> list[str]:
        kept = self._kept()
        engines = [one for one in kept if one.model != GATEWAY]
        gateways = [one for one in kept if one.model == GATEWAY]
        return [
            *self._of_machines(kept),
            "",
            *_of_processes("ENGINE", engines),
            "",
            *self._of_models(engines),
            *(["", *_of_processes("GATEWAY", gateways)] if GATEWAY in self.plan.models else []),
        ]

    def _of_machines(self, kept: Sequence[PlacedEngine]) -> list[str]:
        rows = [("MACHINE", "CPUS", "GPUS", "MEMORY", "RUNS")]
        for machine in self.placement.machines:
            here = ", ".join(one.name for one in kept if one.machine == machine.name)
            memory = f"{machine.memory / GIB:.1f} GiB"
            rows.append((machine.name, str(machine.cpus), str(machine.gpus), memory, here or "-"))
        return _table(rows)

    def _of_models(self, engines: Sequence[PlacedEngine]) -> list[str]:
        rows = [("MODEL", "ENGINES", "IS TO HAVE", "MAY HAVE")]
        for name, model in self.plan.served.items():
            there = sum(one.model == name and one.state == "ready" for one in engines)
            rows.append((name, str(there), str(model.engines), _range(model)))
        return _table(rows)


def _of_processes(what: str, kept: Sequence[PlacedEngine]) -> list[str]:
    rows = [(what, "STATE", "ADDRESS")]
    for one in kept:
        state = "waits" if one.state == "waiting" else one.state
        between = " " if one.why.startswith("for ") else ": "
        rows.append((one.name, f"{state}{between}{one.why}" if one.why else state, one.address or "-"))
    return _table(rows)


def _range(model: ModelPlan) -> str:
    if model.is_rolled:
        return "it is being rolled"
    engines = str(model.least) if model.least == model.most else f"{model.least} to {model.most}"
    return f"{engines}, or none" if model.may_sleep else engines


def _named(node: str, machine: Machine) -> str:
    return f"{machine.name} {node[:6]}"


def _has(machine: Machine, need: Need) -> bool:
    return machine.cpus >= need.cpus and machine.gpus >= need.gpus and machine.memory >= need.memory


def _table(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
