"""Windows: a group of layers that slide keeps its window and a block, and whatever needs more finds it again
or computes it again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine.api import Sampling
from engine.model.layer_groups import MOST_GROUPS, LayerGroup, group_layers
from engine.schedule.block_cache import BlockCache
from engine.schedule.host_cache import HostCache
from engine.schedule.scheduler import Scheduler
from engine.schedule.sequence import Sequence
from engine.schedule.windows import GONE, Windows, first_held
from tests.fakes.instant_steps import InstantSteps
from tests.fakes.written_blocks import WrittenBlocks

BLOCK = 4
GEMMA3 = [None if layer % 6 == 5 else 1024 for layer in range(34)]  # of 4 billion parameters


# -- layers in groups ------------------------------------------------------------------------------


def test_layers_of_one_kind_are_one_group() -> None:
    assert group_layers([None] * 30, 8192) == [LayerGroup(None, list(range(30)))]
    assert group_layers([512] * 3, 8192) == [LayerGroup(512, [0, 1, 2])]


def test_a_window_that_no_sequence_outgrows_is_none() -> None:
    assert group_layers([4096, None, 4096], 4096) == [LayerGroup(None, [0, 1, 2])]


def test_groups_have_equal_places_and_those_that_see_all_come_first() -> None:
    assert group_layers([8, None, 8, None], 100) == [LayerGroup(None, [1, 3]), LayerGroup(8, [0, 2])]
    groups = group_layers(GEMMA3, 32_768)
    assert [(group.window, len(group.layers)) for group in groups] == [(None, 5), *[(1024, 5)] * 5, (1024, 4)]


def test_what_cannot_be_divided_well_keeps_everything() -> None:
    assert group_layers([None] * 26 + [64], 8192) == [LayerGroup(None, list(range(27)))]


@given(st.lists(st.sampled_from([None, 16, 64]), min_size=1, max_size=60))
def test_every_layer_is_in_one_group_of_its_kind(windows: list[int | None]) -> None:
    groups = group_layers(windows, 1000)
    assert sorted(layer for group in groups for layer in group.layers) == list(range(len(windows)))
    assert len(groups) <= MOST_GROUPS
    for window, layers in groups:
        assert window is None or {windows[layer] for layer in layers} == {window}
    assert len(groups) * max(len(group.layers) for group in groups) <= 1.15 * len(windows)


# -- how much is kept ------------------------------------------------------------------------------


@given(
    st.lists(st.sampled_from([None, 1, 4, 5, 30]), min_size=1, max_size=4),
    st.integers(1, 20),
    st.integers(1, 80),
)
def test_the_longest_sequence_is_the_longest_that_there_is_room_for(
    sizes: list[int | None], chunk: int, blocks: int
) -> None:
    windows = Windows(tuple(sizes), BLOCK, chunk)
    longest = windows.longest(blocks)
    assert windows.blocks(longest) <= blocks
    if longest < 10**6:
        assert windows.blocks(longest + BLOCK) > blocks
    else:
        assert windows.blocks(10**9) <= blocks


class Memory:
    """A cache of some windows, and sequences that compute in it."""

    def __init__(self, *windows: int | None, blocks: int = 64, host_blocks: int = 0) -> None:
        self.windows = windows
        self.cache = BlockCache(blocks, BLOCK, windows=windows, chunk=8)
        self.scheduler = Scheduler(
            self.cache,
            step_tokens=8,
            batch_rows=4,
            tenant_prefill=10_000,
            host_cache=HostCache(host_blocks),
        )
        self.steps = InstantSteps(self.scheduler, written=WrittenBlocks(BLOCK, windows))
        self.computed = 0  # tokens

    def add(self, stream: int, tokens: int, first: int = 0, credit: int = 1) -> Sequence:
        known = list(range(first, first + tokens))
        sequence = Sequence(stream, known, Sampling(), credit=credit, context=10_000)
        self.scheduler.add(sequence)
        self.settle()
        return sequence

    def settle(self) -> None:
        while True:
            batch = self.steps.take()
            self.computed += sum(row.count for row in batch.rows)
            self.cache.audit(self.scheduler.sequences.values())
            self.scheduler.audit()
            self.steps.finish_load()
            if self.scheduler.idle:
                return

    def grant(self, sequence: Sequence, more: int) -> None:
        sequence.credit += more
        self.scheduler.update_ready(sequence)
        self.settle()

    def rewind(self, sequence: Sequence, index: int) -> int:
        """Returns how many tokens are computed again for it, and the one behind."""
        sequence.truncate(index)
        self.scheduler.release_blocks(sequence, keep=sequence.next_position)
        sequence.credit = index + 1
        self.scheduler.update_ready(sequence)
        before = self.computed
        self.settle()
        return self.computed - before


def test_a_group_that_slides_keeps_its_window_and_a_block() -> None:
    memory = Memory(None, 10, 6)
    sequence = memory.add(1, 50)
    for _ in range(30):
        memory.grant(sequence, 1)
        whole, wide, narrow = (len(table) - first_held(table) for table in sequence.tables)
        assert whole == -(-sequence.num_computed // BLOCK)
        assert wide <= -(-10 // BLOCK) + 1
        assert narrow <= -(-6 // BLOCK) + 1
    assert memory.cache.cached > 0, "what has left it may be found again"


def test_a_model_that_slides_everywhere_holds_any_context() -> None:
    memory = Memory(10, blocks=Windows((10,), BLOCK, 8).blocks(1000))
    sequence = memory.add(1, 500)
    memory.grant(sequence, 200)
    assert sequence.num_outputs == 201
    assert memory.cache.used <= 4


@pytest.mark.parametrize(
    ("streams", "chunk", "overlap"), [(1, 128, False), (3, 2048, True)], ids=["on a CPU", "on a device"]
)
def test_at_five_to_one_layers_a_long_context_takes_a_quarter_at_most(
    streams: int, chunk: int, overlap: bool
) -> None:
    """Of Gemma 3 with 32,000 tokens, while prompts are computed and while their streams speak."""
    tokens, block = 32_000, 16
    groups = group_layers(GEMMA3, 131_072)
    places = max(len(group.layers) for group in groups)
    windows = tuple(group.window for group in groups)
    cache = BlockCache(200_000, block, runs=False, windows=windows, chunk=chunk)
    scheduler = Scheduler(cache, step_tokens=chunk, batch_rows=16, tenant_prefill=10**9)
    steps = InstantSteps(scheduler, overlap=overlap)
    prompt = list(range(tokens))
    for stream in range(streams):
        scheduler.add(Sequence(stream, [stream, *prompt[1:]], Sampling(), credit=40, context=40_000))
    most = 0
    while not scheduler.idle:
        steps.take()
        most = max(most, cache.used)
    cache.audit(scheduler.sequences.values())
    layers_blocks = streams * len(GEMMA3) * -(-(tokens + 40) // block)  # of every layer, as without windows
    assert most * places <= layers_blocks / 4
    assert cache.used * places <= layers_blocks * 0.22


# -- what has left a window ------------------------------------------------------------------------


def test_whoever_begins_alike_takes_the_window_before_its_end() -> None:
    memory = Memory(None, 10)
    first = memory.add(1, 60)
    memory.scheduler.remove(first)
    before = memory.computed
    twin = memory.add(2, 60)
    assert memory.computed - before == 4, "its last block"
    assert [first_held(table) for table in twin.tables] == [0, (60 - 10 + 1) // BLOCK]


def test_whoever_leaves_it_early_takes_what_is_still_cached_there() -> None:
    memory = Memory(None, 10)
    memory.add(1, 60)
    fork = Sequence(2, [*range(30), *range(900, 910)], Sampling(), credit=1, context=10_000)
    memory.scheduler.add(fork)
    before = memory.computed
    memory.settle()
    assert memory.computed - before == 40 - 28


def test_without_its_window_a_prefix_is_none() -> None:
    memory = Memory(None, 10, blocks=40)
    first = memory.add(1, 60)
    memory.scheduler.remove(first)
    memory.add(2, 40, first=500)  # takes what has left the window
    assert memory.cache.cached > 0
    before = memory.computed
    memory.scheduler.add(Sequence(3, [*range(30)], Sampling(), credit=1, context=10_000))
    memory.settle()
    assert memory.computed - before == 30


def test_a_rewind_inside_the_window_computes_one_token() -> None:
    memory = Memory(None, 10)
    sequence = memory.add(1, 40)
    memory.grant(sequence, 20)
    assert memory.rewind(sequence, sequence.num_outputs - 1) == 1


def test_a_rewind_behind_the_window_takes_what_is_cached() -> None:
    memory = Memory(None, 10)
    sequence = memory.add(1, 40)
    memory.grant(sequence, 30)
    assert memory.rewind(sequence, 4) == 4, "from the last whole block on"


def test_a_rewind_behind_the_window_computes_what_is_lost() -> None:
    memory = Memory(None, 10)
    sequence = memory.add(1, 40)
    memory.grant(sequence, 40)
    memory.cache.blocks.take_idle(memory.cache.blocks.now, 1, memory.cache.cached)
    assert memory.rewind(sequence, 4) == 40 + 4


def test_a_rewind_behind_the_window_takes_what_the_host_has() -> None:
    memory = Memory(None, 10, blocks=32, host_blocks=64)
    sequence = memory.add(1, 40)
    memory.grant(sequence, 10)
    sequence.paused = True
    memory.scheduler.release_blocks(sequence)
    memory.scheduler.update_ready(sequence)
    memory.add(2, 60, first=500)
    memory.scheduler.remove(memory.scheduler.sequences[2])
    memory.add(3, 60, first=700)
    memory.scheduler.remove(memory.scheduler.sequences[3])
    sequence.paused = False
    memory.scheduler.restore_blocks(sequence)
    assert sequence.pending_load is not None
    before = memory.computed
    memory.grant(sequence, 1)
    assert memory.computed - before <= 2 * BLOCK


def test_a_shared_block_is_copied_in_every_group() -> None:
    memory = Memory(None, 10)
    first = memory.add(1, 13, credit=12)
    twin = Sequence(2, list(first.tokens), Sampling(), credit=1, context=10_000)
    memory.cache.match_prefix(twin)
    assert [twin.blocks[5], twin.other_blocks[0][5]] == [first.blocks[5], first.other_blocks[0][5]]
    memory.cache.release(twin, keep=22)
    copies = memory.cache.make_writable(twin)
    assert copies == [(first.blocks[5], twin.blocks[5]), (first.other_blocks[0][5], twin.other_blocks[0][5])]
    memory.cache.audit([first, twin])


def test_what_cannot_be_trusted_is_forgotten_behind_the_window_too() -> None:
    memory = Memory(6)
    sequence = memory.add(1, 40)
    assert memory.cache.cached
    own = memory.scheduler.invalidate(sequence)
    assert len(own) == len(set(own)) == 10
    assert memory.cache.cached == 0
    memory.scheduler.remove(sequence)
    before = memory.computed
    memory.add(2, 40)
    assert memory.computed - before == 40
    memory.cache.audit(memory.scheduler.sequences.values())


def test_the_audit_sees_what_is_gone_too_early() -> None:
    memory = Memory(None, 10)
    sequence = memory.add(1, 40)
    table = sequence.other_blocks[0]
    at = first_held(table)
    memory.cache.blocks.drop([table[at]])
    table[at] = GONE
    with pytest.raises(AssertionError):
        memory.cache.audit([sequence])
