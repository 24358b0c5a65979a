"""Idle memory: what nobody has used for a while is given back, and nothing else ever is."""

from __future__ import annotations

import mmap
import os
import threading
from collections import Counter
from queue import SimpleQueue
from typing import Any

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from engine import api
from engine.engine import Engine
from engine.forward.kv_pool import KvPool
from engine.forward.model_runner import ModelRunner
from engine.memory.idle_memory import MOST_BLOCKS, IdleMemory
from engine.schedule.block_cache import BlockCache
from engine.schedule.idle_blocks import LOOKED_AT, IdleBlocks
from engine.schedule.sequence import Sequence
from tests.fakes.engine_driver import Driver, Limits, engine_of, greedy
from tests.fakes.greedy_oracle import oracle

EXAMPLES = os.environ.get("MIDSTREAM_EXAMPLES")
BLOCK, IDLE_S = 4, 60.0
SIZE = mmap.PAGESIZE // (BLOCK * 8)  # in float64: a block fills a page


class RecordingPool(KvPool):
    """Remembers which tokens it gave back."""

    def __init__(self, blocks: int, size: int) -> None:
        super().__init__(1, 1, size, tokens=blocks * BLOCK, dtype=torch.float64, device="cpu")
        self.given: list[slice] = []

    def give_back(self, tokens: slice) -> None:
        self.given.append(tokens)
        super().give_back(tokens)

    def take_given(self) -> list[int]:
        """The blocks of what was given back since the last time."""
        given, self.given = self.given, []
        return [block for part in given for block in range(part.start // BLOCK, part.stop // BLOCK)]


class Room:
    """A cache, its pool, and a clock that is told."""

    def __init__(self, blocks: int, size: int = SIZE, *, runs: bool = True) -> None:
        self.cache, self.pool = BlockCache(blocks, BLOCK, runs=runs), RecordingPool(blocks, size)
        self.time = 100.0
        self.rests = 0
        self.idle = IdleMemory(self.cache, self.pool, IDLE_S, lambda: self.time, self.rest)
        self.idle.give_back()
        self.sequences: dict[int, Sequence] = {}

    def begin(self, stream: int, tokens: int, text: int = 0) -> None:
        known = [text * 1000 + at for at in range(tokens)]
        sequence = Sequence(stream, known, api.Sampling(), credit=100, context=1000)
        self.cache.match_prefix(sequence)
        if not self.cache.grow(sequence, tokens):
            self.cache.release(sequence)
            return
        sequence.num_computed = tokens
        self.cache.cache_full_blocks(sequence)
        self.sequences[stream] = sequence

    def end(self, stream: int) -> None:
        self.cache.release(self.sequences.pop(stream))

    def rest(self) -> None:
        self.rests += 1

    def due_in_s(self) -> float | None:
        return self.idle.due_in_s

    def after(self, seconds: float) -> list[int]:
        self.time += seconds
        while self.idle.give_back():
            pass
        return self.pool.take_given()


def test_memory_goes_back_once_nobody_has_used_it_for_a_while() -> None:
    room = Room(16)
    room.begin(1, 10)
    room.begin(2, 4, text=1)
    assert room.due_in_s() is None, "nobody is idle"
    ended = room.sequences[1].blocks[:]
    room.end(1)
    assert room.after(20.0) == []
    assert room.due_in_s() == IDLE_S - 20
    assert room.cache.cached == 2
    assert sorted(room.after(IDLE_S - 20)) == sorted(ended)
    assert room.cache.cached == 0, "what is given back is forgotten"
    assert room.due_in_s() is None
    assert room.after(1000.0) == [], "once"


def test_a_prefix_that_is_used_again_stays() -> None:
    room = Room(16)
    room.begin(1, 9)
    room.end(1)
    for stream in range(2, 6):
        room.after(IDLE_S / 2)
        room.begin(stream, 9)
        assert room.sequences[stream].num_computed == 9
        room.end(stream)
    assert room.cache.cached == 2


def test_blocks_that_share_a_page_go_back_together() -> None:
    room = Room(16, SIZE // 4)  # four blocks a page
    room.begin(1, 4 * BLOCK)
    room.begin(2, 3 * BLOCK, text=1)
    page = [block for block in room.sequences[1].blocks if block // 4 == room.sequences[1].blocks[0] // 4]
    assert len(page) == 4
    room.cache.release(room.sequences[1], keep=BLOCK)
    assert room.after(IDLE_S) == [], "one of four is used"
    room.end(1)
    assert room.after(IDLE_S) == page


def test_what_is_due_at_once_is_given_back_in_parts() -> None:
    room = Room(3 * MOST_BLOCKS)
    room.begin(1, 3 * MOST_BLOCKS * BLOCK)
    room.end(1)
    room.time += IDLE_S
    assert [room.idle.give_back() for _ in range(3)] == [True, True, False]
    assert len(room.pool.take_given()) == 3 * MOST_BLOCKS


def test_what_was_let_go_of_again_since_is_looked_through_in_parts() -> None:
    """After a while of load all blocks were let go of once, long ago, and again just now."""
    looked_at: list[object] = []

    class Refs(list[int]):
        def __getitem__(self, number: Any) -> Any:
            looked_at.append(number)
            return super().__getitem__(number)

    idle = IdleBlocks(Refs([0] * 10_000))
    idle.add(range(10_000), now=0.0)
    assert idle.take(5.0, until=-5.0, most=MOST_BLOCKS) == []
    idle.add(range(10_000), now=10.0)
    while idle.since == 0.0:
        looked_at.clear()
        assert idle.take(15.0, until=5.0, most=MOST_BLOCKS) == []
        assert len(looked_at) <= LOOKED_AT
    assert idle.since == 10.0


def test_a_block_that_was_free_once_goes_back_out_of_the_cache() -> None:
    room = Room(16, runs=False)
    room.begin(1, BLOCK - 1)
    again = room.sequences[1].blocks[:]
    room.end(1)
    room.begin(2, BLOCK)
    assert room.sequences[2].blocks == again
    assert room.after(IDLE_S) == [], "used"
    room.end(2)
    assert room.cache.cached == 1
    assert room.after(IDLE_S) == again
    room.cache.audit([])


@pytest.mark.parametrize("runs", [False, True])
def test_all_goes_back_after_the_cache_has_turned_over(runs: bool) -> None:
    room = Room(256, SIZE // 4, runs=runs)
    used = set[int]()
    for stream in range(1, 21):
        room.begin(stream, 32 * BLOCK, text=stream)
        used.update(room.sequences[stream].blocks)
        assert room.after(IDLE_S / 24) == []
        room.end(stream)
    given = [block for _ in range(24) for block in room.after(IDLE_S / 24)]
    assert sorted(given) == sorted(used)
    assert room.cache.free == room.cache.total
    room.cache.audit([])


def test_once_all_is_given_back_there_is_rest() -> None:
    room = Room(16)
    room.idle.rest()
    assert room.rests == 0, "nothing was used"
    for stream in (1, 2):
        room.begin(stream, 10, text=stream)
        room.end(stream)
        room.after(IDLE_S / 2)
        room.idle.rest()
    assert room.rests == 0, "some may be used again"
    for _ in range(2):
        room.after(IDLE_S)
        room.idle.rest()
    assert room.rests == 1


class Ages(RuleBasedStateMachine):
    """Whatever comes and goes: nothing is given back that is in use, or was a while ago; and in the end
    everything is."""

    @initialize(blocks=st.integers(4, 150), group=st.sampled_from([1, 2, 4]), runs=st.booleans())
    def open(self, blocks: int, group: int, runs: bool) -> None:
        self.room, self.group, self.count = Room(blocks, SIZE // group, runs=runs), group, 0
        self.last_used = Counter[int]()
        self.holding = set[int]()  # blocks that were used since they were given back

    @rule(tokens=st.integers(1, 40), text=st.integers(0, 2))
    def begin(self, tokens: int, text: int) -> None:
        self.count += 1
        self.room.begin(self.count, tokens, text)

    @rule(pick=st.integers(0, 20), keep=st.integers(0, 40))
    def shrink(self, pick: int, keep: int) -> None:
        if sequence := self._any(pick):
            self.room.cache.release(sequence, min(keep, sequence.num_tokens))

    @rule(pick=st.integers(0, 20))
    def end(self, pick: int) -> None:
        if sequence := self._any(pick):
            self.room.end(sequence.stream)

    @rule(seconds=st.sampled_from([1.0, 20.0, IDLE_S]))
    def wait(self, seconds: float) -> None:
        for block in self._used():
            self.last_used[block] = int(self.room.time)
        given = self.room.after(seconds)
        assert not self._used() & set(given)
        for block in given:
            assert self.room.time - self.last_used[block] >= IDLE_S
        self.holding -= set(given)

    @invariant()
    def audit(self) -> None:
        if not hasattr(self, "room"):
            return
        self.holding |= self._used()
        for block in self._used():
            self.last_used[block] = int(self.room.time)
        self.room.cache.audit(self.room.sequences.values())

    def teardown(self) -> None:
        if not hasattr(self, "room"):
            return
        for stream in list(self.room.sequences):
            self.room.end(stream)
        self.wait(IDLE_S)
        assert not self.holding
        assert self.room.cache.free == self.room.cache.total

    def _any(self, pick: int) -> Sequence | None:
        sequences = list(self.room.sequences.values())
        return sequences[pick % len(sequences)] if sequences else None

    def _used(self) -> set[int]:
        return {block for sequence in self.room.sequences.values() for block in sequence.blocks}


TestAges = Ages.TestCase
TestAges.settings = settings(
    max_examples=int(EXAMPLES or 60),
    stateful_step_count=40,
    derandomize=EXAMPLES is None,
    database=None,
)


# -- in an engine ----------------------------------------------------------------------------------


def engine(idle_steps: int) -> Engine:
    return engine_of("llama", Limits(kv_tokens=1024, block_size=32, step_tokens=64, idle_steps=idle_steps))


def test_tokens_are_the_same_in_memory_that_was_given_back() -> None:
    """A stream that waits meanwhile keeps what it has; others write where those that ended have been."""
    driver = Driver(engine(idle_steps=3))
    text = [(7 * at) % 400 for at in range(60)]
    driver.settle(api.Submit(1, text, greedy(40), credit=20))
    for stream in range(2, 8):
        driver.settle(api.Submit(stream, text[stream:], greedy(30), credit=30))
        driver.step(5)
        assert driver.stats.kv_cached == 0, "given back"
    driver.settle(api.Grant(1, 40))
    assert len(driver.ended()) == 7
    for told in driver.told.values():
        oracle("llama").check(told)
    driver.step(4)
    assert driver.stats.kv_free == 32


def test_an_engine_that_has_nothing_to_do_gives_back_by_itself() -> None:
    made = engine(idle_steps=0)
    assert isinstance(made.runner, ModelRunner)
    made._idle_memory = [IdleMemory(made.cache, made.runner.pool, idle_s=0.01)]
    outputs: SimpleQueue[api.StepOutput] = SimpleQueue()
    running = threading.Thread(target=made.run, args=(outputs.put,))
    running.start()
    made.send([api.Submit(1, list(range(60)), greedy(10), credit=10)])
    while not any(news.finish for news in outputs.get().news):
        pass
    while outputs.get().stats.kv_cached:
        pass
    made.stop()
    running.join()
