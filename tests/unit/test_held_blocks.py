"""What an engine tells of its blocks, and what a gateway makes of it: the view is the cache, also where news
are lost, once all of it was asked for again; and a stream goes where it has its first token soonest."""

from __future__ import annotations

import random

import pytest

from engine.api import Sampling
from engine.block_digests import SHORT, digests, salt
from engine.schedule.block_cache import BlockCache
from engine.schedule.sequence import Sequence
from realtime.hub.held_blocks import HeldBlocks
from realtime.hub.router import Choice, Pace, choose

BLOCK = 4


class Told:
    """A cache through which chats go, and what is known of it elsewhere."""

    def __init__(self, blocks: int = 60, lost: float = 0.0) -> None:
        self.cache = BlockCache(blocks, BLOCK)
        self.held = HeldBlocks()
        self._lost = lost
        self._chance = random.Random(5)
        self._streams = 0
        self.cache.blocks.news.ask()

    def chat(self, tokens: list[int], tenant: int = 0) -> int:
        """Returns how many were found."""
        self._streams += 1
        sequence = Sequence(self._streams, tokens, Sampling(), credit=1, context=10_000, tenant=tenant)
        found = self.cache.match_prefix(sequence)
        assert self.cache.grow(sequence, len(tokens))
        sequence.num_computed = len(tokens)
        self.cache.cache_full_blocks(sequence)
        self.cache.release(sequence)
        return found

    def step(self) -> None:
        news = self.cache.blocks.take_news()
        if (
            news is not None
            and (news.whole or self._chance.random() >= self._lost)
            and self.held.receive(news)
        ):
            self.cache.blocks.news.ask()

    @property
    def true(self) -> bool:
        """Whether what is known is what there is."""
        names = {name[:SHORT] for name in self.cache.blocks._by_name}
        return len(self.held) == len(names) == self.held_of(names)

    def held_of(self, names: set[bytes]) -> int:
        return sum(self.held.count([name]) for name in names)


def story(seed: int, length: int) -> list[int]:
    chance = random.Random(seed)
    return [chance.randrange(50) for _ in range(length)]


@pytest.mark.parametrize("lost", [0.0, 0.01, 0.3])
def test_the_view_is_the_cache_however_much_of_the_news_is_lost(lost: float) -> None:
    told, chance = Told(lost=lost), random.Random(9)
    for _ in range(1500):
        for _ in range(chance.randrange(3)):
            told.chat(story(chance.randrange(12), chance.randrange(1, 60)))
        told.step()
        if not lost:
            assert told.true
    told.cache.blocks.news.ask()
    told.step()
    assert told.true


def test_a_gap_asks_for_all_of_it_and_that_mends_it() -> None:
    told = Told()
    told.chat(story(1, 20))
    told.step()
    told.chat(story(2, 20))
    told.cache.blocks.take_news()  # it never comes
    told.chat(story(3, 20))
    told.step()
    assert not told.true
    told.step()
    assert told.true


def test_what_is_counted_is_what_the_cache_finds() -> None:
    told, chance = Told(), random.Random(3)
    for _ in range(300):
        tokens, tenant = story(chance.randrange(6), chance.randrange(1, 60)), chance.randrange(2)
        chain = [digest[:SHORT] for digest in digests(tokens[:-1], BLOCK, salt(tenant))]
        expected = BLOCK * told.held.count(chain)
        assert told.chat(tokens, tenant) == expected
        told.step()


def test_nobody_is_told_who_has_not_asked() -> None:
    cache = BlockCache(8, BLOCK)
    assert cache.blocks.take_news() is None


# -- the choice ------------------------------------------------------------------------------------


def engine(
    name: str, waiting: int = 0, streams: int = 0, held: int = 0, pace: Pace | None = None
) -> Choice[str]:
    return Choice(name, pace or Pace(), waiting, streams, held)


def chosen(*choices: Choice[str], tokens: int = 1000) -> str | None:
    return choose(choices, tokens, random.Random(1))


def test_of_none_none_is_chosen() -> None:
    assert chosen() is None


def test_who_holds_the_context_is_chosen_unless_too_much_waits_there() -> None:
    assert chosen(engine("a"), engine("b", held=900)) == "b"
    assert chosen(engine("a"), engine("b", held=900, waiting=800)) == "b"
    assert chosen(engine("a"), engine("b", held=900, waiting=1000)) == "a"


def test_of_equals_the_one_with_fewest_streams_is_chosen() -> None:
    assert chosen(engine("a", streams=2), engine("b", streams=1), engine("c", streams=3)) == "b"


def test_short_contexts_are_divided_however_quick_the_engines_were_lately() -> None:
    slow = Pace()
    slow.stepped(0.5, 0, 1000)
    assert chosen(engine("a", streams=3), engine("b", pace=slow), tokens=5) == "b"


def test_a_slow_engine_is_chosen_where_the_quick_one_has_much_before_it() -> None:
    slow, quick = Pace(), Pace()
    for _ in range(100):
        slow.stepped(2.0, 0, 1000)
        quick.stepped(0.5, 0, 1000)
    assert chosen(engine("slow", pace=slow), engine("quick", pace=quick)) == "quick"
    assert chosen(engine("slow", pace=slow), engine("quick", pace=quick, waiting=4000)) == "slow"


def test_a_crowd_of_routers_with_the_same_old_news_does_not_run_to_one_engine() -> None:
    choices = [engine(str(number), waiting=number) for number in range(50)]
    found = {choose(choices, 1000, random.Random(seed)) for seed in range(100)}
    assert len(found) > 10


def test_the_best_holders_are_always_among_those_that_are_asked() -> None:
    choices = [engine(str(number)) for number in range(50)] + [engine("holder", held=500)]
    assert {choose(choices, 1000, random.Random(seed)) for seed in range(30)} == {"holder"}
