"""The pace of reading: a connection is read when uvicorn wants more of it, and when what was read of its
address is paid for.

It knows a transport and a budget, and not what is read.
"""

from __future__ import annotations

import asyncio
import time

from uvicorn.protocols.http.flow_control import FlowControl

from realtime.work_budget import WorkBudget


class ReadPace(FlowControl):
    """In the place of uvicorn's own."""

    def __init__(self, transport: asyncio.Transport, budget: WorkBudget) -> None:
        super().__init__(transport)
        self._budget = budget
        self._hold: asyncio.TimerHandle | None = None

    def pay(self, work_s: float) -> None:
        """So much work was done with what was read: until it is paid for no more is."""
        wait_s = self._budget.pay(work_s, time.monotonic())
        if wait_s and self._hold is None:
            self._transport.pause_reading()
            self._hold = asyncio.get_running_loop().call_later(wait_s, self._release)

    def stop(self) -> None:
        """Another reads it from now on, or nobody."""
        if self._hold is not None:
            self._hold.cancel()
            self._release()

    def pause_reading(self) -> None:
        if not self.read_paused:
            self.read_paused = True
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self.read_paused:
            self.read_paused = False
            self._resume()

    def _release(self) -> None:
        self._hold = None
        self._resume()

    def _resume(self) -> None:
        if not (self.read_paused or self._hold):
            self._transport.resume_reading()
