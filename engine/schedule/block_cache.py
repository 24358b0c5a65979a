"""The KV block cache: allocates blocks to sequences, and lets them share the blocks of equal prefixes.

Blocks are numbers here; the tensors behind them belong to the runner. This module knows reference counts,
which computed prefixes may be reused, and which of them to evict when blocks run short. It knows no
scheduler's policy: whose memory is taken is decided elsewhere.

A block is in exactly one of three states. *Used*: it is in some sequence's table. *Cached*: nobody uses it,
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
    def __init__(self, blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.refs = [0] * blocks
        self._state = bytearray(blocks)
        self._hash_of: dict[int, bytes] = {}
        self._by_hash: dict[bytes, int] = {}
        self._cached: OrderedDict[int, float] = OrderedDict()  # since when; least recently used first
        self._let_go: OrderedDict[int, float] = OrderedDict()  # free ones that hold memory, likewise
        self._free = blocks
        self.now = 0.0  # as we were last told

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
        return -(-tokens // self.block_size)

    # -- block tables ----------------------------------------------------------------------------

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Extend its table to so many tokens; False, and nothing changed, where blocks are short."""
        missing = self.blocks_for(tokens) - len(sequence.blocks)
        if missing > self._free + self.cached:
            return False
        for _ in range(missing):
            sequence.blocks.append(self._allocate(after=sequence.blocks[-1] if sequence.blocks else None))
        return True

    def release(self, sequence: Sequence, keep: int = 0) -> None:
        """Free the blocks that hold nothing of the first `keep` tokens."""
        count = self.blocks_for(keep)
        # Last block first: what is evicted first from the cache should be a chain's end, not its beginning.
        for number in reversed(sequence.blocks[count:]):
            self._decref(number)
        sequence.blocks_version += len(sequence.blocks) > count
        del sequence.blocks[count:]
        self._truncate_hashes(sequence, keep // self.block_size)
        sequence.num_computed = min(sequence.num_computed, keep)

    def invalidate(self, sequence: Sequence) -> None:
        """Let nobody find what the sequence computed any more: it cannot be trusted."""
        for number in sequence.blocks:
            if self.refs[number] == 1:
                self._uncache(number)

    def make_writable(self, sequence: Sequence) -> tuple[int, int] | None:
        """Copy on write: nobody else may be reading the block that the token at `next_position` goes to.

        Only a rewind into a full block leads here. Returns (from, to) when the block must be copied first.
        """
        at = sequence.next_position // self.block_size
        if at >= len(sequence.blocks):
            return None
        number = sequence.blocks[at]
        self._truncate_hashes(sequence, at)
        if self.refs[number] == 1:
            self._uncache(number)
            return None
        copy = self._allocate(after=None)
        sequence.blocks[at] = copy
        sequence.blocks_version += 1
        self._decref(number)
        return number, copy

    def needs_copy(self, sequence: Sequence) -> bool:
        """Whether `make_writable` will need a block."""
        at = sequence.next_position // self.block_size
        return at < len(sequence.blocks) and self.refs[sequence.blocks[at]] > 1

    # -- prefixes --------------------------------------------------------------------------------

    def match_prefix(self, sequence: Sequence) -> int:
        """Begin its table with computed blocks of the same tokens; returns how many tokens that spares."""
        assert not sequence.blocks
        for digest in self._hash_chain(sequence, (sequence.num_tokens - 1) // self.block_size):
            number = self._by_hash.get(digest)
            if number is None:
                break
            self._incref(number)
            sequence.blocks.append(number)
            sequence.block_hashes.append(digest)
        sequence.num_computed = len(sequence.blocks) * self.block_size
        return sequence.num_computed

    def cache_full_blocks(self, sequence: Sequence) -> None:
        """Let sequences that begin with the same tokens find its full computed blocks."""
        full = sequence.num_computed // self.block_size
        if full == len(sequence.block_hashes):
            return
        for at, digest in enumerate(self._hash_chain(sequence, full)):
            if at < len(sequence.block_hashes):
                continue
            sequence.block_hashes.append(digest)
            number = sequence.blocks[at]
            if digest not in self._by_hash and number not in self._hash_of:
                self._by_hash[digest] = number
                self._hash_of[number] = digest

    def lookup(self, digest: bytes) -> int | None:
        """The block with this hash."""
        return self._by_hash.get(digest)

    def hash_blocks(self, sequence: Sequence, blocks: int) -> list[bytes]:
        """The hashes of its first full blocks, computed or not."""
        return list(self._hash_chain(sequence, blocks))

    def _truncate_hashes(self, sequence: Sequence, keep: int) -> None:
        del sequence.block_hashes[keep:]
        sequence.num_offered = min(sequence.num_offered, len(sequence.block_hashes))

    def _hash_chain(self, sequence: Sequence, blocks: int) -> Iterable[bytes]:
        """The hashes of its first full blocks, each covering all tokens before it.

        Salted by tenant: one tenant's timing must tell nothing of another's prompts.
        """
        yield from sequence.block_hashes[:blocks]
        have = len(sequence.block_hashes)
        digest = sequence.block_hashes[-1] if have else sequence.tenant.to_bytes(8, "big", signed=True)
        for start in range(have * self.block_size, blocks * self.block_size, self.block_size):
            tokens = array("q", sequence.tokens[start : start + self.block_size])
            digest = blake2b(digest + tokens.tobytes(), digest_size=16).digest()
            yield digest

    # -- single blocks ---------------------------------------------------------------------------

    def _allocate(self, after: int | None) -> int:
        if self._free == 0:
            return self._allocate_cached()
        number = None if after is None else after + 1
        if number is None or number >= self.total or self._state[number] != FREE:
            runs = _FREE_RUN.finditer(self._state)
            number = _roundest(*max((run.span() for run in runs), key=lambda span: span[1] - span[0]))
        self._set_state(number, USED)
        self.refs[number] = 1
        return number

    def _allocate_cached(self) -> int:
        number = next(iter(self._cached))
        self._uncache(number)
        self._set_state(number, USED)
        self.refs[number] = 1
        return number

    def _incref(self, number: int) -> None:
        self.refs[number] += 1
        self._set_state(number, USED)

    def _decref(self, number: int) -> None:
        self.refs[number] -= 1
        if self.refs[number] == 0:
            self._set_state(number, CACHED if number in self._hash_of else FREE)

    def _uncache(self, number: int) -> None:
        digest = self._hash_of.pop(number, None)
        if digest is not None:
            del self._by_hash[digest]

    def _set_state(self, number: int, state: int) -> None:
        self._free += (state == FREE) - (self._state[number] == FREE)
        if self._state[number] == CACHED:
            del self._cached[number]
        self._let_go.pop(number, None)
        if state == CACHED:
            self._cached[number] = self.now
        elif state == FREE:
            self._let_go[number] = self.now
        self._state[number] = state

    # -- blocks that nobody has used for a while ---------------------------------------------------

    @property
    def idle_since(self) -> float | None:
        """When the one was let go of that is idle longest; None where only blocks in use hold memory."""
        oldest = [next(iter(blocks.values())) for blocks in (self._cached, self._let_go) if blocks]
        return min(oldest, default=None)

    def take_idle(self, until: float, group: int, most: int) -> list[int]:
        """Forget of the cached, and take of the free, up to `most` that nobody has used since `until`.

        Returns the groups, of `group` neighbours each, that hold nothing any more. A group that is held by
        one of its blocks is returned behind the last.
        """
        ripe: list[int] = []
        while len(ripe) < most and self._cached and next(iter(self._cached.values())) <= until:
            ripe.append(next(iter(self._cached)))
            self._uncache(ripe[-1])
            self._set_state(ripe[-1], FREE)
            del self._let_go[ripe[-1]]
        while len(ripe) < most and self._let_go and next(iter(self._let_go.values())) <= until:
            ripe.append(self._let_go.popitem(last=False)[0])
        return [at for at in sorted({number // group for number in ripe}) if self._holds_nothing(at, group)]

    def _holds_nothing(self, at: int, group: int) -> bool:
        neighbours = range(at * group, min((at + 1) * group, self.total))
        return all(self._state[number] == FREE and number not in self._let_go for number in neighbours)

    # -- proof -----------------------------------------------------------------------------------

    def audit(self, sequences: Iterable[Sequence]) -> None:
        """Raise unless every block is accounted for exactly once."""
        sequences = list(sequences)
        owners = Counter(number for sequence in sequences for number in sequence.blocks)
        for number, refs in enumerate(self.refs):
            state = self._state[number]
            assert refs == owners[number], f"block {number}: {refs} references, in {owners[number]} tables"
            assert (refs > 0) == (state == USED), f"block {number}: {refs} references in state {state}"
            assert (state == CACHED) == (number in self._cached), (
                f"block {number}: cached twice or not at all"
            )
            assert state != CACHED or number in self._hash_of, f"block {number}: cached without a name"
        assert self._free == self._state.count(FREE)
        assert all(self._state[number] == FREE for number in self._let_go)
        assert {block: digest for digest, block in self._by_hash.items()} == self._hash_of
        for sequence in sequences:
            assert sequence.next_position <= len(sequence.blocks) * self.block_size
            assert len(sequence.block_hashes) <= sequence.num_computed // self.block_size
