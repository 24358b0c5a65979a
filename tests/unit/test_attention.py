"""Attention backends over the paged pool: each is a dense softmax, wherever the blocks lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from engine.api import Sampling
from engine.forward.attention import AttentionBackend, paged_attention
from engine.forward.block_tables import BlockTables
from engine.forward.by_flash_attn import FlashAttnBackend
from engine.forward.by_flashinfer import FlashInferBackend
from engine.forward.by_sdpa import SdpaBackend
from engine.forward.kv_pool import KvPool
from engine.forward.kv_read_plan import Part, RaggedBatch, RowSpan, contiguous_runs
from engine.forward.tiling import Tiling
from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence
from engine.schedule.windows import GONE
from tests.fakes.attention_kinds import Kind, kinds
from tests.fakes.attention_packages import BatchPrefillWithPagedKVCacheWrapper, flash_attn_varlen_func
from tests.fakes.devices import DEVICE, ON_DEVICE
from tests.fakes.triton_kernels import needs_triton, triton_backend

BLOCK = 4
BLOCKS = 64
KV_HEADS, GROUP, SIZE = 2, 3, 8
HEADS = KV_HEADS * GROUP


# -- where tokens lie ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("blocks", "tokens", "runs"),
    [
        ([3], 1, [(12, 1)]),
        ([3], 4, [(12, 4)]),
        ([3, 4, 5], 10, [(12, 10)]),
        ([3, 4, 9], 10, [(12, 8), (36, 2)]),
        ([9, 3, 4], 12, [(36, 4), (12, 8)]),
        ([5, 4], 6, [(20, 4), (16, 2)]),
        ([3, 4, 5, 6], 5, [(12, 5)]),
        ([3, 4, 9], 8, [(12, 8)]),
    ],
)
def test_neighbouring_blocks_are_one_run(blocks: list[int], tokens: int, runs: list[tuple[int, int]]) -> None:
    assert contiguous_runs(blocks, BLOCK, tokens) == runs


@given(st.permutations(range(8)), st.data())
def test_slices_name_every_position_in_order(blocks: list[int], data: st.DataObject) -> None:
    tokens = data.draw(st.integers(1, len(blocks) * BLOCK))
    begin = data.draw(st.integers(0, tokens))
    end = data.draw(st.integers(begin, tokens))
    places = [blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(tokens)]
    span = RowSpan(0, 1, tokens - 1, contiguous_runs(blocks, BLOCK, tokens))
    assert [at for part in span.slices(begin, end) for at in range(part.start, part.stop)] == places[
        begin:end
    ]


WHOLE_TILES = Tiling(256, 1, (256,))


def planned(spans: list[RowSpan], pool_tokens: int) -> None:
    RaggedBatch(torch.zeros(len(spans), dtype=torch.long), spans, pool_tokens, torch.float32).sections(
        None, WHOLE_TILES
    )


@pytest.mark.parametrize("count", [1, 64])
def test_a_plan_looks_at_a_context_that_lies_in_many_pieces_once(count: int) -> None:
    class Runs(list[tuple[int, int]]):
        looks = 0

        def __getitem__(self, at):  # type: ignore[no-untyped-def]
            self.looks += 1
            return super().__getitem__(at)

        def __iter__(self) -> Iterator[tuple[int, int]]:
            self.looks += len(self)
            return super().__iter__()

    tokens = 64 * 256
    runs = Runs(contiguous_runs(list(range(0, tokens // 2, 2)), 4, tokens))
    assert len(runs) == tokens // 4, "each block by itself"
    planned([RowSpan(0, count, tokens - count, runs)], 2 * tokens)
    assert runs.looks <= 3 * len(runs)


@pytest.mark.parametrize("pitch", [100, 200])
def test_a_plan_looks_at_each_of_many_parts_a_few_times(pitch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether they lie in one line, or all have to be gathered."""
    looks, length = 0, vars(Part)["length"]

    def counted(part: Part) -> int:
        nonlocal looks
        looks += 1
        return int(length.__get__(part))

    monkeypatch.setattr(Part, "length", property(counted, length.__set__))
    rows, tokens = 16, 16 * 256
    at = range(0, rows * tokens * pitch // 100, tokens * pitch // 100)
    runs = [[(first + one * pitch, 100) for one in range(tokens // 100 + 1)] for first in at]
    planned([RowSpan(row, 1, tokens - 1, its) for row, its in enumerate(runs)], 2 * at.stop)
    assert looks <= 20 * rows * tokens // 256


# -- against a dense softmax -----------------------------------------------------------------------


class Layer(nn.Module):
    layer_idx = 1


@dataclass
class Context:
    """One sequence: its last `count` tokens are the batch's, the others lie in the pool already."""

    blocks: list[int]
    tokens: int
    count: int = 1

    @property
    def places(self) -> list[int]:
        return [self.blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(self.tokens)]

    def row(self, slot: int) -> Row:
        sequence = Sequence(slot, [0] * self.tokens, Sampling(), credit=1, context=1000)
        sequence.slot, sequence.blocks = slot, self.blocks
        return Row(sequence, self.tokens - self.count, self.count, True, sequence.sampling)


KINDS = kinds(window=5)
LAYOUTS = {
    "one token": [Context([7], 1)],
    "one run": [Context([3, 4, 5], 11)],
    "several runs": [Context([3, 9, 10, 4], 15)],
    "evenly spaced": [Context([2, 3, 4], 9), Context([10, 11, 12], 12), Context([18, 19, 20], 10)],
    "evenly spaced to the pool's end": [Context([52, 53], 8), Context([56, 57], 8), Context([60], 1)],
    "unevenly spaced": [Context([2, 3], 8), Context([10], 2), Context([11, 12, 13, 14], 16)],
    "shared beginning": [Context([4, 5, 20], 9), Context([4, 5, 30], 12), Context([4, 5, 6], 10)],
    "many runs and few": [Context([9, 3, 7, 5], 14), Context([20], 3), Context([30, 40], 6)],
    "a prompt": [Context([7, 8, 9], 11, count=11)],
    "a prompt over several runs": [Context([30, 7, 8, 2], 15, count=15)],
    "a chunk behind a context": [Context([30, 7, 8, 2], 15, count=6)],
    "a chunk of the window's length": [Context([7, 8, 9], 10, count=5)],
    "rows and chunks": [
        Context([2, 3], 7),
        Context([10, 11], 5),
        Context([40, 20], 7, count=7),
        Context([50, 51, 45], 12, count=3),
    ],
}


# What has left a window of five tokens, and is in no table any more.
PAST = {
    "one row": [Context([GONE, GONE, 5, 6], 15)],
    "rows": [Context([GONE, GONE, 5, 6], 15), Context([GONE, 8, 9], 9), Context([20, 21], 8)],
    "a chunk": [Context([GONE, GONE, 12, 30, 14], 19, count=6)],
    "rows and chunks": [
        Context([GONE, 40, 20], 12, count=3),
        Context([GONE, 7, 8], 9),
        Context([9, 3], 7, count=7),
    ],
}

BACKENDS: dict[str, Callable[[KvPool], AttentionBackend]] = {
    "sdpa": lambda pool: SdpaBackend(pool, BLOCK),
    "sdpa by runs": lambda pool: SdpaBackend(pool, BLOCK, exact=False),
    "triton": lambda pool: triton_backend(pool, BLOCK, HEADS, slots=8),
    "flash_attn": lambda pool: FlashAttnBackend(tables_of(pool), flash_attn_varlen_func),
    "flashinfer": lambda pool: FlashInferBackend(BLOCK, DEVICE, BatchPrefillWithPagedKVCacheWrapper),
}
# Triton's interpreter is slow: there each kind has one layout, and each layout one kind.
EVERYWHERE = [
    pytest.param(
        contexts, kind, backend, id=f"{layout}-{name}-{backend}", marks=[needs_triton] * (backend == "triton")
    )
    for layout, contexts in LAYOUTS.items()
    for name, kind in KINDS.items()
    for backend in BACKENDS
    if backend != "triton" or ON_DEVICE or name == "all" or layout == "rows and chunks"
]
EVERY_BACKEND = [
    "sdpa",
    "sdpa by runs",
    pytest.param("triton", marks=needs_triton),
    "flash_attn",
    "flashinfer",
]


def tables_of(pool: KvPool) -> BlockTables:
    return BlockTables(8, BLOCKS, BLOCK, BLOCKS, pool.keys[0].device)


def attended(
    contexts: list[Context], kind: Kind, dtype: torch.dtype, backend: str = "sdpa"
) -> tuple[Tensor, Tensor]:
    """What the engine's attention gives, and what a dense one does."""
    generator = torch.Generator().manual_seed(len(contexts))

    def noise(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(DEVICE, dtype)

    pool = KvPool(2, KV_HEADS, SIZE, tokens=(BLOCKS + 1) * BLOCK, dtype=dtype, device=str(DEVICE))
    for tensor in (*pool.keys, *pool.values):
        tensor.copy_(1e3 * noise(*tensor.shape))  # whoever reads what is not its own will be seen
        if contexts in PAST.values():
            tensor[:, :BLOCK] = torch.nan  # of what is gone nobody knows where it lay
    sinks = noise(HEADS) if kind.sinks else None
    keys, values = noise(KV_HEADS, BLOCKS * BLOCK, SIZE), noise(KV_HEADS, BLOCKS * BLOCK, SIZE)
    order, plan = BACKENDS[backend](pool).plan([context.row(slot) for slot, context in enumerate(contexts)])
    queries, places, expected = [], list[int](), []
    for context in (contexts[at] for at in order):
        start = context.tokens - context.count
        pool.keys[1][:, context.places[:start]] = keys[:, context.places[:start]]
        pool.values[1][:, context.places[:start]] = values[:, context.places[:start]]
        query = noise(HEADS, context.count, SIZE)
        expected.append(dense(query, keys[:, context.places], values[:, context.places], kind, sinks))
        queries.append(query)
        places += context.places[start:]
    own = keys[:, places], values[:, places]
    out, _ = paged_attention(
        Layer(),
        torch.cat(queries, 1)[None],
        own[0][None],
        own[1][None],
        None,
        scaling=0.3,
        sliding_window=kind.window,
        softcap=kind.softcap,
        s_aux=sinks,
        pool=pool,
        plans=plan,
    )
    assert out.shape == (1, len(places), HEADS, SIZE)
    assert out.dtype == dtype
    assert torch.equal(pool.keys[1][:, places], own[0])
    assert torch.equal(pool.values[1][:, places], own[1])
    return out[0].transpose(0, 1).double(), torch.cat(expected, 1)


def finest(backend: str) -> tuple[torch.dtype, float]:
    """The widest numbers that it reads, and how far off it may be: kernels on a device know no float64."""
    return (torch.float32, 1e-5) if backend == "triton" and ON_DEVICE else (torch.float64, 1e-12)


def dense(query: Tensor, keys: Tensor, values: Tensor, kind: Kind, sinks: Tensor | None) -> Tensor:
    """Softmax over all keys at once, in float64. A sink is one more key, whose value is nothing."""
    count, tokens = query.shape[1], keys.shape[1]
    keys, values = (tensor.double().repeat_interleave(GROUP, 0) for tensor in (keys, values))
    scores = query.double() @ keys.mT * 0.3
    if kind.softcap is not None:
        scores = torch.tanh(scores / kind.softcap) * kind.softcap
    at = torch.arange(tokens, device=query.device)
    distance = at[tokens - count :, None] - at
    seen = (distance >= 0) & (distance < (kind.window or tokens))
    scores = scores.masked_fill(~seen, -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().view(-1, 1, 1).expand(-1, count, 1)], -1)
    return scores.softmax(-1)[..., :tokens] @ values


@pytest.mark.parametrize("most", [1, 40, 200])
@pytest.mark.parametrize("kind", [KINDS["softcap"], KINDS["all"]], ids=["softcap", "all"])
def test_scores_that_are_too_many_at_once_are_computed_in_steps(
    kind: Kind, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine.forward.by_sdpa.MAX_SCORES", most)
    for contexts in LAYOUTS.values():
        out, expected = attended(contexts, kind, torch.float64)
        torch.testing.assert_close(out, expected)


@pytest.mark.parametrize(("contexts", "kind", "backend"), EVERYWHERE)
def test_it_is_a_dense_softmax_wherever_the_blocks_lie(
    contexts: list[Context], kind: Kind, backend: str
) -> None:
    dtype, tolerance = finest(backend)
    out, expected = attended(contexts, kind, dtype, backend)
    torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("backend", EVERY_BACKEND)
@pytest.mark.parametrize("kind", [KINDS["window"], KINDS["all"]], ids=["window", "all"])
@pytest.mark.parametrize("contexts", PAST.values(), ids=PAST)
def test_what_has_left_the_window_is_not_read(contexts: list[Context], kind: Kind, backend: str) -> None:
    dtype, tolerance = finest(backend)
    out, expected = attended(contexts, kind, dtype, backend)
    torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("backend", EVERY_BACKEND)
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.bfloat16, 5e-2), (torch.float16, 5e-3)],
    ids=["float32", "bfloat16", "float16"],
)
def test_it_is_as_exact_as_the_numbers_that_it_is_given(
    kind: Kind, dtype: torch.dtype, tolerance: float, backend: str
) -> None:
    # The interpreter is slow.
    layouts = LAYOUTS.values() if backend == "sdpa" else [LAYOUTS["rows and chunks"]]
    for contexts in layouts:
        out, expected = attended(contexts, kind, dtype, backend)
        torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)


@st.composite
def batches(draw: st.DrawFn) -> list[Context]:
    """Rows that decode, then chunks, in blocks as a cache may give them: in runs, apart, or shared."""
    free = list(range(BLOCKS))
    contexts = []
    shared: list[int] = []
    for decoding in sorted(draw(st.lists(st.booleans(), min_size=1, max_size=6)), reverse=True):
        tokens = draw(st.integers(1, 30))
        blocks = list(shared[: draw(st.integers(0, (tokens - 1) // BLOCK))]) if decoding else []
        while len(blocks) * BLOCK < tokens:
            behind = blocks[-1] + 1 if blocks else -1
            number = behind if behind in free and draw(st.booleans()) else draw(st.sampled_from(free))
            free.remove(number)
            blocks.append(number)
        contexts.append(Context(blocks, tokens, 1 if decoding else draw(st.integers(1, tokens))))
        shared = shared or blocks[: (tokens - 1) // BLOCK]
    return sorted(
        contexts,
        key=lambda context: (context.count > 1, contiguous_runs(context.blocks, BLOCK, context.tokens)),
    )


@pytest.mark.parametrize("backend", EVERY_BACKEND)
def test_it_is_a_dense_softmax_for_any_batch(backend: str) -> None:
    dtype, tolerance = finest(backend)

    @settings(max_examples=25 if backend != "triton" or ON_DEVICE else 8)
    @given(contexts=batches(), kind=st.sampled_from(list(KINDS.values())))
    def hold_against_a_dense_one(contexts: list[Context], kind: Kind) -> None:
        out, expected = attended(contexts, kind, dtype, backend)
        torch.testing.assert_close(out, expected, rtol=0, atol=tolerance)

    hold_against_a_dense_one()


# -- the pool --------------------------------------------------------------------------------------


def test_blocks_are_copied_and_scrubbed_in_every_layer() -> None:
    pool = KvPool(2, KV_HEADS, SIZE, tokens=4 * BLOCK, dtype=torch.float64, device="cpu")
    tensors = (*pool.keys, *pool.values)
    for number, tensor in enumerate(tensors, 1):
        tensor[:, :BLOCK] = number
        tensor[:, BLOCK] = torch.nan
    pool.copy(slice(0, BLOCK), slice(2 * BLOCK, 3 * BLOCK))
    pool.zero(slice(BLOCK, 2 * BLOCK))
    for number, tensor in enumerate(tensors, 1):
        means = tensor.view(tensor.shape[0], 4, -1).mean(2)
        assert means.tolist() == [[number, 0, number, 0]] * tensor.shape[0]
