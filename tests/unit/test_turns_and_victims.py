"""Turns that are fair and memory that is never taken in vain, where many want both."""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable

import pytest

from engine.api import Sampling
from engine.schedule import victims
from engine.schedule.block_cache import BlockCache
from engine.schedule.closed_line import IN_VAIN
from engine.schedule.equals import Equals
from engine.schedule.holdings import Holdings
from engine.schedule.ranking import MOST, Ranking
from engine.schedule.released import Given, Released
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence
from engine.schedule.serving_order import AGING_STEPS
from engine.schedule.victims import A_TURN
from tests.fakes.counted_work import counted
from tests.fakes.instant_steps import InstantSteps
from tests.fakes.scheduler_driver import BLOCK, SchedulerDriver, streams


def engine(*, blocks: int, step_tokens: int = 128) -> InstantSteps:
    """As large as on a CPU: blocks of 16 tokens."""
    return InstantSteps(
        Scheduler(BlockCache(blocks, 16), step_tokens=step_tokens, batch_rows=128, tenant_prefill=8192)
    )


def start(
    steps: InstantSteps, stream: int, tokens: list[int], credit: int = 10_000, *, tenant: int = 0
) -> Sequence:
    """Whoever's it is, it finds what was computed for all."""
    sequence = Sequence(stream, tokens, Sampling(), credit=credit, context=100_000, tenant=tenant, cache_of=0)
    steps.scheduler.add(sequence)
    return sequence


def own(stream: int, count: int) -> list[int]:
    """Tokens like nobody else's."""
    return [stream * 10_000 + at for at in range(count)]


