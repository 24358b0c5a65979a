"""Which computed blocks lie in the host's memory, so that a stream that goes on need not compute them again.

A second shelf behind the block cache, by the same names: the digests of tokens, salted by tenant. What
streams leave when they pause, or when their memory is taken, is *offered*; what is still on the device when
there is time to move it is *due*; a sequence that comes back has *brought* what lies here. When it is full,
what was used least recently goes: it never holds more than it was given.

It knows digests and numbers of blocks, here and on the device. It moves nothing.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable
from dataclasses import dataclass

from engine.schedule.block_cache import BlockCache
from engine.schedule.sequence import Sequence

PLENTY = 4  # a device of which such a part is free, one in so many, has room in plenty
Move = tuple[int, int]  # from one number of a block to another


@dataclass(eq=False, slots=True)
class Load:
    """Blocks on their way to a sequence. It is live for as long as the sequence waits for this very one."""

    sequence: Sequence
    moves: list[Move]  # from the host to the device, that have not set out yet

    @property
    def live(self) -> bool:
        return self.sequence.arriving is self

    def still_wanted(self) -> list[Move]:
        """What has not been given up since."""
        kept = set(self.sequence.blocks) if self.live else set()
        return [move for move in self.moves if move[1] in kept]


class HostCache:
    def __init__(self, blocks: int = 0) -> None:
        self.total = blocks
        self._numbers: OrderedDict[bytes, int] = OrderedDict()  # least recently used first
        self._free = deque(range(blocks))  # ascending: neighbours travel together
        self._offered: deque[bytes] = deque(maxlen=blocks)

    @property
    def used(self) -> int:
        return len(self._numbers)

    # -- out of the device -----------------------------------------------------------------------

    def offer(self, sequence: Sequence) -> None:
        """Its full computed blocks may be kept here, beginning with the first: what follows needs them."""
        self._offered.extend(sequence.hashes[sequence.offered :])
        sequence.offered = len(sequence.hashes)

    def due(self, cache: BlockCache, most: int) -> list[Move]:
        """Offered blocks to be copied now, at most so many: they count as here from now on.

        None while the device has room in plenty: there they are found without moving.
        """
        moves: list[Move] = []
        if cache.free * PLENTY >= cache.total:
            return moves
        while self._offered and len(moves) < most:
            digest = self._offered.popleft()
            if digest in self._numbers:
                self._numbers.move_to_end(digest)
            elif (number := cache.holding(digest)) is not None:
                here = self._free.popleft() if self._free else self._numbers.popitem(last=False)[1]
                self._numbers[digest] = here
                moves.append((number, here))
        return moves

    # -- back to it ------------------------------------------------------------------------------

    def bring(self, cache: BlockCache, sequence: Sequence) -> Load | None:
        """Behind what the sequence has computed, what lies here, in blocks of its own: it waits for them.

        None, and nothing changed, where nothing lies here or the cache has no room.
        """
        if not self._numbers:
            return None
        have = len(sequence.hashes)
        found: list[int] = []
        for digest in cache.names(sequence, (sequence.known - 1) // cache.block)[have:]:
            number = self._numbers.get(digest)
            if number is None:
                break
            self._numbers.move_to_end(digest)
            found.append(number)
        reached = (have + len(found)) * cache.block
        if not found or not cache.grow(sequence, reached):
            return None
        load = Load(sequence, list(zip(found, sequence.blocks[have:], strict=False)))
        sequence.computed = reached
        sequence.arriving = load
        return load

    def forget(self, digests: Iterable[bytes]) -> None:
        """What they name cannot be trusted."""
        for digest in digests:
            number = self._numbers.pop(digest, None)
            if number is not None:
                self._free.append(number)

    def audit(self) -> None:
        assert sorted([*self._numbers.values(), *self._free]) == list(range(self.total))
