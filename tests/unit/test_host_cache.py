"""The host cache: which blocks are saved to the host, which are loaded back, and that it is bounded."""

from __future__ import annotations

import pytest

from engine.api import Sampling
from engine.schedule.block_cache import BlockCache
from engine.schedule.host_cache import BlockCopy, HostCache, Load
from engine.schedule.sequence import Sequence
from engine.schedule.windows import GONE
from tests.fakes.counted_work import counted

BLOCK = 4


def sequence(stream: int, tokens: int = 13, *, tenant: int = 0, first: int = 0) -> Sequence:
    known = list(range(first, first + tokens))
    return Sequence(stream, known, Sampling(), credit=99, context=999, tenant=tenant)


def computed(cache: BlockCache, stream: int = 1, tokens: int = 13, **which: int) -> Sequence:
    seq = sequence(stream, tokens, **which)
    assert cache.grow(seq, tokens)
    seq.num_computed = tokens - 1
    cache.cache_full_blocks(seq)
    return seq


def save(cache: BlockCache, host: HostCache, limit: int = 99) -> list[BlockCopy]:
    """What a step does where every copy succeeds."""
    saves = host.plan_saves(cache, limit)
    host.finish_saves(saves)
    return list(saves.values())


def kept(cache: BlockCache, host: HostCache, **which: int) -> Sequence:
    """A sequence that left what it computed, and lost it on the device."""
    seq = computed(cache, **which)
    host.offer(seq)
    save(cache, host)
    cache.release(seq)
    glutton = sequence(99, first=900)
    assert cache.grow(glutton, cache.free * BLOCK + cache.cached * BLOCK)
    cache.release(glutton)
    return seq


def test_what_was_offered_is_saved_from_its_beginning_and_once() -> None:
    cache, host = BlockCache(5, BLOCK), HostCache(8)
    seq = computed(cache)
    host.offer(seq)
    first, rest = save(cache, host, 2), save(cache, host)
    assert [number for number, _ in first + rest] == seq.blocks[:3]
    assert len({here for _, here in first + rest}) == 3
    host.offer(seq)
    assert save(cache, host) == []
    host.audit()


def test_who_leaves_very_many_blocks_offers_them_at_once_each_behind_those_before_it() -> None:
    """Else a step in which a crowd of forks lost a long context took most of a second."""
    host, seq = HostCache(8000), sequence(1)
    seq.block_hashes = [at.to_bytes(2) for at in range(1000)]
    seq.blocks, seq.other_blocks = [*range(1000)], [[GONE] * 998 + [1000, 1001]]
    with counted() as work:
        host.offer(seq)
    assert work.lines < 100
    last = [b"\x03\xe6", b"\x03\xe6\x01", b"\x03\xe7", b"\x03\xe7\x01"]
    assert list(host._offered) == [*seq.block_hashes[:998], *last]


def test_nothing_is_saved_from_a_device_with_blocks_enough() -> None:
    cache, host = BlockCache(16, BLOCK), HostCache(8)
    host.offer(computed(cache))
    assert save(cache, host) == []
    computed(cache, 2, 36, first=100)
    assert len(save(cache, host)) == 3


def test_what_the_device_has_lost_meanwhile_is_not_saved() -> None:
    cache, host = BlockCache(4, BLOCK), HostCache(8)
    seq = computed(cache)
    host.offer(seq)
    cache.release(seq)
    computed(cache, 2, 13, first=100)
    assert save(cache, host) == []


def test_a_sequence_that_comes_back_waits_for_blocks_of_its_own() -> None:
    cache, host = BlockCache(5, BLOCK), HostCache(8)
    seq = kept(cache, host)
    load = host.plan_load(cache, seq)
    assert isinstance(load, Load)
    assert load.live
    assert (seq.num_computed, seq.num_to_compute, seq.decoding) == (12, 0, False)
    assert [number for _, number in load.copies] == seq.blocks
    seq.pending_load = None
    assert seq.num_to_compute == 1


def test_a_sequence_takes_from_the_host_only_what_the_device_lacks() -> None:
    cache, host = BlockCache(5, BLOCK), HostCache(8)
    seq = kept(cache, host)
    twin = computed(cache, 2, 6)
    cache.match_prefix(seq)
    assert len(seq.blocks) == 1
    load = host.plan_load(cache, seq)
    assert load is not None
    assert [number for _, number in load.copies] == seq.blocks[1:]
    assert seq.blocks[0] == twin.blocks[0]


def test_another_tenant_finds_nothing() -> None:
    cache, host = BlockCache(5, BLOCK), HostCache(8)
    kept(cache, host)
    assert host.plan_load(cache, sequence(2, tenant=1)) is None
    assert host.plan_load(cache, sequence(3)) is not None


def test_nothing_comes_where_there_is_no_room_for_it() -> None:
    cache, host = BlockCache(5, BLOCK), HostCache(8)
    seq = kept(cache, host)
    computed(cache, 2, 16, first=100)
    assert host.plan_load(cache, seq) is None
    assert (seq.blocks, seq.pending_load, seq.num_computed) == ([], None, 0)


def test_it_holds_no_more_than_it_was_given_and_forgets_what_was_used_least() -> None:
    cache, host = BlockCache(4, BLOCK), HostCache(4)
    old = kept(cache, host, stream=1)
    kept(cache, host, stream=2, first=100)
    host.audit()
    assert host.used == host.total == 4
    assert host.plan_load(cache, old) is None  # its first block went, and what follows is of no use
    assert host.plan_load(cache, sequence(3, first=100)) is not None


def test_what_cannot_be_trusted_is_forgotten() -> None:
    cache, host = BlockCache(5, BLOCK), HostCache(8)
    seq = computed(cache)
    host.offer(seq)
    save(cache, host)
    host.invalidate(seq.block_hashes[1:])
    host.audit()
    assert host.used == 1


def test_what_could_not_be_saved_is_not_there_and_leaves_its_place_to_others() -> None:
    cache, host = BlockCache(5, BLOCK), HostCache(3)
    kept(cache, host)
    seq = computed(cache, 2, first=100)
    host.offer(seq)
    saves = host.plan_saves(cache, 2)
    assert host.used == 1, "what lay in their places is gone"
    host.abandon_saves(saves)
    host.audit()
    other = sequence(3, first=100)
    assert cache.match_prefix(other) == 12, "they are on the device still"
    assert host.plan_load(cache, other) is None
    host.offer(computed(cache, 4, 2))
    seq.num_offered = 0
    host.offer(seq)
    assert len(save(cache, host)) == 3
    host.audit()


@pytest.mark.parametrize("given_up", ["all of it", "its end"])
def test_what_was_given_up_meanwhile_is_not_loaded(given_up: str) -> None:
    cache, host = BlockCache(5, BLOCK), HostCache(8)
    seq = kept(cache, host)
    load = host.plan_load(cache, seq)
    assert load is not None
    cache.release(seq, keep=0 if given_up == "all of it" else BLOCK)
    assert load.still_needed() == (load.copies[:1] if given_up == "its end" else [])
    again = Load(seq, [])
    seq.pending_load = again
    assert not load.live
    assert load.still_needed() == []
