"""Engines and gateways of a fleet as actors: made, found and ended by a driver of Ray's, or another actor."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError
from ray.util import list_named_actors
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from keeper.autoscaler_actor import AutoscalerActor
from keeper.ledger import NAMESPACE
from keeper.plan import Need, PlanError, is_kept
from keeper.process_actor import ProcessActor

LEAVE_S = 30.0  # that an engine has to end in good order
ANSWER_S = 10.0  # that others have to answer
LOOK_EVERY_S = 0.05  # whether an actor is gone
AUTOSCALER, COMMAND = "autoscaler", "command"
KEPT: dict[str, Any] = {"lifetime": "detached", "max_restarts": -1}


class CommandActor:
    """Stands for a command that changes the fleet. There is no second of its name, and Ray ends it with the
    command's process, however that ends."""

    def __init__(self, who: str) -> None:
        self._who = who

    def who(self) -> str:
        return self._who


@contextmanager
def driver_of(address: str, command: str) -> Iterator[RayCluster]:
    """For as long as the command runs, which alone has the fleet in hand; what it makes stays. Raises
    PlanError where another has it, or no machine of Ray's is here."""
    try:
        ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    except ConnectionError:  # after a minute: one that is just being started may take as long
        raise PlanError(
            f"no machine of the Ray at {address} is here, and {command} has to be said on one:"
            f" `ray start --address {address}` makes this one"
        ) from None
    # It ends as by Ctrl-C. Ray's own handler would say where in the code that was, and end it at once.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        with _in_hand(f"{command}, process {os.getpid()} on {socket.gethostname()}"):
            yield RayCluster()
    finally:
        ray.shutdown()


@contextmanager
def _in_hand(who: str) -> Iterator[None]:
    named: Any = ray.remote(CommandActor).options(name=COMMAND, num_cpus=0)
    try:
        actor = named.remote(f"{who}, since {time.strftime('%H:%M:%S')}")
    except ValueError:  # there is one
        raise PlanError(f"{_who_has_it()}, is at work on this fleet: wait until it is done") from None
    try:
        yield
    finally:
        del actor  # until then Ray keeps it
        _end(COMMAND)


def _who_has_it() -> str:
    with suppress(ValueError, RayError):  # it is gone, or has just begun
        who: str = ray.get(ray.get_actor(COMMAND).who.remote(), timeout=ANSWER_S)
        return who
    return "another command, which has just begun or ended"


class RayCluster:
    def engines(self) -> list[str]:
        """By name, also those that no machine has room for."""
        return [actor for actor in list_named_actors() if is_kept(actor)]

    def start(self, name: str, need: Need, arguments: list[str], token: str) -> None:
        """Returns at once: it is there when some machine has what it needs."""
        placed: Any = ray.remote(ProcessActor).options(
            name=name,
            num_cpus=need.cpus,
            num_gpus=need.gpus,
            memory=need.memory,
            scheduling_strategy=PlacementGroupSchedulingStrategy(_group(name, need)),
            **KEPT,
        )
        placed.remote(name, arguments, token)

    def end(self, name: str, *, hands_over: bool) -> None:
        """`hands_over`: whether it had a machine, so that it may have streams."""
        with suppress(ValueError):  # else it is gone
            actor = ray.get_actor(name)
            if hands_over:
                # One that does not answer has been missed by gateways.
                with suppress(GetTimeoutError, RayActorError):
                    ray.get(actor.leave.remote(), timeout=LEAVE_S)
            ray.kill(actor, no_restart=True)
        _free(name)

    def free_what_nobody_has(self) -> None:
        """Room on machines for engines that are gone, or never were: whoever kept it was killed meanwhile."""
        there = self.engines()
        for group in placement_group_table().values():
            if is_kept(group["name"]) and group["name"] not in there:
                _free(group["name"])

    @property
    def is_in_hand(self) -> bool:
        """Whether a command is at work."""
        return COMMAND in list_named_actors()

    def rest(self, *, rests: bool) -> None:
        """The autoscaler, for as long as a command is at work."""
        with suppress(ValueError, RayActorError):  # there is none, or there will be another, which rests too
            autoscaler = ray.get_actor(AUTOSCALER)
            try:
                ray.get(autoscaler.rest.remote(rests), timeout=LEAVE_S)  # it may wait for an engine's end
            except GetTimeoutError:
                ray.kill(autoscaler, no_restart=False)

    def scale(self, *, scales: bool) -> None:
        """Whether an autoscaler is to be there: a new one, with this very code."""
        _end(AUTOSCALER)
        if scales:
            placed: Any = ray.remote(AutoscalerActor).options(name=AUTOSCALER, num_cpus=0, **KEPT)
            placed.remote(self)


def _group(name: str, need: Need) -> PlacementGroup:
    """One for each: Ray has it on the machine with most to spare, and again after that one's death. An actor
    by itself goes to the next in turn, and after some deaths all would be on one machine."""
    with suppress(ValueError):
        return get_placement_group(name)  # by whoever was killed before its actor was there
    asks = {"CPU": need.cpus, "GPU": need.gpus, "memory": need.memory}
    bundle = {what: float(much) for what, much in asks.items() if much}
    return placement_group([bundle], name=name, lifetime="detached")


def _free(name: str) -> None:
    with suppress(ValueError):  # there is none
        remove_placement_group(get_placement_group(name))


def _end(name: str) -> None:
    """Returns when the actor is gone, if there was one."""
    with suppress(ValueError):
        ray.kill(ray.get_actor(name), no_restart=True)
    while name in list_named_actors():
        time.sleep(LOOK_EVERY_S)
