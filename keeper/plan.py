"""The plan of a fleet: how many engines each model is to have, how they are started, and what they ask of a
machine. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Literal, NamedTuple

from msgspec import Struct, structs

from engine.api import Outline
from realtime.config import ListenOptions, ModelOptions, spelled
from realtime.fleet.models_file import FIRST_TOKEN_S, ModelEntry

MOST_ENGINES = 1024  # of a model
GATEWAY = "gateway"  # stands for a model in the plan, and in names: they are kept as engines are
GIB = 2**30


class PlanError(Exception):
    """It cannot be had so; the message is a sentence."""


class Range(NamedTuple):
    """Of how many engines a model may have."""

    least: int
    most: int


class Need(Struct, frozen=True):
    """What an engine asks of a machine."""

    cpus: int
    gpus: int
    memory: int = 0  # bytes, of the host's

    def __str__(self) -> str:
        gpus = [counted(self.gpus, "GPU")] * bool(self.gpus)
        memory = [f"{self.memory / GIB:.1f} GiB of memory"] * bool(self.memory)
        *others, last = [counted(self.cpus, "CPU"), *gpus, *memory]
        return f"{', '.join(others)} and {last}" if others else last


class ModelPlan(Struct, frozen=True):
    engines: int
    arguments: list[str]  # of `midstream engine`
    need: Need
    least: int = 1  # engines, while it is loaded
    most: int = 1
    first_token_s: float = FIRST_TOKEN_S  # for which one may wait
    keep_alive_s: float | None = None  # for which it stays loaded when nobody needs it; None is for ever
    is_rolled: bool = False  # now: there are more and fewer for another reason

    @property
    def may_sleep(self) -> bool:
        """Whether it has no engine while nobody needs it."""
        return self.keep_alive_s is not None

    @property
    def scales(self) -> bool:
        """Whether it has more and fewer engines by itself."""
        return not self.is_rolled and (self.may_sleep or self.least < self.most)

    def with_range(self, engines: Range) -> ModelPlan:
        """Also in what it has now, unless it sleeps."""
        sleeps = self.may_sleep and not self.engines and engines.most
        now = 0 if sleeps else min(max(self.engines, engines.least), engines.most)
        return structs.replace(self, engines=now, least=engines.least, most=engines.most, is_rolled=False)


class Plan(Struct, frozen=True):
    token: str  # that gateways show
    models: dict[str, ModelPlan]  # and gateways, where they are kept too

    @property
    def served(self) -> dict[str, ModelPlan]:
        """Models alone."""
        return {name: model for name, model in self.models.items() if name != GATEWAY}

    def with_gateways(self, count: int, arguments: Sequence[str]) -> Plan:
        """`arguments`: of `midstream serve`."""
        arguments = [*arguments, "--share-port", "true"]  # a new one may come beside the old
        return self._with({GATEWAY: ModelPlan(count, arguments, Need(1, 0), count, count)})

    def check(self, models: Iterable[str]) -> None:
        """That there are such."""
        for model in models:
            if model not in self.models:
                known = ", ".join(self.models)
                raise PlanError(f'there is no model "{model}" in this fleet; there is {known}')

    def ranged(self, ranges: Mapping[str, Range]) -> Plan:
        """With so many engines of these models, or as many as fit into the range."""
        self.check(ranges)
        if GATEWAY in ranges and ranges[GATEWAY].least < ranges[GATEWAY].most:
            raise PlanError("of gateways there are as many as is said: a balancer has to know them")
        return self._with({name: self.models[name].with_range(engines) for name, engines in ranges.items()})

    def with_engines(self, counts: Mapping[str, int]) -> Plan:
        """Now, within the range that there is."""
        return self._with(
            {name: structs.replace(self.models[name], engines=count) for name, count in counts.items()}
        )

    def rolled(self, models: Iterable[str]) -> Plan:
        """Now these, and no others."""
        return self._with(
            {
                name: structs.replace(model, is_rolled=name in set(models))
                for name, model in self.models.items()
            }
        )

    def going_on_from(self, before: Plan | None) -> Plan:
        """What scales by itself has what it came to, and gateways of which nothing is said stay."""
        had = {} if before is None else before.models
        kept = {GATEWAY: had[GATEWAY]} if GATEWAY in had and GATEWAY not in self.models else {}
        return self._with(
            kept
            | {
                name: structs.replace(model, engines=had[name].engines).with_range(
                    Range(model.least, model.most)
                )
                for name, model in self.models.items()
                if model.scales and name in had
            }
        )

    def _with(self, changed: Mapping[str, ModelPlan]) -> Plan:
        return Plan(self.token, {**self.models, **changed})


class Machine(Struct, frozen=True):
    """A node of Ray's."""

    name: str
    cpus: int
    gpus: int
    memory: int  # bytes, for whatever runs there


