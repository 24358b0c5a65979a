"""The host cache: which computed KV blocks lie in the host's memory, so that they need not be computed again.

A second level behind the block cache, with the same hashes. What streams leave when they pause, or when their
memory is taken, is *offered*; what of it is still on the device when there is time to copy it is *saved*; a
sequence that comes back has *loaded* what lies here. When it is full, what was used least recently goes: it
never holds more than it was given.

It knows hashes and numbers of blocks, here and on the device. It copies nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, pairwise

from engine.schedule.block_cache import BlockCache
from engine.schedule.block_names import block_names, longest_prefix
from engine.schedule.sequence import Sequence
from engine.schedule.windows import first_held

# Nothing is saved while one in so many of the device's blocks, or more, is free. That is more than are
# evicted ahead of need: those would be lost.
PRESSURE = 3
BlockCopy = tuple[int, int]  # from a block, to a block


@dataclass(eq=False, slots=True)
class Load:
    """Blocks to be copied from the host for a sequence. It is live for as long as the sequence waits for this
    very load."""

    sequence: Sequence
    copies: list[BlockCopy]  # from the host to the device, those that have not begun

    @property
    def live(self) -> bool:
        return self.sequence.pending_load is self

    def still_needed(self) -> list[BlockCopy]:
        """The copies into blocks that the sequence has not released since."""
        kept = set(self.sequence.held_blocks) if self.live else set()
        return [copy for copy in self.copies if copy[1] in kept]


class HostCache:
    def __init__(self, blocks: int = 0) -> None:
        self.total = blocks
        self._by_hash: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._free = deque(range(blocks))  # ascending: neighbours are copied together
        self._offered: deque[bytes] = deque(maxlen=blocks)

    @property
    def used(self) -> int:
        return len(self._by_hash)

    # -- saves -----------------------------------------------------------------------------------

    def offer(self, sequence: Sequence) -> None:
        """Its full computed blocks may be saved, beginning with the first: what follows needs them."""
        begin, sequence.num_offered = sequence.num_offered, len(sequence.block_hashes)
        if not self.total:
            return
        firsts = [max(begin, first_held(table)) for table in sequence.tables]
        # All that hold the same at once: of a crowd that shares very many, each offers them.
        for at, end in pairwise(sorted({*firsts, sequence.num_offered})):
            hashes, held = sequence.block_hashes[at:end], (first <= at for first in firsts)
            names = [block_names(hashes, group) for group, holds in enumerate(held) if holds]
            self._offered.extend(chain.from_iterable(zip(*names, strict=True)))

    def plan_saves(self, cache: BlockCache, limit: int) -> dict[bytes, BlockCopy]:
        """Offered blocks to be copied now, at most so many, by their hashes. What lay in their places is
        forgotten; they themselves are known once `finish_saves` is told that they are copied.

        None while the device has blocks enough: there they are found without copying.
        """
        saves: dict[bytes, BlockCopy] = {}
        if cache.free * PRESSURE >= cache.total:
            return saves
        while self._offered and len(saves) < limit:
            digest = self._offered.popleft()
            if digest in self._by_hash:
                self._by_hash.move_to_end(digest)
            elif digest not in saves and (number := cache.lookup(digest)) is not None:
                here = self._free.popleft() if self._free else self._by_hash.popitem(last=False)[1]
                saves[digest] = number, here
        return saves

    def finish_saves(self, saves: dict[bytes, BlockCopy]) -> None:
        """These blocks lie here now."""
        self._by_hash.update((digest, here) for digest, (_, here) in saves.items())

    def abandon_saves(self, saves: dict[bytes, BlockCopy]) -> None:
        """These blocks were not copied."""
        self._free.extend(here for _, here in saves.values())

    # -- loads -----------------------------------------------------------------------------------

    def plan_load(self, cache: BlockCache, sequence: Sequence) -> Load | None:
        """Give the sequence blocks for what lies here behind its computed tokens, and have it wait for them.

        None, and nothing changed, where nothing lies here or the cache has no room.
        """
        if not self._by_hash:
            return None
        hashes = cache.hash_blocks(sequence, (sequence.num_tokens - 1) // cache.block_size)
        found = longest_prefix(
            hashes, lambda name: name in self._by_hash or cache.lookup(name) is not None, cache.windows
        )
        if len(found) <= len(sequence.block_hashes):
            return None
        filled = cache.lay_out(sequence, found)
        if filled is None:
            return None
        for name, _ in filled:
            self._by_hash.move_to_end(name)
        load = Load(sequence, [(self._by_hash[name], number) for name, number in filled])
        sequence.num_computed = len(found) * cache.block_size
        sequence.pending_load = load
        return load

    def invalidate(self, names: Iterable[bytes]) -> None:
        """Forget these blocks: what they hold cannot be trusted."""
        for name in names:
            number = self._by_hash.pop(name, None)
            if number is not None:
                self._free.append(number)

    def audit(self) -> None:
        assert sorted([*self._by_hash.values(), *self._free]) == list(range(self.total))
