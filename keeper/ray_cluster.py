"""The engines of a fleet as actors: made, found and ended. It is a driver of Ray's for as long as a command
runs; what it makes stays."""

from __future__ import annotations

import logging
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import ray
from ray.exceptions import GetTimeoutError, RayActorError
from ray.util import list_named_actors

from keeper.engine_actor import EngineActor
from keeper.ledger import NAMESPACE
from keeper.plan import Need

LEAVE_S = 30.0  # that an engine has to end in good order


class RayCluster:
    """Within the `with`."""

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> Self:
        ray.init(self._address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        ray.shutdown()

    def engines(self) -> list[str]:
        """By name, also those that no machine has room for."""
        return list(list_named_actors())

    def start(self, name: str, need: Need, arguments: list[str], token: str) -> None:
        """Returns at once: it is there when some machine has what it needs."""
        placed: Any = ray.remote(EngineActor).options(
            name=name,
            lifetime="detached",
            max_restarts=-1,
            num_cpus=need.cpus,
            num_gpus=need.gpus,
            scheduling_strategy="SPREAD",
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
