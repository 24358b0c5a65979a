"""The autoscaler of a fleet, as an actor that Ray starts anew, here or elsewhere, when it dies."""

from __future__ import annotations

import logging
import os
import time
from threading import Thread

import ray
from ray.exceptions import RayError

from keeper.autoscaler import Autoscaler
from keeper.fleet import Engines
from keeper.ledger import Ledger, LedgerError

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5


class AutoscalerActor:
    def __init__(self, engines: Engines) -> None:
        self._address = ray.get_runtime_context().gcs_address
        self._autoscaler = Autoscaler(engines, lambda line: print(line, flush=True))
        Thread(target=self._keep, daemon=True).start()

    def _keep(self) -> None:
        try:
            self._keep_looking()
        except Exception:
            log.exception("the autoscaler has died; Ray starts another")
            os._exit(1)

    def _keep_looking(self) -> None:
        while True:
            try:
                ledger = Ledger(self._address)
                while True:
                    self._autoscaler.look(ledger, time.monotonic())
                    time.sleep(LOOK_EVERY_S)
            except (
                LedgerError,
                RayError,
                ValueError,
            ) as problem:  # ValueError: an actor that is gone meanwhile
                log.warning("%s", problem)
                time.sleep(LOOK_EVERY_S)
