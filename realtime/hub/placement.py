"""Placement: which machines there are, which engines run where, and how many each model is to have, as the
keeper of a fleet on many machines tells it. Pure."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

EngineState = Literal["ready", "loading", "failed", "waiting"]
ENGINE_STATES: tuple[EngineState, ...] = ("ready", "loading", "failed", "waiting")


class PlacedMachine(Struct, frozen=True):
    name: str
    cpus: int
    gpus: int
    memory: int  # bytes, for whatever runs there


class PlacedEngine(Struct, frozen=True):
    name: str
    model: str
    state: EngineState  # waiting: no machine has room for it
    machine: str  # none while it waits
    address: str
    why: str  # it failed, was started anew, or waits


class PlacedModel(Struct, frozen=True):
    name: str
    engines: int  # that it is to have now
    least: int  # that it may have, while it is loaded
    most: int
    may_sleep: bool  # whether it has none while nobody needs it


class Placement(Struct, frozen=True):
    machines: list[PlacedMachine]
    engines: list[PlacedEngine]
    models: list[PlacedModel]
