"""The KV block cache: allocates blocks to sequences, and lets them share the blocks of equal prefixes.

This module knows the tables of sequences, and which computed prefixes they may begin with. What becomes of
a block that is in no table, and which is taken next, is the business of `blocks.py`; whose memory is taken
when blocks run short is decided elsewhere.

A sequence has a table for each group of the model's layers, and a block is in tables of one group only. A
group whose layers see a window lets go of what has left it: that is cached then, as what a sequence releases.
So a prefix can be taken where the groups that see all have all of it, and the others the window before its
end (`windows.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from engine.schedule.block_names import block_name, block_names, longest_prefix, new_hashes
from engine.schedule.blocks import Blocks
from engine.schedule.sequence import Sequence
from engine.schedule.windows import GONE, UNLIMITED, Windows, first_held


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
        self.blocks = Blocks(blocks, block_size, runs=runs)

    @property
    def total(self) -> int:
        return self.blocks.total

    @property
    def free(self) -> int:
        return self.blocks.free

    @property
    def cached(self) -> int:
        return self.blocks.cached

    @property
    def used(self) -> int:
        return self.total - self.blocks.available

    def blocks_for(self, tokens: int) -> int:
        return -(-tokens // self.block_size)

    # -- block tables ----------------------------------------------------------------------------

    def grow(self, sequence: Sequence, tokens: int) -> bool:
        """Extend its tables to so many tokens; False, and nothing changed, where blocks are short."""
        missing = self.missing(sequence, tokens)
        if sum(missing) > self.blocks.available:
            return False
        self.extend(sequence, missing)
        return True

    def missing(self, sequence: Sequence, tokens: int) -> list[int]:
        """How many blocks each of its tables lacks for so many tokens."""
        position, whole = sequence.next_position, self.blocks_for(tokens)
        return [
            max(0, self.windows.end(group, position, tokens) - have) if (have := len(table)) < whole else 0
            for group, table in enumerate(self._tables(sequence))
        ]

    def extend(self, sequence: Sequence, counts: list[int]) -> None:
        """Each of its tables by so many blocks, which are available."""
        for table, count in zip(sequence.tables, counts, strict=True):
            if count:
                table.extend(self.blocks.take(count, table))

    def release(self, sequence: Sequence, keep: int = 0) -> None:
        """Free the blocks that hold nothing of the first `keep` tokens."""
        assert self.can_keep(sequence, keep)
        count = self.blocks_for(keep)
        for table in sequence.tables:
            self.blocks.drop(table[max(count, first_held(table)) :])
            sequence.blocks_version += len(table) > count
            del table[count:]
        self._truncate_hashes(sequence, keep // self.block_size)
        sequence.lose_computed(keep)

    def release_all(self, sequences: list[Sequence]) -> None:
        """Free all that they have; what the first have is the first to be evicted from the cache."""
        numbers: list[int] = []
        for sequence in reversed(sequences):
            numbers += sequence.held_blocks
            for table in sequence.tables:
                table.clear()
            sequence.blocks_version += 1
            sequence.block_hashes.clear()
            sequence.num_offered = 0
            sequence.lose_computed()
        self.blocks.drop(numbers)

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
                self.blocks.drop(table[held:first])
                table[held:first] = [GONE] * (first - held)

    def invalidate(self, sequence: Sequence) -> list[int]:
        """Let nobody find what the sequence computed any more, since it cannot be trusted; returns the blocks
        that hold it and that nobody else has."""
        own = [number for number in sequence.held_blocks if self.blocks.refs[number] == 1]
        for number in own:
            self.blocks.forget(number)
        for group in self._windowed:
            for digest in sequence.block_hashes[: first_held(sequence.tables[group])]:
                past = self.blocks.find(block_name(digest, group))
                if past is not None and not self.blocks.refs[past]:
                    self.blocks.forget(past)
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
            if self.blocks.refs[number] == 1:
                self.blocks.forget(number)
                continue
            (copy,) = self.blocks.take(1, [])
            table[at] = copy
            sequence.blocks_version += 1
            self.blocks.drop([number])
            copies.append((number, copy))
        return copies

    def shared(self, sequence: Sequence) -> int:
        """How many blocks `make_writable` will need for copies."""
        at, refs = sequence.next_position // self.block_size, self.blocks.refs
        return sum(refs[table[at]] > 1 for table in sequence.tables if at < len(table))

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
        found = longest_prefix(chain, self.blocks.has, self.windows)
        position = len(found) * self.block_size
        for group, table in enumerate(self._tables(sequence)):
            first = self.windows.first(group, position)
            table.extend([GONE] * first)
            table.extend(map(self.blocks.use, block_names(found[first:], group)))
        # Those who begin alike have the same: of a very long context they are more than its tokens.
        sequence.block_hashes = own = list(map(self.blocks.own_name, found))
        sequence.token_hashes[: len(own)] = own
        sequence.num_computed = position
        return position

    def catch_up(self, sequence: Sequence, most: int) -> int:
        """Have its tables go on with what others have computed since of the same tokens, so many blocks at
        most; returns how many it holds with others now that it did not. Nothing of it is in flight."""
        have, end = len(sequence.block_hashes), (sequence.num_tokens - 1) // self.block_size
        ahead = new_hashes(sequence, min(end, have + most), self.block_size)
        found = longest_prefix(ahead, self.blocks.has, self.windows, have)
        hashes = [*sequence.block_hashes, *found]
        if not found or self.lay_out(sequence, hashes) is None:
            return 0
        sequence.block_hashes = hashes
        sequence.num_computed = len(hashes) * self.block_size
        return len(found) + sum(self._give_up_copies(sequence, group, have) for group in self._groups)

    def lay_out(self, sequence: Sequence, hashes: list[bytes]) -> list[tuple[bytes, int]] | None:
        """Have its tables hold what is read by whoever goes on behind these blocks, of which it has the
        first: what is cached of them, and blocks to be filled, which are returned with their names.

        None, and nothing changed, where blocks are short.
        """
        have, end = len(sequence.block_hashes), len(hashes)
        firsts = [self.windows.first(group, end * self.block_size) for group in self._groups]
        names = [block_names(hashes[max(have, first) :], group) for group, first in enumerate(firsts)]
        known = {name: at for group in names for name in group if (at := self.blocks.find(name)) is not None}
        short = [
            max(0, sum(name not in known for name in group) - max(0, len(table) - have))
            for group, table in zip(names, self._tables(sequence), strict=True)
        ]
        if sum(short) > self.blocks.available - sum(map(self.blocks.is_cached, known.values())):
            return None
        for name in known:
            self.blocks.use(name)
        filled: list[tuple[bytes, int]] = []
        for table, first, group, more in zip(sequence.tables, firsts, names, short, strict=True):
            beyond = max(0, len(table) - end)  # blocks that stay behind what is laid out
            unused = iter([*table[have:], *(self.blocks.take(more, table) if more else ())])
            gone = min(first, have)
            self.blocks.drop(table[first_held(table) : gone])
            table[:] = [GONE] * first + table[gone:have]
            for name in group:
                number = known[name] if name in known else next(unused)
                table.append(number)
                if name not in known:
                    filled.append((name, number))
            table.extend(islice(unused, beyond))
            self.blocks.drop(list(unused))
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
            for at, name in enumerate(block_names(hashes, group), have):
                if table[at] != GONE and self.blocks.name(table[at], name):
                    self._give_up_copies(sequence, group, at)

    def _give_up_copies(self, sequence: Sequence, group: int, end: int) -> int:
        """Before a block that others find it holds what they find there, too, and no copies of that, as where
        two compute the same at once: so whatever is shared is a beginning (`released.py`). Who computes the
        same to its end keeps its own, and its table as it lies. Returns how many it had."""
        table, first = sequence.tables[group], end
        while first and table[first - 1] != GONE and not self.blocks.has_name(table[first - 1]):
            first -= 1
        if first == end:
            return 0
        names, copies = block_names(sequence.block_hashes[first:end], group), table[first:end]
        for number, name in zip(copies, names, strict=True):
            self.blocks.name(number, name)  # where what had it is no more
        table[first:end] = map(self.blocks.use, names)
        self.blocks.drop(copies)
        sequence.blocks_version += 1
        return len(copies)

    def names(self, hashes: Iterable[bytes]) -> list[bytes]:
        """Of the blocks of all groups with these hashes."""
        return [block_name(digest, group) for digest in hashes for group in self._groups]

    def lookup(self, name: bytes) -> int | None:
        """The block with this name."""
        return self.blocks.find(name)

    def hash_blocks(self, sequence: Sequence, blocks: int) -> list[bytes]:
        """The hashes of its first full blocks, computed or not."""
        return [*sequence.block_hashes[:blocks], *new_hashes(sequence, blocks, self.block_size)]

    def _truncate_hashes(self, sequence: Sequence, keep: int) -> None:
        del sequence.block_hashes[keep:]
        sequence.num_offered = min(sequence.num_offered, len(sequence.block_hashes))

    # -- proof -----------------------------------------------------------------------------------

    def audit(self, sequences: Iterable[Sequence]) -> None:
        """Raise unless every block is accounted for exactly once."""
        sequences = list(sequences)
        self.blocks.audit(Counter(number for sequence in sequences for number in sequence.held_blocks))
        for sequence in sequences:
            for group, table in enumerate(sequence.tables if sequence.blocks else []):
                assert sequence.next_position <= len(table) * self.block_size
                assert first_held(table) <= self.windows.first(group, sequence.num_computed)
                assert GONE not in table[first_held(table) :]
                full = table[first_held(table) : len(sequence.block_hashes)]
                named = [self.blocks.has_name(number) for number in full]
                assert named == sorted(named, reverse=True), "what others find stands before all copies"
                if sequence.next_position < sequence.num_writable:
                    number = table[sequence.next_position // self.block_size]
                    assert self.blocks.refs[number] == 1
                    assert not self.blocks.has_name(number)
                    assert sequence.num_writable <= len(table) * self.block_size
            assert sequence.blocks or not (sequence.held_blocks or sequence.num_writable)
            assert sequence.blocks or not sequence.next_position
            assert len(sequence.block_hashes) <= sequence.num_computed // self.block_size
            known = list(zip(sequence.block_hashes, sequence.token_hashes, strict=False))
            assert all(of_block == of_tokens for of_block, of_tokens in known)
