"""The engines of a fleet as actors: made, found and ended by a driver of Ray's, or by another actor."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util import list_named_actors

from keeper.autoscaler_actor import AutoscalerActor
from keeper.engine_actor import EngineActor
from keeper.ledger import NAMESPACE
from keeper.plan import Need, is_engine

LEAVE_S = 30.0  # that an engine has to end in good order
LOOK_EVERY_S = 0.05  # whether an actor is gone
AUTOSCALER = "autoscaler"
KEPT: dict[str, Any] = {"lifetime": "detached", "max_restarts": -1}


@contextmanager
def driver_of(address: str) -> Iterator[RayCluster]:
    """For as long as a command runs; what it makes stays."""
    ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield RayCluster()
    finally:
        ray.shutdown()


class RayCluster:
    def engines(self) -> list[str]:
        """By name, also those that no machine has room for."""
        return [actor for actor in list_named_actors() if is_engine(actor)]

    def start(self, name: str, need: Need, arguments: list[str], token: str) -> None:
        """Returns at once: it is there when some machine has what it needs."""
        placed: Any = ray.remote(EngineActor).options(
            name=name, num_cpus=need.cpus, num_gpus=need.gpus, scheduling_strategy="SPREAD", **KEPT
        )
        placed.remote(name, arguments, token)

    def end(self, name: str, *, hands_over: bool) -> None:
        """`hands_over`: whether it had a machine, so that it may have streams."""
        actor = ray.get_actor(name)
        if hands_over:
            # One that does not answer has been missed by gateways.
            with suppress(GetTimeoutError, RayActorError):
                ray.get(actor.leave.remote(), timeout=LEAVE_S)
        ray.kill(actor, no_restart=True)

    def scale(self, *, scales: bool) -> None:
        """Whether an autoscaler is to be there: a new one, with this very code."""
        if AUTOSCALER in list_named_actors():
            ray.kill(ray.get_actor(AUTOSCALER), no_restart=True)
        while AUTOSCALER in list_named_actors():
            time.sleep(LOOK_EVERY_S)
        if scales:
            placed: Any = ray.remote(AutoscalerActor).options(name=AUTOSCALER, num_cpus=0, **KEPT)
            placed.remote(self)