class Kept(Struct, frozen=True):
    """What an engine's keeper tells of it."""

    state: Literal["loading", "ready", "failed"]
    machine: str
    address: str = ""  # where gateways join
    why: str = ""  # it failed, or was started anew


def planned(entries: Sequence[ModelEntry], outlines: Mapping[str, Outline], token: str) -> Plan:
    """`outlines`: what the files of each model say."""
    if any(entry.name == GATEWAY for entry in entries):
        raise PlanError(f'a model of such a fleet cannot be called "{GATEWAY}", as its gateways are')
    return Plan(token, {entry.name: _model_plan(entry, outlines[entry.name]) for entry in entries})


def engine_name(model: str, number: int) -> str:
    return f"{model}#{number}"


def is_kept(actor: str) -> bool:
    """Whether it keeps an engine or a gateway."""
    return "#" in actor


def is_gateway(name: str) -> bool:
    return model_and_number(name)[0] == GATEWAY


def gateway_options(host: str, arguments: Sequence[str], ray: str, token_file: str) -> list[str]:
    """Of `midstream serve`: `arguments`, and what each is told of its place in the fleet."""
    return ["--host", host, *arguments, "--fleet", "ray", "--ray", ray, "--engine-token-file", token_file]


def model_and_number(engine: str) -> tuple[str, int]:
    model, _, number = engine.rpartition("#")
    return model, int(number)


def new_engine(model: str, there: Iterable[str]) -> str:
    """A name that none has, nor had while any of those that are there ran."""
    numbers = [number for name in there for of, number in [model_and_number(name)] if of == model]
    return engine_name(model, max(numbers, default=-1) + 1)


def surplus(plan: Plan, there: Iterable[str]) -> list[str]:
    """Engines beyond the plan, the youngest first."""
    left = {name: model.engines for name, model in plan.models.items()}
    too_many = []
    for engine in sorted(there, key=model_and_number):
        model, _ = model_and_number(engine)
        left[model] = left.get(model, 0) - 1
        if left[model] < 0:
            too_many.append(engine)
    return too_many[::-1]


def missing(plan: Plan, there: Iterable[str]) -> list[str]:
    """Models that lack an engine, each as often as it lacks one."""
    have = [model_and_number(name)[0] for name in there]
    return [name for name, model in plan.models.items() for _ in range(model.engines - have.count(name))]


def _model_plan(entry: ModelEntry, outline: Outline) -> ModelPlan:
    options = entry.options
    if options.device.startswith("cuda:"):
        raise PlanError(
            f'"{entry.name}" has the device {options.device}, and which of a machine\'s GPUs an engine has is'
            ' Ray\'s to say: make it "cuda"'
        )
    cpus = options.threads or 1
    gpus = options.devices if options.device == "cuda" else 0
    of_model = {field.name: getattr(options, field.name) for field in fields(ModelOptions)}
    own = ListenOptions(**of_model | {"threads": cpus, "model_name": entry.name})
    return ModelPlan(
        entry.replicas if entry.keep_alive_s is None else 0,
        spelled(own),
        Need(cpus, gpus, outline.memory_bytes),
        entry.replicas,
        entry.replicas if entry.scale is None else entry.scale.most,
        FIRST_TOKEN_S if entry.scale is None else entry.scale.first_token_s,
        entry.keep_alive_s,
    )


def counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