def test_a_ranking_is_in_order_whoever_comes_and_leaves_together() -> None:
    ranking, dice = Ranking(), random.Random(5)
    there: dict[Sequence, int] = {}
    for stream in range(8 * MOST):
        sequence = Sequence(stream, [1], Sampling(), credit=1, context=10)
        for one in (sequence, dice.choice([*there, sequence])):
            there[one] = dice.randrange(-50, 50)
            ranking.put(one, there[one])
        if not dice.randrange(100):
            ranked = sorted(there, key=lambda one: (there[one], one.stream))
            first, some = dice.randrange(len(ranked)), dice.sample(ranked, len(ranked) // 10)
            gone = list({*ranked[first : first + len(ranked) // 4], *some})
            ranking.discard([*gone, Sequence(-1, [1], Sampling(), credit=1, context=10)])
            for one in gone:
                del there[one]
            ranked = sorted(there, key=lambda one: (there[one], one.stream))
            assert list(ranking.before(50)) == ranked
            assert list(ranking.before(0)) == [one for one in ranked if there[one] < 0]
            assert len(ranking) == len(there)
            assert not ranked or ranking.first == (there[ranked[0]], ranked[0])
    assert len(ranking) > MOST


# -- whose memory is taken -------------------------------------------------------------------------


def slow_readers(steps: InstantSteps, count: int) -> list[Sequence]:
    """Their credit comes token by token, every second step."""
    return [start(steps, stream, own(stream, 200), credit=0) for stream in range(1, 1 + count)]


def pace(steps: InstantSteps, readers: list[Sequence], times: int) -> None:
    for at in range(times):
        for reader in readers:
            if (at + reader.stream) % 2:
                reader.credit += 1
                steps.scheduler.update_ready(reader)
        steps.take()
        steps.scheduler.audit()


def test_slow_readers_lose_nothing_to_a_newcomer_of_their_rank_that_does_not_fit() -> None:
    steps = engine(blocks=256)
    readers = slow_readers(steps, 10)
    pace(steps, readers, 20)
    newcomer = start(steps, 99, own(99, 2200))
    before = [reader.num_outputs for reader in readers]
    pace(steps, readers, 160)
    assert not newcomer.blocks
    assert all(reader.num_outputs - had >= 80 for reader, had in zip(readers, before, strict=True))
    assert (steps.scheduler.evictions, steps.scheduler.preemptions) == (0, 0)


def test_nor_do_those_that_are_paused() -> None:
    driver = SchedulerDriver(blocks=12)
    paused, _running = driver.decoding(1, 2, tokens=13)
    driver.pause(paused)
    newcomer = driver.add(3, 40)
    driver.steps(5)
    assert not newcomer.blocks
    assert len(paused.blocks) == 4


def test_whoever_is_not_needed_for_it_keeps_its_memory() -> None:
    driver = SchedulerDriver(blocks=14)
    small, large = driver.add(1, 4), driver.add(2, 40)
    driver.steps(4)
    driver.pause(small)
    driver.step()
    driver.pause(large)
    driver.add(3, 38)
    driver.step()
    assert large.evicted
    assert small.blocks


def test_shared_blocks_come_free_when_all_who_share_them_give_them_up() -> None:
    driver = SchedulerDriver(blocks=12)
    first = driver.add(1, 32)
    driver.steps(3)
    fork = Sequence(2, first.tokens[:32], Sampling(), credit=10, context=100)
    driver.scheduler.add(fork)
    driver.step()
    assert fork.blocks[:7] == first.blocks[:7]
    driver.pause(first)
    driver.pause(fork)
    driver.add(3, 43)
    driver.step()
    assert first.evicted
    assert fork.evicted


def test_an_idle_stream_of_higher_priority_keeps_its_memory() -> None:
    driver = SchedulerDriver(blocks=8)
    high = driver.add(1, 25, priority=8, credit=1)
    driver.steps(3)
    assert high.stalled
    low = driver.add(2, 20, priority=-8)
    driver.steps(100)
    assert high.blocks
    assert not low.blocks
    high.credit += 1
    driver.scheduler.update_ready(high)
    assert streams(driver.step()) == [1]


def test_but_not_for_ever() -> None:
    driver = SchedulerDriver(blocks=8)
    high = driver.add(1, 25, priority=1, credit=1)
    driver.steps(3)
    low = driver.add(2, 20)
    driver.steps(2 * AGING_STEPS - 3)
    assert not low.blocks
    driver.steps(3)
    assert low.blocks
    assert high.evicted


def forks_of(driver: SchedulerDriver, shared: Sequence, count: int) -> list[Sequence]:
    """Paused, and each goes on with a token of its own behind all that it shares."""
    known = shared.tokens[: shared.num_prompt]
    forks = [
        Sequence(shared.stream + at, [*known, -at], Sampling(), credit=0, context=10**5)
        for at in range(1, 1 + count)
    ]
    for fork in forks:
        driver.scheduler.add(fork)
    while not all(fork.blocks for fork in forks):
        driver.step()
    for fork in forks:
        driver.pause(fork)
    return forks


class Looks:
    """How many holders are looked at from now on, for whoever lacks memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        add = Released.add

        def counted(released: Released, tables: list[list[int]]) -> list[Given]:
            self.count += 1
            return add(released, tables)

        monkeypatch.setattr(Released, "add", counted)


def test_who_looked_at_many_in_vain_looks_again_later_and_not_at_every_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(victims, "A_STEP", 1)
    driver = SchedulerDriver(blocks=3000, step_tokens=16_000, batch_rows=64)
    shared = driver.add(1, 8000, priority=1)
    driver.steps(2)
    forks = forks_of(driver, shared, 10)
    looks = Looks(monkeypatch)
    newcomer = driver.add(99, 4000, tenant=1)
    driver.steps(10)
    assert looks.count == len(forks)
    assert not newcomer.blocks, "what the forks have is not theirs alone"
    driver.scheduler.remove(shared)
    driver.steps(2)
    assert newcomer.blocks


def test_where_one_looks_in_vain_another_who_may_take_no_more_does_not_look_either(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(victims, "A_STEP", 1)
    driver = SchedulerDriver(blocks=108, step_tokens=500, batch_rows=64)
    shared = driver.add(1, 401, priority=8)
    driver.steps(2)
    forks = forks_of(driver, shared, 5)
    for fork in forks:  # none holds a block that no other does
        fork.cut(401)
        driver.scheduler.release_blocks(fork, keep=400)
        driver.scheduler.update_ready(fork)
    driver.pause(shared)
    shared.last_served += 10**6
    driver.scheduler.update_ready(shared)
    (running,) = driver.decoding(50, tokens=4 * driver.cache.free - 8)
    while running.num_computed % BLOCK or driver.cache.free:
        driver.step()
    newcomer = driver.add(99, 4)
    looks = Looks(monkeypatch)
    batches = driver.steps(10)
    assert not any(batch.rows for batch in batches), "neither finds memory"
    assert not newcomer.blocks
    assert looks.count == 2 * len(forks)


def test_what_comes_free_is_known_without_a_look_at_all_that_many_share() -> None:
    class Refs(list[int]):
        looks = 0

        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            self.looks += 1
            return super().__getitem__(at)

    tables = [[*range(1000), 1000 + at] for at in range(100)]
    refs = Refs([101] * 1000 + [1] * 100)
    released = Released(refs)
    for table in tables:
        released.add([table])
    assert released.free == 100, "somebody else has what they begin with"
    assert refs.looks <= 10 * len(tables)
    released.add([list(range(1000))])
    assert released.free == 1100
    assert refs.looks <= 10 * len(tables) + 5 * 1000


def test_what_comes_free_is_what_nobody_else_holds_whoever_shares_what() -> None:
    dice = random.Random(7)
    for _ in range(4_000):
        numbers, tables = iter(range(10_000)), [list[int]()]
        for _ in range(dice.randrange(1, 12)):
            like = dice.choice(tables)
            shares = like[: dice.randrange(len(like) + 1)]
            if dice.random() < 0.3:  # where a window slides
                shares = shares[dice.randrange(len(shares) + 1) :]
            tables.append([*shares, *(next(numbers) for _ in range(dice.randrange(5)))])
        held = Counter(number for table in tables for number in table)
        released = Released([held[number] for number in range(10_000)])
        given = dice.sample(tables, dice.randrange(1, len(tables) + 1))
        its = [released.add([table]) for table in given]
        assert released.free == len(found_in(given, held))
        enough = dice.randrange(released.free + 1)
        taken = [table for table, one in zip(given, its, strict=True) if not released.spare(one, enough)]
        assert len(found_in(taken, held)) <= released.free <= len(only_in(taken, held))
        assert released.free >= enough


def only_in(tables: list[list[int]], held: Counter[int]) -> set[int]:
    owners = Counter(number for table in tables for number in table)
    return {number for number, count in owners.items() if count == held[number]}


def found_in(tables: list[list[int]], held: Counter[int]) -> set[int]:
    """But for what lies between two that others hold, too."""
    free = only_in(tables, held)
    for table in tables:
        kept = [at for at, number in enumerate(table) if number not in free]
        free.difference_update(table[kept[0] : kept[-1]] if kept else ())
    return free


# -- who is told -----------------------------------------------------------------------------------


# -- whose memory is taken: tenants ----------------------------------------------------------------


def full_of_one_tenant(credit: int = 10_000) -> tuple[SchedulerDriver, list[Sequence]]:
    """Eight streams of a tenant, each with 12 blocks of a hundred."""
    driver = SchedulerDriver(blocks=100, step_tokens=64, batch_rows=32)
    crowd = [driver.add(stream, 44, tenant=1, credit=credit) for stream in range(1, 9)]
    while not all(one.num_outputs for one in crowd):
        driver.step()
    return driver, crowd


def test_who_has_less_takes_from_the_last_to_come_of_a_tenant_that_has_more() -> None:
    driver, crowd = full_of_one_tenant()
    small = driver.add(20, 30, tenant=2)
    driver.steps(3)
    assert small.num_outputs
    assert [one.stream for one in crowd if one.evicted] == [8]


def test_but_not_what_would_leave_it_with_hardly_more_than_oneself() -> None:
    driver, crowd = full_of_one_tenant()
    large = driver.add(20, 4 * 45, tenant=2)
    driver.steps(2)
    assert not large.blocks
    assert not any(one.evicted for one in crowd)
    driver.scheduler.remove(large)
    less = driver.add(21, 4 * 30, tenant=3)
    driver.steps(2)
    assert less.blocks
    assert [one.stream for one in crowd if one.evicted] == [6, 7, 8]


def test_what_many_streams_share_does_not_keep_a_tenant_from_giving_what_is_each_ones_own() -> None:
    driver = SchedulerDriver(blocks=100, step_tokens=400, batch_rows=32)
    shared = driver.add(1, 4 * 50, tenant=1, credit=1)
    driver.steps(2)
    branches = [
        Sequence(stream, [*shared.tokens[:200], *[-stream] * 20], Sampling(), credit=1, context=999, tenant=1)
        for stream in range(2, 8)
    ]
    for branch in branches:
        driver.scheduler.add(branch)
    while not all(branch.num_outputs for branch in branches):
        driver.step()
    short = driver.cache.blocks.available + 10
    small = driver.add(20, 4 * short - 1, tenant=2)
    driver.steps(2)
    assert small.blocks, "which needs less than half of what the tenant has"
    assert [branch.stream for branch in branches if branch.evicted] == [6, 7]


def test_what_streams_of_two_tenants_share_both_of_them_have() -> None:
    """As where there are no keys, and somebody begins each stream from two addresses."""
    driver = SchedulerDriver(blocks=100, step_tokens=400, batch_rows=32)
    for stream, tenant in zip(range(1, 9), [1] * 4 + [2] * 4, strict=True):
        tokens = own(stream % 4, 4 * 20)
        one = Sequence(stream, tokens, Sampling(), credit=999, context=999, tenant=tenant, cache_of=0)
        driver.scheduler.add(one)
        while not one.num_outputs:
            driver.step()
    other = driver.add(20, 4 * 20, tenant=3)
    driver.steps(2)
    assert other.blocks
    assert [one.stream for one in driver.scheduler.sequences.values() if one.evicted] == [4, 8]


def take_all(steps: InstantSteps) -> None:
    while not steps.scheduler.idle:
        steps.take()


def test_what_two_compute_at_once_hides_nothing_of_what_comes_free_with_one() -> None:
    """As where somebody tells streams from two addresses the same: what lies between blocks that both share
    is not looked for."""
    steps, ones = engine(blocks=100, step_tokens=256), list[Sequence]()
    for stream in (1, 2):
        ones.append(start(steps, stream, own(8, 33), credit=0, tenant=stream))
        take_all(steps)
    for text, at_once in ((own(9, 100), True), (own(10, 100), False)):
        for one in ones:
            one.inject(text)
            steps.scheduler.update_ready(one)
            if not at_once:
                take_all(steps)
        take_all(steps)
    refs = steps.scheduler.cache.blocks.refs
    for one in ones:
        released = Released(refs)
        released.add(one.held_tables)
        assert released.free == sum(refs[number] == 1 for number in one.blocks)


def alike(driver: SchedulerDriver) -> list[Sequence]:
    """Three of as many tenants, which begin alike: 80 blocks, and 19 of each."""
    ones = [
        Sequence(stream, own(100, 4 * 80) + own(stream, 4 * 18), Sampling(), credit=1, context=999)
        for stream in (1, 2, 3)
    ]
    for one in ones:
        one.tenant, one.cache_of = one.stream, 0
        driver.scheduler.add(one)
        while not one.num_outputs:
            driver.step()
    return ones


def test_nor_does_who_begins_as_others_do_give_its_only_stream_to_one_that_has_half_as_much() -> None:
    """It has what they share, and loses all of that."""
    driver = SchedulerDriver(blocks=145, step_tokens=400, batch_rows=32)
    ones = alike(driver)
    other = driver.add(20, 4 * 50, tenant=20)
    driver.steps(3)
    assert not other.blocks
    assert not any(one.evicted for one in ones)


def test_who_comes_and_stands_idle_within_a_step_may_lose_its_memory_in_that_step() -> None:
    """It was not there when its tenant's were looked at."""
    first, other, new = (
        Sequence(stream, [1], Sampling(), credit=1, context=9, tenant=tenant, blocks=blocks)
        for stream, tenant, blocks in ((1, 1, [0, 1]), (2, 2, [2]), (3, 1, [3, 4]))
    )
    holdings = Holdings([other, first], refs=[1] * 5)
    assert (holdings.of(1), holdings.of(2)) == (2, 1)
    holdings.take(other, 1, [new], comes=False)
    assert (holdings.of(1), holdings.of(2)) == (2, 2)


def test_who_lost_its_memory_and_looks_for_some_again_has_not_what_it_would_begin_with() -> None:
    """What was left of it in the cache counted as its tenant's, of whom another could take for that."""
    claimant, lost, other = (
        Sequence(stream, [1], Sampling(), credit=1, context=9, tenant=tenant, blocks=blocks)
        for stream, tenant, blocks in ((1, 1, [0]), (2, 2, [1, 2, 3]), (3, 2, [4]))
    )
    holdings = Holdings([other, lost, claimant], refs=[1] * 5)
    holdings.take(claimant, 1, [lost], comes=False)
    del lost.blocks[2:]
    assert (holdings.of(2), holdings.alone([2])) == (1, 1)
    assert holdings.of(2, lost) == 3


def test_what_a_tenant_has_come_to_hold_within_a_step_is_held_by_it() -> None:
    """Others waited for room that its own streams had."""
    cache = BlockCache(8, 4)
    holders = victims.Holders(cache)
    one, other = (Sequence(stream, [1], Sampling(), credit=1, context=32, tenant=stream) for stream in (1, 2))
    for sequence in (one, other):
        assert cache.grow(sequence, 8)
        holders.file(sequence)
    assert not holders.victims(one, 5, 1, {other.stream})  # for which it is looked how much it has
    assert cache.grow(one, 16)
    assert holders.hold(1, 4, 1)


def test_of_many_tenants_none_is_looked_at_but_those_that_may_give_some() -> None:
    """Of 2,000 that filled the memory all blocks were, in each step in which somebody lacked one."""

    def holder(stream: int, tenant: int, *runs: range) -> Sequence:
        blocks = [number for run in runs for number in run]
        return Sequence(stream, [1], Sampling(), credit=1, context=9, tenant=tenant, blocks=blocks)

    lone = [holder(stream, stream, range(9 * stream, 9 * stream + 9)) for stream in range(100)]
    two = [holder(stream, stream // 2, range(9 * stream, 9 * stream + 3)) for stream in range(200, 300)]
    forks = [holder(at, 301, range(9000, 9008), range(9000 + 9 * at, 9001 + 9 * at)) for at in (301, 302)]
    most = [holder(at, 401, range(20_000 + 9 * at, 20_005 + 9 * at)) for at in (401, 402)]
    crowd = [*most, *forks, *reversed(two), *reversed(lone)]
    holdings = Holdings(crowd, refs=[1] * 30_000)
    equals = Equals(crowd, lambda: holdings, lambda one: True)
    assert [one.stream for one in equals.of_who_has_more(but=7, least=5)] == [401, 301]
    assert holdings.looked == 18 + 10 + 2 * 50 * 3, "and nothing of those that have one stream each"
    assert (holdings.known(301), holdings.known(9)) == (10, 9)
    anew = Holdings(crowd, refs=[1] * 30_000)
    assert Equals(crowd, lambda: anew, lambda one: True).most(2) == {401: 10, 301: 10}
    assert anew.looked == 18 + 10


def test_nor_of_many_whose_streams_begin_alike() -> None:
    """Of 2,000 tenants that had two forks each all blocks were looked at: together each might have had more
    than another."""
    crowd = [
        Sequence(9 * tenant + fork, [1], Sampling(), credit=1, context=99, tenant=tenant, blocks=blocks)
        for tenant in range(100)
        for fork in (1, 0)
        for blocks in ([*range(40 * tenant, 40 * tenant + 30), 40 * tenant + 30 + fork],)
    ]
    holdings = Holdings(crowd, refs=[1] * 4_000)
    equals = Equals(crowd, lambda: holdings, lambda one: True)
    assert not list(equals.of_who_has_more(but=7, least=40))
    assert holdings.looked == 0
    assert equals.most(2) == {99: 32, 98: 32}
    assert holdings.looked == 2 * 2 * 31


def test_who_has_less_keeps_it_and_its_pace_whoever_wants_it_back() -> None:
    driver, crowd = full_of_one_tenant()
    small = driver.add(20, 30, tenant=2)
    driver.steps(3)
    driver.steps(200)
    assert small.num_outputs > 190, "though it grows"
    assert not small.preempted
    assert crowd[0].num_outputs > 150, "who came first keeps what is left to its tenant"


def test_slow_readers_hold_no_memory_against_a_tenant_that_has_less() -> None:
    driver, crowd = full_of_one_tenant(credit=1)
    smalls = list[Sequence]()
    for step in range(AGING_STEPS):
        if not step % 10:
            for one in crowd:
                one.credit += 1
                driver.scheduler.update_ready(one)
        if not step % 5:
            smalls.append(driver.add(20 + step, 9, tenant=2, credit=3))
        driver.step()
        for one in [one for one in smalls if one.num_outputs == 3 and one.blocks]:
            driver.scheduler.remove(one)
    assert all(one.num_outputs for one in smalls[:-1])


def go_on(driver: SchedulerDriver, streams: list[Sequence], steps: int) -> None:
    """Each goes back to its first token again and again, and so does not grow."""
    for _ in range(steps):
        for one in [one for one in streams if one.stalled]:
            one.truncate(1)
            driver.scheduler.release_blocks(one, keep=one.next_position)
            one.credit = 2
            driver.scheduler.update_ready(one)
        driver.step()


def test_who_has_waited_for_a_turn_has_what_another_had_for_as_long_and_gives_it_back_in_turn() -> None:
    driver, crowd = full_of_one_tenant(credit=1)
    large = driver.add(20, 4 * 60, tenant=2, credit=1)
    everybody = [*crowd, large]
    go_on(driver, everybody, 2 * AGING_STEPS)
    for one in everybody:
        one.memory_since -= A_TURN - 2 * AGING_STEPS - 8  # as if many more such steps had gone by
    go_on(driver, everybody, 4)
    assert not large.blocks, "it lacks more than half of all that there is"
    assert all(one.blocks for one in crowd)
    go_on(driver, everybody, 8)
    assert large.blocks
    losers = [one for one in crowd if one.evicted]
    assert [one.stream for one in losers] == [4, 5, 6, 7, 8], "nobody loses anything in vain"
    for one in everybody:
        one.memory_since -= A_TURN - AGING_STEPS
    go_on(driver, everybody, AGING_STEPS // 2)
    assert large.blocks
    go_on(driver, everybody, AGING_STEPS)
    assert large.evicted
    go_on(driver, everybody, IN_VAIN)  # for which it stands first in line again
    assert not large.blocks
    assert all(one.blocks for one in crowd)


def test_a_turn_begins_with_the_first_token_however_long_its_prompt_takes() -> None:
    """Two that need nearly all, and longer than a turn for that, took it from one another for ever."""
    driver = SchedulerDriver(blocks=100, step_tokens=64, batch_rows=32)
    both = first, second = [driver.add(stream, 4 * 90, tenant=stream) for stream in (1, 2)]
    for one, other in (both, both[::-1]):
        driver.steps(3)
        assert one.num_computed < 4 * 80, "of its prompt"
        other.memory_since -= A_TURN
        one.memory_since -= A_TURN  # as if many more such steps had gone by
        driver.steps(5)
        assert one.num_outputs
        assert other.evicted or not other.admitted
        one.memory_since -= A_TURN
        driver.step()
        assert one.evicted
    assert first.blocks
    assert second.num_outputs


def test_whoever_needs_what_several_tenants_have_waits_for_as_many_turns() -> None:
    driver = SchedulerDriver(blocks=100, step_tokens=64, batch_rows=32)
    holders = [driver.add(one, 4 * 24 - 1, tenant=one, credit=1) for one in (1, 2, 3, 4)]
    driver.steps(8)
    large = driver.add(20, 4 * 60, tenant=5, credit=1)
    for turns in (1, 2, 3):
        for one in (*holders, large):
            one.memory_since -= A_TURN
        go_on(driver, holders, 4)
        assert bool(large.blocks) == (turns == 3)
    assert [one.stream for one in holders if one.evicted] == [2, 3, 4]


def test_who_is_to_give_memory_in_turn_takes_none_anew_before_it_in_every_other_turn() -> None:
    driver = SchedulerDriver(blocks=100, step_tokens=256, batch_rows=32)
    short, longer = (driver.add(one, 4 * 47, tenant=1, credit=1) for one in (1, 2))
    driver.steps(4)
    large = driver.add(20, 4 * 60, tenant=2, credit=1)
    large.memory_since -= A_TURN
    driver.steps(2)
    driver.scheduler.remove(short)
    anew = driver.add(21, 4 * 9, tenant=1, credit=1)
    higher = driver.add(22, 4, tenant=1, priority=1, credit=1)
    other = driver.add(23, 4 * 9, tenant=3, credit=1)
    go_on(driver, [longer, anew, higher, other], 3 * IN_VAIN)
    assert higher.admitted
    assert other.admitted, "which has less than it needs"
    assert not anew.blocks
    assert not large.blocks
    large.memory_since -= A_TURN
    go_on(driver, [longer, anew, higher, other], 3 * IN_VAIN)
    assert anew.admitted
    assert not large.blocks
    for one in (anew, higher, other):
        driver.scheduler.remove(one)
    large.memory_since -= A_TURN
    go_on(driver, [longer], 8)
    anew = driver.add(24, 4 * 47, tenant=1, credit=1)
    go_on(driver, [longer], 3 * IN_VAIN)
    assert not anew.admitted
    driver.scheduler.remove(longer)
    driver.steps(8)
    assert large.admitted
    driver.scheduler.remove(large)
    driver.steps(8)
    assert anew.admitted, "which waited for nobody else"


def test_but_not_where_others_have_the_same_and_would_keep_it() -> None:
    driver = SchedulerDriver(blocks=145, step_tokens=400, batch_rows=32)
    ones = alike(driver)
    large = driver.add(20, 4 * 85, tenant=20, credit=1)
    large.memory_since -= A_TURN
    driver.steps(2)
    anew = driver.add(21, 4, tenant=ones[-1].tenant, credit=1)
    go_on(driver, [*ones, anew], 3 * IN_VAIN)
    assert anew.admitted
    assert not large.blocks


def test_nor_takes_it_back_that_gave_it_up_and_goes_on() -> None:
    """By a pause that releases it, and a resume, it had it anew each time, and never for a turn."""
    driver = SchedulerDriver(blocks=100, step_tokens=256, batch_rows=32)
    holder = driver.add(1, 4 * 60, tenant=1, credit=1)
    driver.steps(4)
    large = driver.add(20, 4 * 60, tenant=2, credit=1)
    large.memory_since -= A_TURN
    go_on(driver, [holder], 2)
    assert not large.blocks
    driver.scheduler.release_blocks(holder)
    driver.pause(holder)
    assert driver.scheduler.restore_blocks(holder) == 0
    driver.resume(holder)
    driver.steps(2)
    assert large.blocks
    assert not holder.blocks


def test_but_not_before_one_that_lacks_more_than_it_has() -> None:
    driver = SchedulerDriver(blocks=100, step_tokens=256, batch_rows=32)
    holders = [driver.add(one, 4 * count, tenant=one, credit=1) for one, count in ((1, 39), (2, 37))]
    driver.steps(4)
    large = driver.add(20, 4 * 80, tenant=3, credit=1)
    large.memory_since -= A_TURN
    go_on(driver, holders, 8)
    anew = driver.add(21, 4 * 4, tenant=1, credit=1)
    go_on(driver, [*holders, anew], 3 * IN_VAIN)
    assert anew.admitted
    assert not large.blocks


def test_but_nobody_has_a_turn_for_having_waited_for_its_own_tenant() -> None:
    driver = SchedulerDriver(blocks=40, step_tokens=64, batch_rows=32)
    small = driver.add(1, 4 * 9, tenant=2, credit=1)
    driver.add(2, 4 * 29, tenant=1, credit=1)
    driver.steps(4)
    assert not driver.cache.free
    backlog, newcomer = driver.add(3, 4 * 9 - 1, tenant=1), driver.add(4, 4 * 9 - 1, tenant=3)
    for one in (small, backlog, newcomer):
        one.memory_since -= 2 * A_TURN
    driver.scheduler.sequences[2].memory_since += A_TURN
    victims_of = driver.scheduler._holders.victims
    assert victims_of(backlog, 9, driver.scheduler.steps, frozenset()) == []
    assert victims_of(newcomer, 9, driver.scheduler.steps, frozenset())


def test_what_very_many_streams_have_in_common_is_not_looked_at_in_each_step_that_one_waits_behind_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps, forks, common = engine(blocks=16 + 400 + 130), 400, own(1, 16 * 128)
    crowd = [start(steps, stream, common, credit=1) for stream in range(1, 1 + forks)]
    while not all(one.num_outputs for one in crowd):
        steps.take()
    steps.scheduler.add(Sequence(1000, own(1000, 10), Sampling(), credit=1, context=99, tenant=1))
    waits = start(steps, 1001, own(1001, 16 * 40))
    looked = list[None]()
    add = Released.add

    def noted(released: Released, tables: list[list[int]]) -> list[Given]:
        looked.append(None)
        return add(released, tables)

    monkeypatch.setattr(Released, "add", noted)
    for one in crowd:  # who was served just now keeps what it has
        one.last_served = steps.scheduler.steps
        steps.scheduler.update_ready(one)
    for _ in range(40):
        steps.take()
    assert not waits.blocks
    assert len(looked) < 6 * forks, "and not once in every second step"


@pytest.mark.parametrize("tenants_of", [lambda count: 1, lambda count: 4, lambda count: count])
def test_a_step_in_which_many_lack_memory_looks_at_all_who_hold_some_once_and_not_for_each(
    tenants_of: Callable[[int], int],
) -> None:
    """Where 2,000 decoded, of whom 500 lacked a block in the same step, that took 0.7 to 2 s."""
    lines = []
    for count in (48, 192):
        scheduler = Scheduler(
            BlockCache(3 * count, 16), step_tokens=2048, batch_rows=1000, tenant_prefill=10**6
        )
        steps, tenants = InstantSteps(scheduler), tenants_of(count)
        prompt = 16 * 3 - 2
        crowd = [start(steps, at, own(at, prompt), credit=3, tenant=at % tenants) for at in range(count)]
        for _ in range(30):
            steps.take()
        assert all(one.stalled for one in crowd), "at the end of their third blocks"
        for one in crowd:
            one.credit = 1000
            scheduler.update_ready(one)
        with counted() as work:
            scheduler.schedule()
        assert scheduler.preemptions == count // 4, "each of which the rows of three others have"
        lines.append(work.lines)
    assert lines[1] < 5 * lines[0], lines


def test_where_two_tenants_have_all_and_each_lacks_a_block_one_goes_on() -> None:
    driver = SchedulerDriver(blocks=20, step_tokens=64, batch_rows=32)
    driver.decoding(1, tokens=30, tenant=1)
    driver.decoding(2, tokens=30, tenant=2)
    assert all(batch.rows for batch in driver.steps(40))


def test_whoever_lost_its_memory_while_idle_is_told_when_that_keeps_it_from_going_on() -> None:
    driver = SchedulerDriver(blocks=8)
    losers = driver.decoding(1, 2, 3, tokens=5)
    for loser in losers:
        driver.pause(loser)
    winner = driver.add(4, 27)
    assert driver.step().preempted == [], "they do not want to go on"
    assert [loser.evicted for loser in losers] == [True, True, True]
    for loser in losers:
        driver.resume(loser)
    assert driver.step().preempted == losers
    assert driver.step().preempted == [], "once"
    driver.scheduler.remove(winner)
    assert {sequence for sequence, _ in driver.step().resumed} == set(losers)


def test_whoever_has_its_memory_back_when_it_goes_on_is_told_nothing() -> None:
    driver = SchedulerDriver(blocks=8)
    (loser,) = driver.decoding(1, tokens=5)
    driver.pause(loser)
    winner = driver.add(2, 30)
    driver.step()
    assert loser.evicted
    driver.scheduler.remove(winner)
    driver.resume(loser)
    batch = driver.step()
    assert (batch.preempted, batch.resumed) == ([], [])
    assert loser.blocks


# -- prompts ---------------------------------------------------------------------------------------


def test_short_prompts_wait_a_few_steps_behind_a_long_one_of_their_tenant() -> None:
    steps = engine(blocks=2000)
    long = start(steps, 1, own(1, 8000))
    steps.take()
    shorts = [start(steps, 2 + at, own(2 + at, 10)) for at in range(50)]
    first_token: dict[int, int] = {}
    for at in range(1, 100):
        steps.take()
        for short in shorts:
            if short.num_outputs:
                first_token.setdefault(short.stream, at)
        if len(first_token) == 50:
            break
    assert statistics.median(first_token.values()) <= 5
    assert max(first_token.values()) <= 12
    assert long.num_computed >= 8 * 32, "which gets a share all the while"


def test_a_long_prompt_is_not_starved_by_short_ones() -> None:
    steps = engine(blocks=2000)
    long = start(steps, 1, own(1, 2000))
    for at in range(100):
        for more in range(12):
            short = 100 + 12 * at + more
            start(steps, short, own(short, 10), credit=1)
        steps.take()
        for sequence in list(steps.scheduler.sequences.values()):
            if sequence.stalled:
                steps.scheduler.remove(sequence)
    assert long.num_outputs


def test_copies_of_one_prompt_are_computed_once() -> None:
    steps = engine(blocks=1000, step_tokens=4096)
    prompt = own(1, 500)
    copies = [start(steps, stream, prompt) for stream in range(1, 9)]
    computed = 0
    while not all(copy.num_outputs for copy in copies):
        computed += sum(row.count for row in steps.take().rows if row.count > 1)
        steps.scheduler.audit()
    assert computed <= 600


def test_a_copy_does_not_wait_for_one_that_stopped() -> None:
    steps = engine(blocks=1000, step_tokens=128)
    first, second = (start(steps, stream, own(1, 500)) for stream in (1, 2))
    steps.take()
    assert not second.blocks
    first.give_up_in_flight()
    first.paused = True
    steps.scheduler.update_ready(first)
    steps.take()
    assert second.blocks
    assert second.next_position == 256, "what the first computed is found"


def test_nor_for_more_than_what_both_begin_with() -> None:
    steps = engine(blocks=1000, step_tokens=128)
    start(steps, 1, own(1, 100) + own(2, 900))
    other = start(steps, 2, own(1, 100) + own(3, 20))
    steps.take()
    assert not other.blocks
    steps.take()
    assert other.num_outputs == 1


def test_nor_for_another_tenants_turn() -> None:
    """Which has begun with such a prompt, and has others computed before it for as long as it likes."""
    steps = engine(blocks=1000)
    start(steps, 1, own(1, 4000), tenant=1)
    steps.take()
    start(steps, 2, own(2, 500) + own(3, 500), tenant=1)
    steps.take()
    other = start(steps, 3, own(2, 500) + own(4, 10), tenant=2)
    for short in range(10, 22):
        start(steps, short, own(short, 64), tenant=1)
        steps.take()
    assert other.num_outputs


def test_all_the_same_no_two_tenants_compute_what_both_begin_with() -> None:
    """Each goes on from where any of them has come to."""
    steps = engine(blocks=1000)
    ones = [start(steps, one, own(9, 2000) + own(one, 10), tenant=one, credit=1) for one in range(1, 9)]
    computed = 0
    while not all(one.num_outputs for one in ones):
        computed += sum(row.count for row in steps.take().rows)
        steps.scheduler.cache.audit(ones)
        steps.scheduler.audit()
    block = steps.scheduler.cache.block_size
    assert computed <= 2000 + 8 * (10 + block)
    assert steps.scheduler.cache.used <= 2000 // block + 8 * 2


def test_who_finds_very_much_computed_goes_on_from_there_in_several_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A crowd that was told the same long text, and resumed at once, looked for all of it in one step."""
    monkeypatch.setattr("engine.schedule.scheduler.MOST_LOOKUPS", 64)
    steps, text = engine(blocks=1000), own(9, 16 * 400)
    first, *others = ones = [start(steps, one, own(8, 17), credit=1) for one in range(1, 9)]
    while not all(one.num_outputs for one in ones):
        steps.take()
    for one in ones:
        one.inject(text)
        one.paused, one.credit = one is not first, 2
        steps.scheduler.update_ready(one)
    while first.num_outputs < 2:
        steps.take()
    for one in others:
        one.paused = False
        steps.scheduler.update_ready(one)
    blocks, used, taken = steps.scheduler.cache.blocks, Counter[bytes](), list[int]()
    use = blocks.use

    def counting(name: bytes) -> int:
        used[name] += 1
        return use(name)

    monkeypatch.setattr(blocks, "use", counting)
    while not all(one.num_outputs == 2 for one in ones):
        steps.take()
        taken.append(used.total() - sum(taken))
    assert max(taken) < 3 * 64, "and what of it was computed meanwhile"
    assert sum(taken) > 7 * 300, "and hardly any of it is computed again"


def test_whose_token_takes_the_memory_of_all_others_that_decode_has_one_row_all_the_same() -> None:
    driver = SchedulerDriver(blocks=8, batch_rows=2)
    driver.decoding(1, 2, tokens=5)
    driver.add(3, tokens=20, priority=-1)  # waits for memory: a row is left for it
    batches = driver.steps(20)
    assert any(seq.stream == 2 for batch in batches for seq in batch.preempted)
    assert all(len(set(streams(batch))) == len(batch.rows) for batch in batches)
