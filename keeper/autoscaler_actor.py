"""The autoscaler of a fleet, as an actor that Ray starts anew, here or elsewhere, when it dies."""

from __future__ import annotations

import logging
import time
from threading import Lock, Thread

import ray
from ray.exceptions import RayError

from keeper.autoscaler import Autoscaler, CommandedEngines
from keeper.ledger import Ledger, LedgerError
from keeper.vital_thread import vital

log = logging.getLogger(__name__)

LOOK_EVERY_S = 0.5


class AutoscalerActor:
    def __init__(self, engines: CommandedEngines) -> None:
        self._address = ray.get_runtime_context().gcs_address
        self._engines = engines
        self._looking = Lock()
        self._rests = True  # while a command is at work
        self._autoscaler = Autoscaler(engines, lambda line: print(line, flush=True))
        Thread(target=vital, args=("the autoscaler", self._keep_looking), daemon=True).start()

    def rest(self, rests: bool) -> None:
        """Returns when what it was about is done."""
        with self._looking:
            self._rests = rests

    def _keep_looking(self) -> None:
        while True:
            try:
                ledger = Ledger(self._address)
                while True:
                    with self._looking:
                        self._rests = self._rests and self._engines.is_in_hand
                        if not self._rests:
                            self._autoscaler.look(ledger, time.monotonic())
                    time.sleep(LOOK_EVERY_S)
            except (LedgerError, RayError) as problem:
                log.warning("%s", problem)
                time.sleep(LOOK_EVERY_S)
