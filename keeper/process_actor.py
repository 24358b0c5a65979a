"""One engine or gateway on one machine, as an actor of Ray's: it runs its process, starts another when that
ends, and tells the ledger where it is.

Ray starts the actor anew, here or elsewhere, when this process or its machine dies.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from threading import Condition, Event, Thread

import ray
from ray.actor import exit_actor

from keeper.kept_process import KeptProcess, Place
from keeper.ledger import Ledger, LedgerError
from keeper.plan import Kept
from keeper.vital_thread import vital
from realtime.backoff import Backoff

log = logging.getLogger(__name__)

FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 30.0
TELL_AGAIN_S = 1.0


class ProcessActor:
    def __init__(self, name: str, arguments: Sequence[str], token: str) -> None:
        context = ray.get_runtime_context()
        self._machine = context.get_node_id()
        self._place = Place(ray.util.get_node_ip_address(), context.gcs_address)
        self._name, self._arguments, self._token = name, arguments, token
        self._telling = Telling(lambda kept: Ledger(context.gcs_address).tell(name, kept))
        self._process: KeptProcess | None = None
        self._leaves = Event()
        self._keeping = Thread(target=vital, args=(f"what keeps {name}", self._keep))
        self._keeping.start()

    def leave(self) -> None:
        """For good, also where nobody waits for it any more. Its streams go on at others; the actor ends
        with its process, and Ray starts no other."""
        self._leaves.set()
        if self._process is not None:
            self._process.leave()
        self._keeping.join()
        exit_actor()

    def _keep(self) -> None:
        backoff = Backoff(first_s=FIRST_WAIT_S, longest_s=LONGEST_WAIT_S)
        self._telling.tell(Kept("loading", self._machine))
        while not self._leaves.is_set():
            try:
                ended = self._run(backoff)
            except OSError as error:  # the machine lacks what a process takes
                ended = Kept("failed", self._machine, why=str(error))
            if not self._leaves.is_set():
                self._telling.tell(ended)
                self._leaves.wait(backoff.next_s())

    def _run(self, backoff: Backoff) -> Kept:
        """From its start to its end: how it is then."""
        self._process = KeptProcess(self._name, self._arguments, self._place, self._token)
        if self._leaves.is_set():  # in this very moment
            self._process.leave()
        if address := self._process.address():
            backoff.reset()
            self._telling.tell(Kept("ready", self._machine, address))
        why = self._process.wait()
        # One that cannot start has failed until it does, however often that is tried.
        return Kept("loading" if address else "failed", self._machine, why=why)


class Telling:
    """What is new is told until it has been heard; what is newer stands for it. The keeper does not wait for
    Ray."""

    def __init__(self, tell: Callable[[Kept], None]) -> None:
        self._tell = tell
        self._news: Kept | None = None
        self._changed = Condition()
        Thread(target=vital, args=("what tells the ledger", self._keep_telling), daemon=True).start()

    def tell(self, kept: Kept) -> None:
        with self._changed:
            self._news = kept
            self._changed.notify()

    def _keep_telling(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._news is not None)
                kept, self._news = self._news, None
            assert kept is not None
            try:
                self._tell(kept)
            except LedgerError as problem:
                log.warning("%s", problem)
                time.sleep(TELL_AGAIN_S)
                with self._changed:
                    if self._news is None:
                        self._news = kept
