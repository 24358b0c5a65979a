"""KV swapping: blocks that are loaded late, into memory that has another owner by then, change no output."""

from __future__ import annotations

import pytest

from engine import api
from engine.memory.host_pool import ImmediateCompletion
from engine.schedule.batch import Batch
from engine.schedule.block_cache import BlockCache
from engine.schedule.host_cache import BlockCopy, HostCache
from engine.schedule.sequence import Sequence
from engine.step.swapping import Swapping
from tests.fakes.engine_driver import TOY, Driver, Limits, engine_of, greedy
from tests.fakes.greedy_oracle import oracle
from tests.fakes.late_block_copier import LateBlockCopier, LateCompletion

ONE, OTHER, SMALL, FILLER = list(range(50)), list(range(100, 150)), [150, 151], list(range(200, 280))
TIGHT = Limits(kv_tokens=64, step_tokens=64, host_blocks=32)


def copier_of(driver: Driver) -> LateBlockCopier:
    copier = driver.engine._swapping._copier
    assert isinstance(copier, LateBlockCopier)
    return copier


def coming_back(overlap: bool, kv_tokens: int = 64) -> Driver:
    """Stream 1 lies in the host's memory and hardly anywhere else, while stream 3 runs on."""
    limits = Limits(kv_tokens=kv_tokens, step_tokens=64, host_blocks=32, overlap=overlap)
    driver = Driver(engine_of(TOY, limits))
    driver.settle(api.Submit(1, ONE, greedy(60), credit=3))
    driver.settle(api.Pause(1, release=True))
    driver.settle(api.Submit(2, FILLER[: kv_tokens - 22], greedy(4), credit=9))
    driver.send(api.Submit(3, SMALL, greedy(14), credit=99))
    driver.until(driver.has(3, 1))
    assert copier_of(driver).saved >= 12
    assert driver.stats.kv_host == driver.engine.scheduler.host_cache.used >= 12
    driver.send(api.Resume(1), api.Grant(1, 99))
    driver.step()
    return driver


def check(driver: Driver) -> None:
    driver.settle(*(api.Grant(at, 99) for at, told in driver.told.items() if not told.finish))
    for told in driver.told.values():
        oracle(TOY).check(told)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_stream_goes_on_with_what_came_back(overlap: bool) -> None:
    driver = coming_back(overlap)
    check(driver)
    assert copier_of(driver).loaded
    resumed = [change for change in driver.told[1].changes if isinstance(change, api.Resumed)]
    assert [change.recomputed for change in resumed] == [0]
    assert driver.told[1].known == 64


@pytest.mark.parametrize("overlap", [False, True])
def test_what_comes_for_a_stream_that_is_gone_harms_nobody(overlap: bool) -> None:
    driver = coming_back(overlap)
    driver.send(api.Cancel(1), api.Submit(4, OTHER[:44], greedy(9), credit=99))
    driver.step()
    assert driver.told[1].finish == api.Finish("cancelled")
    assert copier_of(driver).loading
    check(driver)
    assert copier_of(driver).fences == 1
    assert len(driver.told[4].tokens) == 9


@pytest.mark.parametrize("overlap", [False, True])
def test_what_was_rewound_before_it_set_out_does_not_come(overlap: bool) -> None:
    driver = Driver(engine_of(TOY, Limits(kv_tokens=64, step_tokens=64, host_blocks=32, overlap=overlap)))
    driver.settle(api.Submit(1, ONE[:4], greedy(60), credit=49))
    driver.settle(api.Pause(1, release=True))
    driver.settle(api.Submit(2, FILLER[:42], greedy(4), credit=9))
    driver.send(api.Submit(3, SMALL, greedy(14), credit=99))
    driver.until(driver.has(3, 1))
    driver.send(api.Resume(1), api.Truncate(1, 2), api.Submit(4, OTHER[:40], greedy(9), credit=99))
    driver.step(2)
    assert copier_of(driver).loaded <= 2
    check(driver)


