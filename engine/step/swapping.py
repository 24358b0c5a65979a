"""KV swapping: blocks are swapped between the device and the host's memory while the device computes.

It starts the copies that the scheduler and the host cache plan, in the order that keeps every block's
contents whole, and says which loads are done, and which have failed. A long load is started in parts, one a
step: while it is launched, no stream's tokens are. It knows loads and saves; a block copier copies.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Protocol

from engine.schedule.batch import Batch
from engine.schedule.block_cache import BlockCache
from engine.schedule.host_cache import BlockCopy, HostCache, Load
from engine.step.failed_attempts import clean_up

log = logging.getLogger(__name__)


class Completion(Protocol):
    """Of copies that were started."""

    def done(self) -> bool: ...
    def wait(self) -> None: ...


class BlockCopier(Protocol):
    """Copies blocks. What it is told later happens later, in either direction."""

    max_blocks: int  # that one `save` or `load` takes

    def may_save(self) -> bool:
        """Whether another save would make nobody wait."""

    def save(self, copies: list[BlockCopy]) -> None:
        """From the device to the host, behind the save before it, which is waited for.

        The device's blocks may be written to at once.
        """

    def load(self, copies: list[BlockCopy]) -> Completion:
        """From the host to the device, beside whatever is computed there."""

    def fence(self) -> None:
        """What is computed from now on begins behind every load."""


@dataclass(eq=False, slots=True)
class QueuedLoad:
    """A load, and the completion of the part of it that was started last."""

    load: Load
    started: Completion | None = None

    @property
    def done(self) -> bool:
        return not self.load.copies and (self.started is None or self.started.done())

    def start(self, copier: BlockCopier, now: list[BlockCopy], later: list[BlockCopy]) -> None:
        if now:
            self.started = copier.load(now)
        self.load.copies = later


class Swapping:
    def __init__(self, host_cache: HostCache, copier: BlockCopier | None) -> None:
        self._host_cache = host_cache
        self._copier = copier
        self._queue: list[QueuedLoad] = []
        self._failed: list[Load] = []

    @property
    def busy(self) -> bool:
        return bool(self._queue or self._failed)

    def start_loads(self, batch: Batch) -> None:
        """Before anything of the batch is computed."""
        if self._copier is None:
            return
        if batch.fence:
            self._copier.fence()
        self._queue += [QueuedLoad(load) for load in batch.loads if load.live]
        room = self._copier.max_blocks
        for queued in self._queue:
            if room and queued.load.copies:
                needed = queued.load.still_needed()
                self._start(queued, self._copier, needed[:room], needed[room:])
                room -= min(room, len(needed))

    def save(self, cache: BlockCache, wait: bool = False) -> bool:
        """Behind everything that was launched, and before any load is planned that it could overwrite.

        False if nothing was to be saved; or if that would have had to wait, and should not.
        """
        if self._copier is None or not (wait or self._copier.may_save()):
            return False
        saves = self._host_cache.plan_saves(cache, self._copier.max_blocks)
        if not saves:
            return False
        self._load_before_overwriting(self._copier, {here for _, here in saves.values()})
        try:
            self._copier.save(list(saves.values()))
        except Exception as error:  # what is not saved will be computed again
            log.warning("blocks could not be saved to the host's memory", exc_info=clean_up(error))
            self._host_cache.abandon_saves(saves)
        else:
            self._host_cache.finish_saves(saves)
        return True

    def _load_before_overwriting(self, copier: BlockCopier, saved_to: set[int]) -> None:
        """Start what is still to be loaded from blocks of the host that are about to be saved to."""
        for queued in self._queue:
            if not saved_to.isdisjoint(here for here, _ in queued.load.copies):
                needed = queued.load.still_needed()
                now = [copy for copy in needed if copy[0] in saved_to]
                self._start(queued, copier, now, [copy for copy in needed if copy[0] not in saved_to])

    def _start(
        self, queued: QueuedLoad, copier: BlockCopier, now: list[BlockCopy], later: list[BlockCopy]
    ) -> None:
        try:
            queued.start(copier, now, later)
        except Exception as error:  # what is not loaded is computed again
            log.warning("blocks could not be loaded from the host's memory", exc_info=clean_up(error))
            self._queue = [other for other in self._queue if other is not queued]
            self._failed.append(queued.load)

    def take_done(self, wait: bool) -> list[Load]:
        """The loads that are done by now; where there is nothing else to do, the next part is waited for."""
        if wait and self._queue and (first := self._queue[0].started):
            first.wait()
        done = [queued for queued in self._queue if queued.done]
        self._queue = [queued for queued in self._queue if queued not in done]
        return [queued.load for queued in done]

    def take_failed(self) -> list[Load]:
        failed, self._failed = self._failed, []
        return failed
