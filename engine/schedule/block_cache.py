"""The KV block cache: allocates blocks to sequences, and lets them share the blocks of equal prefixes.

Blocks are numbers here; the tensors behind them belong to the runner. This module knows reference counts,
which computed prefixes may be reused, and which of them to evict when blocks run short. It knows no
scheduler's policy: whose memory is taken is decided elsewhere.

A block is in exactly one of three states. *Used*: it is in some sequence's table. *Cached*: nobody uses it,
but it holds a full block of computed tokens that the next prompt with the same beginning may take. *Free*:
neither. `audit()` proves it.

What is cached is evicted in one order, the least recently used first and a chain's end before its beginning.
Where blocks lie is the business of `free_runs.py`: where tables should be runs of neighbours, some may be
evicted before they are needed, in that same order.

A sequence has a table for each group of the model's layers, and a block is in tables of one group only. A
group whose layers see a window lets go of what has left it: that is cached then, as what a sequence releases.
So a prefix can be taken where the groups that see all have all of it, and the others the window before its
end (`windows.py`).
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable
from itertools import islice

from engine.schedule.block_names import block_name, block_names, longest_prefix, new_hashes
from engine.schedule.free_blocks import FreeBlocks, FreeList
from engine.schedule.free_runs import FreeRuns
from engine.schedule.sequence import Sequence
from engine.schedule.windows import GONE, UNLIMITED, Windows, first_held

PIECE = 256  # tokens that attention reads as one, where it reads slices
EVICTED_TOGETHER = 32  # blocks, before it is looked again whether they were enough


class BlockCache:
    """`runs`: whether tables should be runs of neighbours, for who reads them as slices. `windows`: of each
    group of layers; a step computes up to `chunk` tokens of a sequence."""

    def __init__(
        self,
        blocks: int,
        block_size: int,
        *,
        runs: bool = True,
        windows: tuple[int | None, ...] = (None,),
        chunk: int = UNLIMITED,
    ) -> None:
        self.block_size = block_size
        self.windows = Windows(windows, block_size, chunk)
        self._windowed = [group for group, window in enumerate(windows) if window is not None]
        self._groups = range(len(windows))
        self.refs = [0] * blocks  # tables that a block is in
        self._hash_of: dict[int, bytes] = {}  # and of which group's layers: its name
        self._by_hash: dict[bytes, int] = {}
        self._cached: OrderedDict[int, float] = OrderedDict()  # since when; least recently used first
        self._let_go: OrderedDict[int, float] = OrderedDict()  # free ones that hold memory, likewise
        piece = max(1, PIECE // block_size)
        self._free: FreeBlocks = FreeRuns(self.refs, piece) if runs else FreeList(blocks)
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
        """Extend its tables to so many tokens; False, and nothing changed, where blocks are short."""
        tables, at = self._tables(sequence), sequence.next_position
        ends = [self.windows.end(group, at, tokens) for group in self._groups]
        missing = [max(0, end - len(table)) for end, table in zip(ends, tables, strict=True)]
        if sum(missing) > self.free + self.cached:
            return False
        for table, count in zip(tables, missing, strict=True):
            if count:
                table.extend(self._take(count, table))
        return True

    def release(self, sequence: Sequence, keep: int = 0) -> None:
        """Free the blocks that hold nothing of the first `keep` tokens."""
        assert self.can_keep(sequence, keep)
        count = self.blocks_for(keep)
        for table in sequence.tables:
            self._drop(table[max(count, first_held(table)) :])
            sequence.blocks_version += len(table) > count
            del table[count:]
        self._truncate_hashes(sequence, keep // self.block_size)
        sequence.num_computed = min(sequence.num_computed, keep)
        sequence.num_writable = 0

    def can_keep(self, sequence: Sequence, tokens: int) -> bool:
        """Whether its tables hold all that is read by whoever goes on behind so many of its tokens."""
        tables = sequence.tables
        return not tokens or all(
            first_held(tables[group]) <= self.windows.first(group, tokens) for group in self._windowed
        )

    def let_go_of_past(self, sequence: Sequence) -> None:
        """What has left the windows of whatever it computes next is in its tables no longer."""
        for group in self._windowed:
            table = sequence.blocks if group == 0 else sequence.other_blocks[group - 1]
            first = self.windows.first(group, sequence.num_computed)
            if first and table[first - 1] != GONE:
                held = first_held(table)
                self._drop(table[held:first])
                table[held:first] = [GONE] * (first - held)

    def invalidate(self, sequence: Sequence) -> list[int]:
        """Let nobody find what the sequence computed any more, since it cannot be trusted; returns the blocks
        that hold it and that nobody else has."""
        own = [number for number in sequence.held_blocks if self.refs[number] == 1]
        for number in own:
            self._uncache(number)
        for group in self._windowed:
            for digest in sequence.block_hashes[: first_held(sequence.tables[group])]:
                past = self._by_hash.get(block_name(digest, group))
                if past is not None and not self.refs[past]:
                    del self._cached[past]
                    self._uncache(past)
                    self._give([past])
                    own.append(past)
        return own

    def make_writable(self, sequence: Sequence) -> list[tuple[int, int]]:
        """Copy on write: nobody else may be reading the blocks that the token at `next_position` goes to,
        which its tables have.

        Only a rewind into a full block needs it. Returns (from, to) of each that must be copied first.
        """
        copies: list[tuple[int, int]] = []
        at = sequence.next_position // self.block_size
        if len(sequence.block_hashes) > at:
            self._truncate_hashes(sequence, at)
        sequence.num_writable = (at + 1) * self.block_size
        for table in sequence.tables if sequence.other_blocks else (sequence.blocks,):
            number = table[at]
            if self.refs[number] == 1:
                if number in self._hash_of:
                    self._uncache(number)
                continue
            (copy,) = self._take(1, [])
            table[at] = copy
            sequence.blocks_version += 1
            self._drop([number])
            copies.append((number, copy))
        return copies

    def needed(self, sequence: Sequence, tokens: int) -> int:
        """How many blocks are to be had before its tokens up to there are computed: those that its tables
        lack, and those that `make_writable` will need."""
        position = sequence.next_position
        at, whole = position // self.block_size, self.blocks_for(tokens)
        needed = 0
        for group, table in enumerate(self._tables(sequence)):
            have = len(table)
            if whole > have:
                needed += max(0, self.windows.end(group, position, tokens) - have)
            if at < have and self.refs[table[at]] > 1:
                needed += 1
        return needed

    def _tables(self, sequence: Sequence) -> list[list[int]]:
        """Those of a sequence that may have none yet."""
        while len(sequence.other_blocks) < len(self._groups) - 1:
            sequence.other_blocks.append([])
        return sequence.tables

    # -- prefixes --------------------------------------------------------------------------------

    def match_prefix(self, sequence: Sequence) -> int:
        """Begin its tables with computed blocks of the same tokens; returns how many tokens that spares."""
        assert not sequence.blocks
        chain = new_hashes(sequence, (sequence.num_tokens - 1) // self.block_size, self.block_size)
        found = longest_prefix(chain, self._by_hash.__contains__, self.windows)
        position = len(found) * self.block_size
        for group, table in enumerate(self._tables(sequence)):
            first = self.windows.first(group, position)
            table.extend([GONE] * first)
            table.extend(self._use(self._by_hash[name]) for name in block_names(found[first:], group))
        sequence.block_hashes = found
        sequence.num_computed = position
        return position

    def lay_out(self, sequence: Sequence, hashes: list[bytes]) -> list[tuple[bytes, int]] | None:
        """Have its tables hold what is read by whoever goes on behind these blocks, of which it has the
        first: what is cached of them, and blocks to be filled, which are returned with their names.

        None, and nothing changed, where blocks are short.
        """
        have, end = len(sequence.block_hashes), len(hashes)
        firsts = [self.windows.first(group, end * self.block_size) for group in self._groups]
        names = [block_names(hashes[max(have, first) :], group) for group, first in enumerate(firsts)]
        known = {name: self._by_hash[name] for group in names for name in group if name in self._by_hash}
        short = [
            max(0, sum(name not in known for name in group) - max(0, len(table) - have))
            for group, table in zip(names, self._tables(sequence), strict=True)
        ]
        if sum(short) > self.free + self.cached - sum(number in self._cached for number in known.values()):
            return None
        for number in known.values():
            self._use(number)
        filled: list[tuple[bytes, int]] = []
        for table, first, group, more in zip(sequence.tables, firsts, names, short, strict=True):
            beyond = max(0, len(table) - end)  # blocks that stay behind what is laid out
            unused = iter([*table[have:], *(self._take(more, table) if more else ())])
            gone = min(first, have)
            self._drop(table[first_held(table) : gone])
            table[:] = [GONE] * first + table[gone:have]
            for name in group:
                number = known[name] if name in known else next(unused)
                table.append(number)
                if name not in known:
                    filled.append((name, number))
            table.extend(islice(unused, beyond))
            self._drop(list(unused))
        sequence.blocks_version += 1
        sequence.num_writable = 0
        return filled

    def cache_full_blocks(self, sequence: Sequence) -> None:
        """Let sequences that begin with the same tokens find its full computed blocks."""
        full = sequence.num_computed // self.block_size
        if full == len(sequence.block_hashes):
            return
        have = len(sequence.block_hashes)
        hashes = list(new_hashes(sequence, full, self.block_size))
        sequence.block_hashes += hashes
        for group, table in enumerate(sequence.tables):
            for name, number in zip(block_names(hashes, group), table[have:full], strict=True):
                if name not in self._by_hash and number not in self._hash_of and number != GONE:
                    self._by_hash[name] = number
                    self._hash_of[number] = name

    def names(self, hashes: Iterable[bytes]) -> list[bytes]:
        """Of the blocks of all groups with these hashes."""
        return [block_name(digest, group) for digest in hashes for group in self._groups]

    def lookup(self, name: bytes) -> int | None:
        """The block with this name."""
        return self._by_hash.get(name)

    def hash_blocks(self, sequence: Sequence, blocks: int) -> list[bytes]:
        """The hashes of its first full blocks, computed or not."""
        return [*sequence.block_hashes[:blocks], *new_hashes(sequence, blocks, self.block_size)]

    def _truncate_hashes(self, sequence: Sequence, keep: int) -> None:
        del sequence.block_hashes[keep:]
        sequence.num_offered = min(sequence.num_offered, len(sequence.block_hashes))

    # -- blocks ----------------------------------------------------------------------------------

    def _take(self, count: int, table: list[int]) -> list[int]:
        """So many blocks, which there are, for the end of a table: behind its last, where those are free."""
        taken = list(self._free.take_behind(table[-1], count)) if table and table[-1] != GONE else []
        if len(taken) < count:
            self._make_room(count - len(taken))
            at = len(table) + len(taken)
            taken += self._free.take(count - len(taken), at, at - first_held(table))
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

    def _use(self, number: int) -> int:
        """It is in one table more."""
        self._cached.pop(number, None)
        self.refs[number] += 1
        return number

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
        owners = Counter(number for sequence in sequences for number in sequence.held_blocks)
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
            for group, table in enumerate(sequence.tables if sequence.blocks else []):
                assert sequence.next_position <= len(table) * self.block_size
                assert first_held(table) <= self.windows.first(group, sequence.num_computed)
                assert GONE not in table[first_held(table) :]
                if sequence.next_position < sequence.num_writable:
                    number = table[sequence.next_position // self.block_size]
                    assert self.refs[number] == 1
                    assert number not in self._hash_of
                    assert sequence.num_writable <= len(table) * self.block_size
            assert sequence.blocks or not (sequence.held_blocks or sequence.num_writable)
            assert sequence.blocks or not sequence.next_position
            assert len(sequence.block_hashes) <= sequence.num_computed // self.block_size
            known = list(zip(sequence.block_hashes, sequence.token_hashes, strict=False))
            assert all(of_block == of_tokens for of_block, of_tokens in known)
