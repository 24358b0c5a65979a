"""Free blocks: none is given twice or lost, and tables are runs of neighbours, whatever came before."""

from __future__ import annotations

import itertools
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.api import Sampling
from engine.schedule.block_cache import BlockCache
from engine.schedule.free_blocks import FreeBlocks, FreeList
from engine.schedule.free_runs import NEIGHBOURS, FreeRuns
from engine.schedule.sequence import Sequence

EXAMPLES = os.environ.get("MIDSTREAM_EXAMPLES")
SETTINGS = settings(
    max_examples=int(EXAMPLES or 200), derandomize=EXAMPLES is None, database=None, deadline=None
)
BLOCK = 4
ACT = st.tuples(
    st.sampled_from(["new", "grow", "grow", "cut", "drop", "drop"]), st.integers(0, 9), st.integers(1, 40)
)


class Tables:
    """Tables that take blocks and give them back, and what must hold of those that are left."""

    def __init__(self, free: FreeBlocks, refs: list[int]) -> None:
        self.free = free
        self.refs = refs
        self.tables: list[list[int]] = []

    def act(self, kind: str, at: int, count: int) -> None:
        if kind == "new" or not self.tables:
            self.tables.append([])
            at = -1
        table = self.tables[at % len(self.tables)]
        if kind in ("new", "grow"):
            self._take(table, count)
        else:
            self._give(table, len(table) // 2 if kind == "cut" else 0)

    def _take(self, table: list[int], count: int) -> None:
        taken = list(self.free.take_behind(table[-1], count)) if table else []
        assert not taken or taken == list(range(table[-1] + 1, table[-1] + 1 + len(taken)))
        rest = min(count - len(taken), len(self.free))
        if rest:
            self.free.fits(rest)
            taken += self.free.take(rest, len(table) + len(taken), len(table))
        for number in taken:
            assert self.refs[number] <= 0
            self.refs[number] = 1
        table += taken

    def _give(self, table: list[int], keep: int) -> None:
        for number in table[keep:]:
            self.refs[number] = -1  # its memory is idle
        self.free.give(table[keep:])
        del table[keep:]

    def check(self) -> None:
        taken = [number for table in self.tables for number in table]
        assert sorted([*self.free, *taken]) == list(range(len(self.refs)))
        assert len(self.free) == len(self.refs) - len(taken)
        if isinstance(self.free, FreeRuns):
            assert not any(first < self.free._hand < end for first, end in self.free.runs())
            ends = {end for _, end in self.free.runs()}
            assert all(first == self.free._hand for first, _ in self.free.runs() if first in ends)
            widest = [0] * len(self.free._most_nearby)
            for first, end in self.free.runs():
                if first != self.free._hand:
                    at = first // NEIGHBOURS
                    widest[at] = max(widest[at], (end - first).bit_length())
            assert list(self.free._most_nearby) == widest
            assert self.free._most >= max(widest)


@SETTINGS
@given(st.booleans(), st.integers(1, 600), st.lists(ACT, max_size=120))
def test_every_block_is_free_or_taken_once(runs: bool, blocks: int, acts: list[tuple[str, int, int]]) -> None:
    refs = [0] * blocks
    tables = Tables(FreeRuns(refs) if runs else FreeList(blocks), refs)
    for act in acts:
        tables.act(*act)
        tables.check()


# -- where tables lie ------------------------------------------------------------------------------

streams = itertools.count()


def admit(cache: BlockCache, blocks: int) -> Sequence:
    stream = next(streams)
    sequence = Sequence(stream, [stream] * blocks * BLOCK, Sampling(), credit=1, context=10**9)
    grow(cache, sequence, blocks)
    return sequence


def grow(cache: BlockCache, sequence: Sequence, blocks: int) -> None:
    """To so many blocks, computed and known to the cache."""
    end = blocks * BLOCK
    sequence.tokens.extend([sequence.stream] * (end - sequence.num_tokens))
    assert cache.grow(sequence, end)
    sequence.num_computed = end
    cache.cache_full_blocks(sequence)


def pieces(sequence: Sequence) -> int:
    return 1 + sum(behind != number + 1 for number, behind in itertools.pairwise(sequence.blocks))


def turn_over(cache: BlockCache, times: int, dice: random.Random) -> None:
    """Chats of all lengths, eight at a time, some of which go on with what is cached of others."""
    taken, live, ended = 0, list[tuple[Sequence, int]](), list[list[int]]()
    while taken < times * cache.total:
        while len(live) < 8:
            stream, blocks = next(streams), dice.randrange(5, 60)
            known = dice.choice(ended[-20:]) if ended and dice.random() < 0.2 else []
            tokens = [*known, *[stream] * blocks * BLOCK]
            sequence = Sequence(stream, tokens, Sampling(), credit=1, context=10**9)
            cache.match_prefix(sequence)
            grow(cache, sequence, len(tokens) // BLOCK)
            live.append((sequence, len(sequence.blocks) + dice.randrange(2, 40)))
            taken += blocks
        for sequence, end in list(live):
            grow(cache, sequence, len(sequence.blocks) + 1)
            taken += 1
            if len(sequence.blocks) == end:
                live.remove((sequence, end))
                ended.append(list(sequence.tokens))
                cache.release(sequence)
    for sequence, _ in live:
        cache.release(sequence)


@pytest.mark.parametrize(("rows", "blocks"), [(1, 19), (32, 19), (4, 63), (32, 63), (1, 250), (16, 250)])
@pytest.mark.parametrize("used", [0, 5], ids=["fresh", "used"])
def test_tables_lie_in_one_piece_or_few_however_long_the_cache_was_used(
    rows: int, blocks: int, used: int
) -> None:
    cache = BlockCache(8192, BLOCK)
    turn_over(cache, used, random.Random(7))
    cache.audit([])
    tables = [admit(cache, blocks) for _ in range(rows)]
    for more in (1, 2, 3):
        for sequence in tables:
            grow(cache, sequence, blocks + more)
    cache.audit(tables)
    few = 1.0 if not used or blocks == 19 else 1.5 if blocks == 63 else 4
    assert sum(map(pieces, tables)) / rows <= few
    assert cache.free <= cache.total // 4 + 64 or not used


def test_tables_that_are_as_long_begin_evenly_spaced() -> None:
    cache = BlockCache(1024, BLOCK)
    begin = [admit(cache, 5).blocks[0] for _ in range(16)]
    assert {behind - number for number, behind in itertools.pairwise(begin)} == {begin[1]}


def test_what_is_evicted_is_the_oldest_also_where_it_is_evicted_ahead() -> None:
    cache, dice = BlockCache(512, BLOCK), random.Random(3)
    turn_over(cache, 2, dice)
    for _ in range(200):
        before = list(cache.blocks._cached)
        sequence = admit(cache, dice.randrange(1, 30))
        left = list(cache.blocks._cached)
        assert left == before[len(before) - len(left) :]
        cache.release(sequence)


def test_nothing_is_evicted_ahead_for_who_reads_block_tables() -> None:
    cache, dice = BlockCache(512, BLOCK, runs=False), random.Random(3)
    turn_over(cache, 2, dice)
    free, cached = cache.free, cache.cached
    assert free < 60
    sequence = admit(cache, 100)
    assert (cache.free, cache.cached) == (0, cached - (100 - free))
    cache.audit([sequence])


def test_a_table_in_several_runs_is_cut_where_pieces_of_it_end() -> None:
    refs = [0] * 200
    free = FreeRuns(refs, piece=16)
    taken = free.take(200, at=0, held=0)
    free.give([*taken[10:50], *taken[60:100], *taken[110:150]])  # runs of 40 blocks
    table = free.take(100, at=0, held=0)
    cuts = [at for at in range(1, 100) if table[at] != table[at - 1] + 1]
    assert cuts
    assert all(at % 16 == 0 for at in cuts)