def test_where_nobody_else_runs_it_is_waited_for() -> None:
    driver = Driver(engine_of(TOY, TIGHT))
    driver.settle(api.Submit(1, ONE, greedy(60), credit=3))
    driver.settle(api.Pause(1, release=True))
    driver.settle(api.Submit(2, FILLER[:42], greedy(4), credit=9))
    driver.send(api.Resume(1), api.Grant(1, 99))
    driver.step()
    before = len(driver.outputs)
    driver.until(driver.has(1, 4))
    copier = copier_of(driver)
    assert copier.loaded > copier.max_blocks
    assert len(driver.outputs) - before == -(-copier.loaded // copier.max_blocks) + 1
    check(driver)


def test_nor_does_it_wait_for_a_command_where_it_comes_back_behind_the_last_that_ran() -> None:
    driver = Driver(engine_of(TOY, TIGHT))
    driver.settle(api.Submit(1, ONE, greedy(60), credit=3))
    driver.settle(api.Pause(1, release=True))
    driver.settle(api.Submit(2, FILLER[:42], greedy(4), credit=9))
    driver.settle(api.Grant(1, 99), api.Resume(1))
    assert copier_of(driver).loaded
    assert driver.told[1].finish == api.Finish("length")
    oracle(TOY).check(driver.told[1])


def test_nothing_is_kept_in_the_place_of_what_comes_back_meanwhile() -> None:
    driver = Driver(engine_of(TOY, Limits(kv_tokens=128, step_tokens=64, host_blocks=6)))
    driver.settle(api.Submit(1, ONE[:20], greedy(60), credit=3))
    driver.settle(api.Pause(1, release=True))
    driver.send(api.Submit(2, FILLER[:70], greedy(30), credit=30))
    driver.step(6)
    driver.send(api.Submit(3, OTHER[:40], greedy(30), credit=30))
    driver.until(driver.has(3, 1))
    # All that the others leave would have room there, now that nothing is computed.
    driver.send(api.Pause(2, release=True), api.Pause(3, release=True), api.Resume(1), api.Grant(1, 99))
    driver.until(driver.has(1, 4))
    assert copier_of(driver).loaded
    check(driver)


@pytest.mark.parametrize("overlap", [False, True])
def test_a_long_load_sets_out_in_parts_while_others_decode(overlap: bool) -> None:
    driver = coming_back(overlap, kv_tokens=68)
    copier = copier_of(driver)
    parts: list[int] = []
    while len(driver.told[1].tokens) == 3:
        before, told = copier.loaded, len(driver.told[3].tokens)
        driver.step()
        parts.append(copier.loaded - before)
        assert len(driver.told[3].tokens) == told + 1, "nobody's step waits"
    assert max(parts) == copier.max_blocks
    assert sum(parts) == copier.loaded > 2 * copier.max_blocks
    check(driver)


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize("parts", [0, 1], ids=["its beginning", "a later part"])
def test_what_cannot_be_loaded_is_computed_again(
    overlap: bool, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = coming_back(overlap, kv_tokens=68)
    copier = copier_of(driver)
    while copier.loaded < parts * copier.max_blocks:
        driver.step()
    failed: list[list[BlockCopy]] = []

    def fail(copies: list[BlockCopy]) -> LateCompletion:
        failed.append(copies)
        raise MemoryError

    monkeypatch.setattr(copier, "load", fail)
    before = copier.loaded
    check(driver)
    assert failed
    assert copier.loaded == before
    assert driver.told[1].known == 68


class LoggingCopier:
    """Writes down what it is told."""

    max_blocks = 2

    def __init__(self) -> None:
        self.loads: list[BlockCopy] = []
        self.saved_over: list[
            tuple[int, list[BlockCopy]]
        ] = []  # a host's block, and what had been loaded by then

    def may_save(self) -> bool:
        return True

    def save(self, copies: list[BlockCopy]) -> None:
        self.saved_over += [(here, list(self.loads)) for _, here in copies]

    def load(self, copies: list[BlockCopy]) -> ImmediateCompletion:
        assert len(copies) <= self.max_blocks
        self.loads += copies
        return ImmediateCompletion()

    def fence(self) -> None: ...


def test_what_is_still_to_come_sets_out_before_something_else_is_kept_in_its_place() -> None:
    cache, host, log = BlockCache(8, 4), HostCache(7), LoggingCopier()
    swapping = Swapping(host, log)
    load = host.plan_load(cache, left(cache, host, swapping, 1, 29))
    assert load is not None
    wanted, log.saved_over = list(load.copies), []
    assert len(wanted) == 7
    swapping.start_loads(Batch(loads=[load]))
    assert log.loads == wanted[:2]
    for other in range(2, 6):
        left(cache, host, swapping, other, 5)
    assert len(log.saved_over) == 4
    for here, loaded in log.saved_over:
        assert here in [number for number, _ in loaded]
    for _ in range(2):
        assert swapping.take_done(wait=False) == []
        swapping.start_loads(Batch())
    assert sorted(log.loads) == sorted(wanted)
    assert swapping.take_done(wait=False) == [load]


def left(cache: BlockCache, host: HostCache, swapping: Swapping, stream: int, tokens: int) -> Sequence:
    """A sequence that computed its tokens, and left them in the host's memory and nowhere else."""
    known = list(range(100 * stream, 100 * stream + tokens))
    sequence = Sequence(stream, known, greedy(), credit=9, context=99)
    assert cache.grow(sequence, tokens - 1)
    sequence.num_computed = tokens - 1
    cache.cache_full_blocks(sequence)
    host.offer(sequence)
    while swapping.save(cache):
        pass
    cache.invalidate(sequence)
    cache.release(sequence)
    return sequence
