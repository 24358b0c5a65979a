"""Who owns which block of the KV cache.

Blocks are numbers here; the tensors behind them belong to the runner. This module knows reference counts,
which computed prefixes may be reused, and what to give up when blocks run short. It knows no scheduler's
policy: whom to evict is somebody else's decision.

A block is in exactly one of three states. *Used*: some sequence's table names it. *Cached*: nobody uses it,
but it holds a full block of computed tokens that the next prompt with the same beginning may take. *Free*:
neither. `audit()` proves it.

Every sequence grows into the block behind its last one where that is free, and a new one begins inside the
widest free run, at the roundest number there. So a table is nearly always one run of neighbours, which
attention reads as a slice, without gathering; and tables begin evenly spaced, so that many can be read in
one call.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable
from hashlib import blake2b

from engine.schedule.sequence import Sequence


def _roundest(start: int, end: int) -> int:
    """The number in the middle half of a range that the largest power of two divides; 0 where the range
    begins so."""
    if start == 0:
        return 0
    low, high = start + (end - start) // 4, end - (end - start) // 4
    for bits in range(high.bit_length(), -1, -1):
        number = -(-low >> bits) << bits
        if number < high:
            return number
    return start


FREE, CACHED, USED = 0, 1, 2
_FREE_RUN = re.compile(rb"\x00+")


class BlockCache:
    def __init__(self, blocks: int, block: int) -> None:
        self.block = block
        self.refs = [0] * blocks
        self._state = bytearray(blocks)
        self._hash_of: dict[int, bytes] = {}
        self._by_hash: dict[bytes, int] = {}
        self._cached: OrderedDict[int, None] = OrderedDict()  # least recently used first
        self._free = blocks

    @property
    def total(self) -> int:
        return len(self.refs)

    @property
    def free(self) -> int:
        return self._free

    @property
    def cached(self) -> int:
        return len(self._cached)

    @property
    def used(self) -> int:
        return self.total - self.free - self.cached

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block)

    # -- growing and shrinking a sequence's table ------------------------------------------------

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Give the sequence room for so many tokens, or change nothing and say no."""
        missing = self.blocks_for(tokens) - len(sequence.blocks)
        if missing > self._free + self.cached:
            return False
        for _ in range(missing):
            sequence.blocks.append(self._take(after=sequence.blocks[-1] if sequence.blocks else None))
        return True

    def release(self, sequence: Sequence, keep: int = 0) -> None:
        """Take back the blocks that hold nothing of the first `keep` tokens."""
        count = self.blocks_for(keep)
        # Last block first: what is evicted first from the cache should be a chain's end, not its beginning.
        for number in reversed(sequence.blocks[count:]):
            self._drop(number)
        sequence.layout += len(sequence.blocks) > count
        del sequence.blocks[count:]
        self._unname(sequence, keep // self.block)
        sequence.computed = min(sequence.computed, keep)

    def disown(self, sequence: Sequence) -> None:
        """Offer nothing that the sequence computed to anybody any more: it cannot be trusted."""
        for number in sequence.blocks:
            if self.refs[number] == 1:
                self._forget_hash(number)

    def make_writable(self, sequence: Sequence) -> tuple[int, int] | None:
        """Before the token at `reached` is written: nobody else may be reading the block it goes to.

        Only a rewind into a full block comes here. Returns (from, to) when the block must be copied first.
        """
        at = sequence.reached // self.block
        if at >= len(sequence.blocks):
            return None
        number = sequence.blocks[at]
        self._unname(sequence, at)
        if self.refs[number] == 1:
            self._forget_hash(number)
            return None
        copy = self._take(after=None)
        sequence.blocks[at] = copy
        sequence.layout += 1
        self._drop(number)
        return number, copy

    def shared(self, sequence: Sequence) -> bool:
        """Whether `make_writable` will need a block."""
        at = sequence.reached // self.block
        return at < len(sequence.blocks) and self.refs[sequence.blocks[at]] > 1

    # -- prefixes --------------------------------------------------------------------------------

    def adopt_prefix(self, sequence: Sequence) -> int:
        """Begin the sequence's table with computed blocks of the same tokens; returns how many tokens that
        spares."""
        assert not sequence.blocks
        for digest in self._chain(sequence, (sequence.known - 1) // self.block):
            number = self._by_hash.get(digest)
            if number is None:
                break
            self._use(number)
            sequence.blocks.append(number)
            sequence.hashes.append(digest)
        sequence.computed = len(sequence.blocks) * self.block
        return sequence.computed

    def remember(self, sequence: Sequence) -> None:
        """Offer the sequence's full computed blocks to whoever begins with the same tokens."""
        full = sequence.computed // self.block
        if full == len(sequence.hashes):
            return
        for at, digest in enumerate(self._chain(sequence, full)):
            if at < len(sequence.hashes):
                continue
            sequence.hashes.append(digest)
            number = sequence.blocks[at]
            if digest not in self._by_hash and number not in self._hash_of:
                self._by_hash[digest] = number
                self._hash_of[number] = digest

    def holding(self, digest: bytes) -> int | None:
        """The block that holds what this names."""
        return self._by_hash.get(digest)

    def names(self, sequence: Sequence, blocks: int) -> list[bytes]:
        """What the sequence's first full blocks are called, computed or not."""
        return list(self._chain(sequence, blocks))

    def _unname(self, sequence: Sequence, keep: int) -> None:
        del sequence.hashes[keep:]
        sequence.offered = min(sequence.offered, len(sequence.hashes))

    def _chain(self, sequence: Sequence, blocks: int) -> Iterable[bytes]:
        """The digests of the sequence's first full blocks, each covering all tokens before it.

        Salted by tenant: one tenant's timing must tell nothing of another's prompts.
        """
        yield from sequence.hashes[:blocks]
        have = len(sequence.hashes)
        digest = sequence.hashes[-1] if have else sequence.tenant.to_bytes(8, "big", signed=True)
        for start in range(have * self.block, blocks * self.block, self.block):
            tokens = array("q", sequence.tokens[start : start + self.block])
            digest = blake2b(digest + tokens.tobytes(), digest_size=16).digest()
            yield digest

    # -- single blocks ---------------------------------------------------------------------------

    def _take(self, after: int | None) -> int:
        if self._free == 0:
            return self._take_cached()
        follows = None if after is None else after + 1
        if follows is None or follows >= self.total or self._state[follows] != FREE:
            runs = _FREE_RUN.finditer(self._state)
            follows = _roundest(*max((run.span() for run in runs), key=lambda span: span[1] - span[0]))
        self._set(follows, USED)
        self.refs[follows] = 1
        return follows

    def _take_cached(self) -> int:
        number = next(iter(self._cached))
        self._forget_hash(number)
        self._set(number, USED)
        self.refs[number] = 1
        return number

    def _use(self, number: int) -> None:
        self.refs[number] += 1
        self._set(number, USED)

    def _drop(self, number: int) -> None:
        self.refs[number] -= 1
        if self.refs[number] == 0:
            self._set(number, CACHED if number in self._hash_of else FREE)

    def _forget_hash(self, number: int) -> None:
        digest = self._hash_of.pop(number, None)
        if digest is not None:
            del self._by_hash[digest]

    def _set(self, number: int, state: int) -> None:
        self._free += (state == FREE) - (self._state[number] == FREE)
        if self._state[number] == CACHED:
            del self._cached[number]
        if state == CACHED:
            self._cached[number] = None
        self._state[number] = state

    # -- proof -----------------------------------------------------------------------------------

    def audit(self, sequences: Iterable[Sequence]) -> None:
        """Raise unless every block is accounted for exactly once."""
        sequences = list(sequences)
        named = Counter(number for sequence in sequences for number in sequence.blocks)
        for number, refs in enumerate(self.refs):
            state = self._state[number]
            assert refs == named[number], f"block {number}: {refs} references, named by {named[number]}"
            assert (refs > 0) == (state == USED), f"block {number}: {refs} references in state {state}"
            assert (state == CACHED) == (number in self._cached), (
                f"block {number}: cached twice or not at all"
            )
            assert state != CACHED or number in self._hash_of, f"block {number}: cached without a name"
        assert self._free == self._state.count(FREE)
        assert {block: digest for digest, block in self._by_hash.items()} == self._hash_of
        for sequence in sequences:
            assert sequence.reached <= len(sequence.blocks) * self.block
            assert len(sequence.hashes) <= sequence.computed // self.block
