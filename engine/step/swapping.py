"""Blocks on their way between the device and the host's memory, while the device computes.

It launches what the scheduler wants moved, in the order that keeps every block's numbers whole, and says what
has arrived. A long load sets out in parts, one a step: while it is launched, nobody's tokens are. It knows
moves and loads; the copying is somebody else's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from engine.schedule.batch import Batch
from engine.schedule.block_cache import BlockCache
from engine.schedule.host_cache import HostCache, Load, Move


class Arrival(Protocol):
    def done(self) -> bool: ...
    def wait(self) -> None: ...


class Mover(Protocol):
    """Copies blocks. What it is told later happens later, there and back."""

    most: int  # blocks that one `save` or `load` takes

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


@dataclass(eq=False, slots=True)
class Coming:
    """A load, and when what has set out of it so far is there."""

    load: Load
    arrival: Arrival | None = None

    @property
    def there(self) -> bool:
        return not self.load.moves and (self.arrival is None or self.arrival.done())

    def set_out(self, mover: Mover, now: list[Move], later: list[Move]) -> None:
        if now:
            self.arrival = mover.load(now)
        self.load.moves = later


class Moves:
    def __init__(self, host: HostCache, mover: Mover | None) -> None:
        self._host = host
        self._mover = mover
        self._coming: list[Coming] = []

    @property
    def under_way(self) -> bool:
        return bool(self._coming)

    def launch(self, batch: Batch) -> None:
        """Before anything of the batch is computed."""
        if self._mover is None:
            return
        if batch.fence:
            self._mover.fence()
        self._coming += [Coming(load) for load in batch.loads if load.live]
        room = self._mover.most
        for coming in self._coming:
            if room and coming.load.moves:
                wanted = coming.load.still_wanted()
                coming.set_out(self._mover, wanted[:room], wanted[room:])
                room -= min(room, len(wanted))

    def keep(self, cache: BlockCache, wait: bool = False) -> bool:
        """Behind everything that was launched, and before any load is planned that it could overwrite.

        False if nothing was to be kept; or if that would have had to wait, and should not.
        """
        if self._mover is None or not (wait or self._mover.may_save()):
            return False
        moves = self._host.due(cache, self._mover.most)
        if moves:
            self._make_way(self._mover, {here for _, here in moves})
            self._mover.save(moves)
        return bool(moves)

    def _make_way(self, mover: Mover, taken: set[int]) -> None:
        """What is still to come from where something else is to be kept sets out before that."""
        for coming in self._coming:
            if not taken.isdisjoint(here for here, _ in coming.load.moves):
                wanted = coming.load.still_wanted()
                now = [move for move in wanted if move[0] in taken]
                coming.set_out(mover, now, [move for move in wanted if move[0] not in taken])

    def arrived(self, wait: bool) -> list[Load]:
        """The loads that are there by now; where there is nothing else to do, the next part is waited for."""
        if wait and self._coming and (first := self._coming[0].arrival):
            first.wait()
        there = [coming for coming in self._coming if coming.there]
        self._coming = [coming for coming in self._coming if coming not in there]
        return [coming.load for coming in there]
