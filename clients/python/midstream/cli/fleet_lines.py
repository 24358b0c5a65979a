"""A fleet on many machines, in a few lines: its models, what is where, and what has no machine or does not
start. Pure. Names come from whoever runs it, and are sanitized here."""

from __future__ import annotations

from midstream.cli.listing import Engine, Fleet, Model
from midstream.cli.sanitize import sanitize

MOST_LINES = 8  # of machines, and of engines in trouble


def fleet_lines(fleet: Fleet) -> list[str]:
    models = " · ".join(_model(model, fleet) for model in fleet.models)
    machines = [
        f"  {machine.name}: {', '.join(_engine(one) for one in fleet.engines if one.machine == machine.name)}"
        for machine in fleet.machines
        if any(one.machine == machine.name for one in fleet.engines)
    ]
    trouble = [f"  {one.name} {one.state}: {one.why}" for one in fleet.engines if one.why]
    count = len(fleet.machines)
    lines = [
        f"{count} {'machine' if count == 1 else 'machines'}: {models}",
        *_some(machines),
        *_some(trouble),
    ]
    return [sanitize(line) for line in lines]


def _model(model: Model, fleet: Fleet) -> str:
    ready = sum(one.model == model.name and one.state == "ready" for one in fleet.engines)
    may = f" (up to {model.most})" if model.most > max(model.engines, model.least) else ""
    sleeps = ", sleeps" if model.may_sleep and not model.engines else ""
    return f"{model.name} {ready} of {model.engines}{may}{sleeps}"


def _engine(one: Engine) -> str:
    return one.name if one.state == "ready" else f"{one.name} ({one.state})"


def _some(lines: list[str]) -> list[str]:
    if len(lines) <= MOST_LINES:
        return lines
    return [*lines[: MOST_LINES - 1], f"  … and {len(lines) - MOST_LINES + 1} more"]
