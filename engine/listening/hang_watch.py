"""The watch over an engine that listens: where the engine hangs, its process ends, so that whoever keeps it
starts another. Gateways leave an engine that has fallen silent, and come again, since its door is open.

It knows that something is sent to the engine and that the engine says something, and seconds in which this
process ran: one that was stopped has not hung. What is sent it does not look at.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from itertools import islice
from typing import TypeVar

log = logging.getLogger("engine")

SHOWN = 4  # calls that it hangs in

T = TypeVar("T")


class HangWatch:
    """The engine's thread is the one that makes it."""

    def __init__(self, after_s: float) -> None:
        """`after_s`: between what the engine is sent and what it says; any step is a part of that."""
        self._after_s = after_s
        self._thread = threading.get_ident()
        self._awaited: list[float] | None = None  # one number: seconds gone by since it was sent something

    def sending(self, send: Callable[[T], None]) -> Callable[[T], None]:
        def sent(what: T) -> None:
            if self._awaited is None:
                self._awaited = [0.0]
            send(what)

        return sent

    def hearing(self, emit: Callable[[T], None]) -> Callable[[T], None]:
        def heard(what: T) -> None:
            self._awaited = None
            emit(what)

        return heard

    def start(self) -> None:
        threading.Thread(target=self._watch, name="hang watch", daemon=True).start()

    def _watch(self) -> None:
        while not self.hangs_after(1.0):
            time.sleep(1.0)
        log.critical(
            "the engine has said nothing for %g s to what it was sent, and its process ends: it hangs in %s",
            self._after_s,
            self._where(),
        )
        logging.shutdown()
        os._exit(1)  # at once: what hangs could not be waited for

    def hangs_after(self, seconds: float) -> bool:
        """Whether it does, as so many more have gone by."""
        awaited = self._awaited  # the engine may say something meanwhile, and then this is no more looked at
        if awaited is None:
            return False
        awaited[0] += seconds
        return awaited[0] > self._after_s

    def _where(self) -> str:
        calls = reversed(traceback.extract_stack(sys._current_frames()[self._thread]))
        return " < ".join(f"{one.name} ({one.filename}:{one.lineno})" for one in islice(calls, SHOWN))
