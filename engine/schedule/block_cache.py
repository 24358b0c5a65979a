"""The KV block cache: allocates blocks to sequences, and lets them share the blocks of equal prefixes.

Blocks are numbers here; the tensors behind them belong to the runner. This module knows reference counts,
which computed prefixes may be reused, and which of them to evict when blocks run short. It knows no
scheduler's policy: whose memory is taken is decided elsewhere.

A block is in exactly one of three states. *Used*: it is in some sequence's table. *Cached*: nobody uses it,
but it holds a full block of computed tokens that the next prompt with the same beginning may take. *Free*:
neither. `audit()` proves it.

What is cached is evicted in one order, the least recently used first and a chain's end before its beginning.
Where blocks lie is the business of `free_blocks.py`: where tables should be runs of neighbours, some may be
evicted before they are needed, in that same order.
"""

from __future__ import annotations

from array import array
from collections import Counter, OrderedDict
from collections.abc import Iterable
from hashlib import blake2b
from itertools import islice

from engine.schedule.free_blocks import FreeBlocks, FreeList, FreeRuns
from engine.schedule.sequence import Sequence

EVICTED_TOGETHER = 32  # blocks, before it is looked again whether they were enough


class BlockCache:
    """`runs`: whether tables should be runs of neighbours, for who reads them as slices."""

    def __init__(self, blocks: int, block_size: int, *, runs: bool = True) -> None:
        self.block_size = block_size
        self.refs = [0] * blocks  # tables that a block is in
        self._hash_of: dict[int, bytes] = {}
        self._by_hash: dict[bytes, int] = {}
        self._cached: OrderedDict[int, float] = OrderedDict()  # since when; least recently used first
        self._let_go: OrderedDict[int, float] = OrderedDict()  # free ones that hold memory, likewise
        self._free: FreeBlocks = FreeRuns(self.refs) if runs else FreeList(blocks)
        self.now = 0.0  # as we were last told

    @property
    def total(self) -> int:
        return len(self.refs)

    @property
    def free(self) -> int:
        return len(self._free)

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
        if missing > self.free + self.cached:
            return False
        if missing > 0:
            sequence.blocks += self._take(missing, sequence.blocks)
        return True

    def release(self, sequence: Sequence, keep: int = 0) -> None:
        """Free the blocks that hold nothing of the first `keep` tokens."""
        count = self.blocks_for(keep)
        self._drop(sequence.blocks[count:])
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
        (copy,) = self._take(1, [])
        sequence.blocks[at] = copy
        sequence.blocks_version += 1
        self._drop([number])
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
            self._cached.pop(number, None)
            self.refs[number] += 1
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

    # -- blocks ----------------------------------------------------------------------------------

    def _take(self, count: int, table: list[int]) -> list[int]:
        """So many blocks, which there are, for the end of a table: behind its last, where those are free."""
        taken = list(self._free.take_behind(table[-1], count)) if table else []
        if len(taken) < count:
            self._make_room(count - len(taken))
            taken += self._free.take(count - len(taken), len(table))
        for number in taken:
            self.refs[number] = 1
            self._let_go.pop(number, None)
        return taken

    def _make_room(self, count: int) -> None:
        free = self._free
        if len(free) < count:
            self._evict(count - len(free))
        while self._cached and len(free) < count + free.most_ahead and not free.fits(count):
            self._evict(min(free.most_ahead, EVICTED_TOGETHER))

    def _evict(self, count: int) -> list[int]:
        evicted = [self._cached.popitem(last=False)[0] for _ in range(min(count, len(self._cached)))]
        for number in evicted:
            del self._by_hash[self._hash_of.pop(number)]
        self._give(evicted)
        return evicted

    def _give(self, numbers: list[int]) -> None:
        """They are free, and hold memory until nobody has taken them for a while."""
        self._free.give(numbers)
        for number in numbers:
            self._let_go[number] = self.now

    def _drop(self, blocks: list[int]) -> None:
        """A table's end is in it no longer. What nobody else uses is cached, or free."""
        free: list[int] = []
        # Last block first: what is evicted first from the cache should be a chain's end, not its beginning.
        for number in reversed(blocks):
            self.refs[number] -= 1
            if self.refs[number]:
                continue
            if number in self._hash_of:
                self._cached[number] = self.now
            else:
                free.append(number)
        if free:
            self._give(free)

    def _uncache(self, number: int) -> None:
        digest = self._hash_of.pop(number, None)
        if digest is not None:
            del self._by_hash[digest]

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
        cached = sum(since <= until for since in islice(self._cached.values(), most))
        free = sum(since <= until for since in islice(self._let_go.values(), most - cached))
        ripe = [self._let_go.popitem(last=False)[0] for _ in range(free)]
        for number in self._evict(cached):
            del self._let_go[number]
            ripe.append(number)
        return [at for at in sorted({number // group for number in ripe}) if self._holds_nothing(at, group)]

    def _holds_nothing(self, at: int, group: int) -> bool:
        neighbours = range(at * group, min((at + 1) * group, self.total))
        return not any(
            self.refs[number] or number in self._cached or number in self._let_go for number in neighbours
        )

    # -- proof -----------------------------------------------------------------------------------

    def audit(self, sequences: Iterable[Sequence]) -> None:
        """Raise unless every block is accounted for exactly once."""
        sequences = list(sequences)
        owners = Counter(number for sequence in sequences for number in sequence.blocks)
        free = Counter(self._free)
        for number, refs in enumerate(self.refs):
            assert refs == owners[number], f"block {number}: {refs} references, in {owners[number]} tables"
            states = (refs > 0) + (number in self._cached) + free[number]
            assert states == 1, f"block {number}: free, cached or used, {states} times"
            assert number not in self._cached or number in self._hash_of, f"block {number}: without a name"
        assert free.total() == len(self._free)
        assert all(free[number] for number in self._let_go)
        assert {block: digest for digest, block in self._by_hash.items()} == self._hash_of
        for sequence in sequences:
            assert sequence.next_position <= len(sequence.blocks) * self.block_size
            assert len(sequence.block_hashes) <= sequence.num_computed // self.block_size
