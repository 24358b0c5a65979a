"""The block cache: blocks are free, cached or used; shared prefixes are copied before they are written."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from hashlib import blake2b

import pytest

from engine import block_digests
from engine.api import Sampling
from engine.schedule.block_cache import BlockCache
from engine.schedule.sequence import Sequence

BLOCK = 4


def sequence(tokens: int | list[int] = 10, tenant: int = 0, stream: int = 1) -> Sequence:
    known = list(range(tokens)) if isinstance(tokens, int) else tokens
    return Sequence(stream, known, Sampling(), credit=100, context=1000, tenant=tenant)


def compute(cache: BlockCache, seq: Sequence, tokens: int | None = None) -> None:
    """What a step does: room for the tokens, then they stand computed."""
    end = seq.num_tokens if tokens is None else tokens
    assert cache.grow(seq, end)
    seq.num_computed = end
    cache.cache_full_blocks(seq)


def counts(cache: BlockCache) -> tuple[int, int, int]:
    return cache.used, cache.cached, cache.free


def test_those_who_begin_alike_have_the_same_names() -> None:
    """Of a very long context each would take more than its tokens, and a fork is asked for by a line."""
    cache, first, fork = BlockCache(8, BLOCK), sequence(), sequence([*range(8), 99, 99], stream=2)
    compute(cache, first)
    assert cache.match_prefix(fork) == 8
    assert len(fork.block_hashes) == 2
    for names in (fork.block_hashes, fork.token_hashes):
        assert all(own is its for own, its in zip(names, first.block_hashes, strict=False))
    cache.audit([first, fork])


# -- growing ---------------------------------------------------------------------------------------


def test_it_gives_as_many_blocks_as_the_tokens_need() -> None:
    cache, seq = BlockCache(8, BLOCK), sequence()
    for tokens, blocks in [(1, 1), (4, 1), (5, 2), (5, 2), (17, 5)]:
        assert cache.grow(seq, tokens)
        assert len(seq.blocks) == blocks
    assert counts(cache) == (5, 0, 3)
    cache.audit([seq])


def test_it_gives_all_or_nothing() -> None:
    cache, seq, other = BlockCache(4, BLOCK), sequence(), sequence(stream=2)
    assert cache.grow(seq, 8)
    assert not cache.grow(other, 12)
    assert other.blocks == []
    assert counts(cache) == (2, 0, 2)


def test_a_table_grows_as_one_run() -> None:
    cache, seqs = BlockCache(64, BLOCK), [sequence(stream=number) for number in range(4)]
    for tokens in range(1, 8 * BLOCK):
        for seq in seqs:
            assert cache.grow(seq, tokens)
    for seq in seqs:
        assert seq.blocks == list(range(seq.blocks[0], seq.blocks[0] + 8))
    cache.audit(seqs)


def test_where_the_neighbour_is_taken_it_grows_elsewhere() -> None:
    cache, seq, other = BlockCache(4, BLOCK), sequence(), sequence(stream=2)
    assert cache.grow(seq, 4)
    assert cache.grow(other, 8)
    assert cache.grow(seq, 8)
    assert sorted(seq.blocks + other.blocks) == [0, 1, 2, 3]
    cache.audit([seq, other])


def test_release_keeps_what_holds_the_first_tokens() -> None:
    cache, seq = BlockCache(8, BLOCK), sequence(20)
    compute(cache, seq)
    cache.release(seq, keep=9)
    assert len(seq.blocks) == 3
    assert seq.num_computed == 9
    cache.audit([seq])
    cache.release(seq)
    assert not seq.blocks
    assert not seq.block_hashes
    assert seq.num_computed == 0
    cache.audit([])


# -- prefixes --------------------------------------------------------------------------------------


def test_full_computed_blocks_outlive_their_sequence() -> None:
    cache, seq = BlockCache(8, BLOCK), sequence(10)
    compute(cache, seq)
    cache.release(seq)
    assert counts(cache) == (0, 2, 6)
    cache.audit([])


def test_whoever_begins_alike_takes_them() -> None:
    cache, seq, other = BlockCache(8, BLOCK), sequence(10), sequence([*range(8), 90, 91, 92], stream=2)
    compute(cache, seq)
    assert cache.match_prefix(other) == 8 == other.num_computed
    assert other.blocks == seq.blocks[:2]
    assert [cache.blocks.refs[number] for number in seq.blocks] == [2, 2, 1]
    cache.audit([seq, other])
    cache.release(seq)
    assert counts(cache) == (2, 0, 6)
    cache.audit([other])


def test_a_prefix_ends_where_tokens_differ() -> None:
    cache, seq = BlockCache(8, BLOCK), sequence(12)
    compute(cache, seq)
    assert cache.match_prefix(sequence([0, 1, 2, 3, 4, 99, 6, 7, 8, 9, 10, 11], stream=2)) == 4
    assert cache.match_prefix(sequence([99, *range(1, 12)], stream=3)) == 0


def test_a_block_is_known_by_all_tokens_before_it() -> None:
    cache = BlockCache(8, BLOCK)
    compute(cache, sequence([1, 1, 1, 1, 2, 2, 2, 2]))
    assert cache.match_prefix(sequence([2, 2, 2, 2, 1, 1, 1, 1, 0], stream=2)) == 0


def test_the_last_token_is_always_left_to_compute() -> None:
    """Its logits are what the next token comes from."""
    cache = BlockCache(8, BLOCK)
    compute(cache, sequence(8))
    assert cache.match_prefix(sequence(8, stream=2)) == 4


def test_a_tenant_finds_nothing_of_another() -> None:
    cache = BlockCache(8, BLOCK)
    compute(cache, sequence(12, tenant=1))
    assert cache.match_prefix(sequence(12, tenant=2, stream=2)) == 0
    assert cache.match_prefix(sequence(12, tenant=1, stream=3)) == 8


def test_cached_blocks_are_given_up_least_recently_used_and_end_of_chain_first() -> None:
    cache = BlockCache(6, BLOCK)
    old, new = sequence([*range(12)]), sequence([*range(50, 62)], stream=2)
    for seq in (old, new):
        compute(cache, seq)
    cache.release(old)
    cache.release(new)
    assert counts(cache) == (0, 6, 0)
    taker = sequence([*range(90, 98)], stream=3)
    compute(cache, taker)
    cache.audit([taker])
    assert cache.match_prefix(sequence(13, stream=4)) == 4  # two of its three are gone
    assert cache.match_prefix(sequence([*range(50, 63)], stream=5)) == 12


def test_a_block_in_use_is_never_given_up() -> None:
    cache, seq, other = BlockCache(4, BLOCK), sequence(8), sequence([*range(9)], stream=2)
    compute(cache, seq)
    cache.release(seq)
    assert cache.match_prefix(other) == 8
    assert not cache.grow(sequence(stream=3), 12)
    assert cache.grow(sequence(stream=4), 8)


def test_the_same_tokens_computed_twice_are_cached_once() -> None:
    cache, one, two = BlockCache(8, BLOCK), sequence(8), sequence(8, stream=2)
    compute(cache, one)
    compute(cache, two)
    cache.audit([one, two])
    cache.release(one)
    cache.release(two)
    assert counts(cache) == (0, 2, 6)


@pytest.mark.parametrize("goes_on", [0, 1])
def test_who_computes_the_same_as_another_has_no_copies_before_what_both_share(goes_on: int) -> None:
    cache, ones = BlockCache(16, BLOCK), [sequence(16), sequence(16, stream=2)]
    for one in ones:
        compute(cache, one, 8)
    assert cache.used == 4
    compute(cache, ones[goes_on], 12)
    assert cache.catch_up(ones[1 - goes_on], 9)
    assert ones[0].blocks == ones[1].blocks
    assert counts(cache) == (3, 0, 13)
    cache.audit(ones)


def test_but_keeps_its_own_and_its_table_in_one_piece_for_as_long_as_it_is_behind() -> None:
    cache, one, two = BlockCache(64, BLOCK), sequence(40), sequence(40, stream=2)
    for tokens in range(4, 36, 4):
        compute(cache, one, tokens)
        compute(cache, two, tokens)
    assert two.blocks == list(range(two.blocks[0], two.blocks[0] + 8))
    assert set(one.blocks).isdisjoint(two.blocks)


def test_a_copy_of_what_is_no_more_is_found_in_its_place() -> None:
    cache, one, two = BlockCache(8, BLOCK), sequence(8), sequence(12, stream=2)
    compute(cache, one)
    compute(cache, two, 8)
    cache.release(one)
    compute(cache, filling := sequence([7] * 24, stream=3))
    cache.release(filling)
    compute(cache, two, 12)
    cache.audit([two])
    assert cache.match_prefix(other := sequence(13, stream=4)) == 12
    assert other.blocks == two.blocks


# -- distrust --------------------------------------------------------------------------------------


def test_what_is_invalidated_is_found_by_nobody() -> None:
    cache, seq = BlockCache(8, BLOCK), sequence(12)
    compute(cache, seq)
    cache.invalidate(seq)
    assert cache.match_prefix(sequence(12, stream=2)) == 0
    cache.release(seq)
    assert counts(cache) == (0, 0, 8)
    cache.audit([])


def test_what_somebody_else_uses_too_stays_cached() -> None:
    cache, seq, other = BlockCache(8, BLOCK), sequence(12), sequence(12, stream=2)
    compute(cache, seq)
    cache.match_prefix(other)
    cache.invalidate(seq)
    assert cache.match_prefix(sequence(13, stream=3)) == 8
    cache.release(seq)
    assert cache.match_prefix(sequence(13, stream=4)) == 8


# -- rewinds ---------------------------------------------------------------------------------------


def test_a_shared_block_is_copied_before_it_is_written() -> None:
    cache, seq, other = BlockCache(8, BLOCK), sequence(12), sequence(13, stream=2)
    compute(cache, seq)
    cache.match_prefix(other)
    cache.release(other, keep=6)
    shared = seq.blocks[1]
    assert cache.shared(other)
    copy = cache.make_writable(other)
    assert copy == [(shared, other.blocks[1])]
    assert other.blocks[1] != shared == seq.blocks[1]
    assert other.blocks[0] == seq.blocks[0]
    assert not cache.shared(other)
    cache.audit([seq, other])
    assert cache.match_prefix(sequence(13, stream=3)) == 12


def test_a_block_of_ones_own_is_rewritten_in_place_and_no_longer_cached() -> None:
    cache, seq = BlockCache(8, BLOCK), sequence(12)
    compute(cache, seq)
    cache.release(seq, keep=6)
    assert not cache.shared(seq)
    assert cache.make_writable(seq) == []
    cache.audit([seq])
    assert cache.match_prefix(sequence(12, stream=2)) == 4


def test_growing_into_a_fresh_block_copies_nothing() -> None:
    cache, seq = BlockCache(8, BLOCK), sequence(12)
    compute(cache, seq, 8)
    assert cache.grow(seq, 12)
    assert cache.make_writable(seq) == []
    assert cache.match_prefix(sequence(12, stream=2)) == 8


def test_what_was_written_anew_is_remembered_as_what_it_is_now() -> None:
    cache, seq = BlockCache(8, BLOCK), sequence(5)
    for token in range(5, 12):
        seq.append_output(token)
    compute(cache, seq)
    seq.truncate(0)
    cache.release(seq, keep=5)
    for token in (70, 71, 72, 73):
        seq.append_output(token)
    cache.make_writable(seq)
    compute(cache, seq)
    cache.audit([seq])
    assert cache.match_prefix(sequence([*range(5), 70, 71, 72, 73], stream=2)) == 8
    assert cache.match_prefix(sequence(12, stream=3)) == 4


def test_what_is_asked_for_again_is_not_hashed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, seq, other = BlockCache(8, BLOCK), sequence(20), sequence(20, stream=2)
    compute(cache, seq)
    hashed = Counter[str]()

    def counted(data: bytes, *, digest_size: int) -> object:
        hashed["blocks"] += 1
        return blake2b(data, digest_size=digest_size)

    monkeypatch.setattr(block_digests, "blake2b", counted)
    for _ in range(3):  # it finds no room for the rest
        assert cache.match_prefix(other) == 16
        cache.release(other)
    assert hashed["blocks"] == 4
    other.append_output(99)
    other.truncate(0)
    assert cache.match_prefix(other) == 16
    cache.release(other)
    assert hashed["blocks"] == 4, "nor what stands before what was taken back"
    other.num_prompt, other.num_outputs = 8, 12
    other.truncate(0)
    other.force([7] * 12)
    assert cache.match_prefix(other) == 8  # the names are those of what it says now


def test_the_hashes_of_whoever_goes_back_and_on_are_those_of_its_tokens() -> None:
    cache, dice = BlockCache(8, BLOCK), random.Random(3)
    seq = sequence(3)
    for _ in range(2000):
        if dice.random() < 0.4:
            seq.cut(dice.randint(3, seq.num_tokens))
        elif seq.num_tokens < 60:
            seq.inject([dice.randrange(2) for _ in range(dice.randint(1, 7))])
        if dice.random() < 0.5:
            blocks = dice.randint(0, seq.num_tokens // BLOCK)
            assert cache.hash_blocks(seq, blocks) == cache.hash_blocks(sequence(list(seq.tokens)), blocks)


def test_where_a_sequence_may_write_is_known_until_it_goes_back() -> None:
    cache, seq = BlockCache(8, BLOCK), sequence(6)
    compute(cache, seq, 5)
    cache.make_writable(seq)
    assert seq.num_writable == 8
    seq.append_output(9)
    seq.truncate(0)
    assert not seq.num_writable
    cache.make_writable(seq)
    cache.release(seq, keep=4)
    assert not seq.num_writable


# -- the audit itself ------------------------------------------------------------------------------


def _lose(cache: BlockCache, seq: Sequence) -> None:
    seq.blocks.pop()
    seq.num_computed = BLOCK


def _count_twice(cache: BlockCache, seq: Sequence) -> None:
    cache.blocks.refs[seq.blocks[0]] += 1


def _take_foreign(cache: BlockCache, seq: Sequence) -> None:
    seq.blocks.append(next(number for number in range(cache.total) if number not in seq.blocks))


def _claim_too_much(cache: BlockCache, seq: Sequence) -> None:
    seq.num_computed = len(seq.blocks) * BLOCK + 1


def _name_too_much(cache: BlockCache, seq: Sequence) -> None:
    seq.block_hashes.append(b"not computed")


def _remember_another_name(cache: BlockCache, seq: Sequence) -> None:
    seq.token_hashes[0] = b"of other tokens"


def _write_what_others_may_find(cache: BlockCache, seq: Sequence) -> None:
    seq.num_computed = BLOCK
    seq.block_hashes.pop()
    seq.num_writable = 2 * BLOCK


def _share_behind_a_copy(cache: BlockCache, seq: Sequence) -> None:
    cache.blocks.forget(seq.blocks[0])


def _free_what_is_used(cache: BlockCache, seq: Sequence) -> None:
    cache.blocks._free.give(seq.blocks[:1])


def _cache_without_a_name(cache: BlockCache, seq: Sequence) -> None:
    cache.blocks._cached[cache.blocks._free.take(1, 0, 0)[0]] = 0.0


def _forget_half_a_name(cache: BlockCache, seq: Sequence) -> None:
    cache.blocks._by_name.popitem()


@pytest.mark.parametrize(
    "corrupt",
    [
        _lose,
        _count_twice,
        _take_foreign,
        _claim_too_much,
        _name_too_much,
        _remember_another_name,
        _write_what_others_may_find,
        _share_behind_a_copy,
        _free_what_is_used,
        _cache_without_a_name,
        _forget_half_a_name,
    ],
)
def test_the_audit_sees(corrupt: Callable[[BlockCache, Sequence], None]) -> None:
    cache, seq = BlockCache(8, BLOCK), sequence(10)
    compute(cache, seq)
    cache.audit([seq])
    corrupt(cache, seq)
    with pytest.raises(AssertionError):
        cache.audit([seq])
