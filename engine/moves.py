"""Blocks on their way between the device and the host's memory, while the device computes.

It launches what the scheduler wants moved, in the order that keeps every block's numbers whole, and says what
has arrived. It knows moves and loads; the copying is somebody else's.
"""

from __future__ import annotations

from typing import Protocol

from engine.schedule.batch import Batch
from engine.schedule.cache import BlockCache
from engine.schedule.host_cache import HostCache, Load, Move


class Arrival(Protocol):
    def done(self) -> bool: ...
    def wait(self) -> None: ...


class Mover(Protocol):
    """Copies blocks. What it is told later happens later, there and back."""

    most: int  # blocks that one `save` takes

    def may_save(self) -> bool:
        """Whether another save would make nobody wait."""

    def save(self, moves: list[Move]) -> None:
        """From the device to the host, behind the save before it, which is waited for.

        The device's blocks may be written to at once.
        """

    def load(self, moves: list[Move]) -> Arrival:
        """From the host to the device, beside whatever is computed there."""

    def fence(self) -> None:
        """What is computed from now on begins behind every load."""


class Moves:
    def __init__(self, host: HostCache, mover: Mover | None) -> None:
        self._host = host
        self._mover = mover
        self._coming: list[tuple[Load, Arrival]] = []

    @property
    def under_way(self) -> bool:
        return bool(self._coming)

    def launch(self, batch: Batch) -> None:
        """Before anything of the batch is computed."""
        if self._mover is None:
            return
        if batch.fence:
            self._mover.fence()
        for load in batch.loads:
            if load.live:
                self._coming.append((load, self._mover.load(load.still_wanted())))

    def keep(self, cache: BlockCache, wait: bool = False) -> bool:
        """Behind everything that was launched, and before any load is planned that it could overwrite.

        False if nothing was to be kept; or if that would have had to wait, and should not.
        """
        if self._mover is None or not (wait or self._mover.may_save()):
            return False
        moves = self._host.due(cache, self._mover.most)
        if moves:
            self._mover.save(moves)
        return bool(moves)

    def arrived(self, wait: bool) -> list[Load]:
        """The loads that are there by now; where there is nothing else to do, one is waited for."""
        if wait and self._coming:
            self._coming[0][1].wait()
        there = [load for load, arrival in self._coming if arrival.done()]
        self._coming = [(load, arrival) for load, arrival in self._coming if load not in there]
        return there
