"""Attention that does not look sideways: what is computed for a token is the same bits wherever its context
lies, in whatever chunk it comes, and whoever is computed beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from engine.api import Sampling
from engine.forward import tiling
from engine.forward.attention import AttentionBackend, paged_attention
from engine.forward.by_sdpa import SdpaBackend, tiling_of_kind
from engine.forward.kv_pool import KvPool
from engine.schedule.batch import Row
from engine.schedule.sequence import Sequence
from tests.fakes.attention_kinds import Kind, kinds
from tests.fakes.devices import DEVICE
from tests.fakes.triton_kernels import add_term_by_term, needs_triton, triton_backend

BLOCK, BLOCKS = 16, 160
IN_TILE = 4  # blocks of a small one
KV_HEADS, GROUP, SIZE = 2, 3, 16


KINDS = kinds(window=40)
BACKENDS: dict[str, Callable[[KvPool], AttentionBackend]] = {
    "sdpa": lambda pool: SdpaBackend(pool, BLOCK),
    "triton": lambda pool: triton_backend(pool, BLOCK, KV_HEADS * GROUP, slots=8, exact=True),
}
DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


class Layer(nn.Module):
    layer_idx = 0


@dataclass(frozen=True)
class Context:
    """One sequence, whose numbers follow from its seed: its last `count` tokens are the batch's."""

    seed: int
    blocks: list[int]
    tokens: int
    count: int = 1

    def numbers(self, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of all tokens that it could have."""
        generator = torch.Generator().manual_seed(self.seed)
        heads = (KV_HEADS * GROUP, KV_HEADS, KV_HEADS)
        query, keys, values = (
            torch.randn(each, BLOCKS * BLOCK, SIZE, generator=generator).to(DEVICE, dtype) for each in heads
        )
        return query, keys, values

    @property
    def places(self) -> list[int]:
        return [self.blocks[at // BLOCK] * BLOCK + at % BLOCK for at in range(self.tokens)]

    def row(self, slot: int) -> Row:
        sequence = Sequence(slot, [0] * self.tokens, Sampling(), credit=0, context=10**6)
        sequence.slot, sequence.blocks = slot, self.blocks
        return Row(sequence, self.tokens - self.count, self.count, True, sequence.sampling)


def computed(
    contexts: list[Context], kind: Kind, dtype: torch.dtype, elsewhere: float = 1e3, backend: str = "sdpa"
) -> list[Tensor]:
    """For each context [count, H, D]; whoever reads what is not its own will be seen."""
    pool = KvPool(1, KV_HEADS, SIZE, tokens=BLOCKS * BLOCK, dtype=dtype, device=str(DEVICE))
    pool.keys[0].fill_(elsewhere)
    pool.values[0].fill_(elsewhere)
    order, plans = BACKENDS[backend](pool).plan([context.row(slot) for slot, context in enumerate(contexts)])
    batch = []
    for context in (contexts[at] for at in order):
        query, keys, values = context.numbers(dtype)
        pool.keys[0][:, context.places] = keys[:, : context.tokens]
        pool.values[0][:, context.places] = values[:, : context.tokens]
        own = slice(context.tokens - context.count, context.tokens)
        batch.append((query[:, own], keys[:, own], values[:, own]))
    query, keys, values = (torch.cat(column, 1)[None] for column in zip(*batch, strict=True))
    sinks = torch.linspace(-1, 2, KV_HEADS * GROUP, dtype=dtype, device=DEVICE) if kind.sinks else None
    found, _ = paged_attention(
        Layer(),
        query,
        keys,
        values,
        None,
        sliding_window=kind.window,
        softcap=kind.softcap,
        s_aux=sinks,
        pool=pool,
        plans=plans,
    )
    parts = torch.split(found[0], [contexts[at].count for at in order])
    return [part for _, part in sorted(zip(order, parts, strict=True), key=lambda pair: pair[0])]


def one_by_one(context: Context, kind: Kind, dtype: torch.dtype) -> Tensor:
    """The same tokens, each alone, in neighbouring blocks."""
    start = context.tokens - context.count
    blocks = list(range(BLOCKS))
    alone = [Context(context.seed, blocks, tokens) for tokens in range(start + 1, context.tokens + 1)]
    return torch.cat([computed([one], kind, dtype)[0] for one in alone])


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiling, "TILE", 64)
    monkeypatch.setattr(tiling, "LEAST_TILE", 32)


LAYOUTS = {
    "alone": [Context(1, [3, 4, 5, 6, 7, 8, 9, 10], 120)],
    "a prompt": [Context(1, [3, 4, 5, 6, 7, 8], 90, count=90)],
    "chunks of all lengths": [Context(1, list(range(9)), 140, count=count) for count in (2, 3, 7, 33, 139)],
    "evenly spaced": [Context(at, list(range(10 * at, 10 * at + 10)), 100 + 9 * at) for at in range(6)],
    "one context for many": [Context(1, list(range(8)), 128)] * 3 + [Context(1, list(range(8)), 127)] * 2,
    "in runs": [Context(at, [at, 90 - 2 * at, 91 - 2 * at, 20 + at, 60 + at], 66 + at) for at in range(7)],
    "whole tiles around one in pieces": [
        Context(1, [0, 1, 2, 3, 100, 50, 20, 9, 40, 41, 42, 43, 80, 81], 210, count=12),
        Context(2, [60, 61, 62, 63, 110, 55, 25, 10, 70, 71, 72, 73, 120, 121, 90, 91, 130], 260, count=30),
    ],
    "at the pool's end": [Context(1, [BLOCKS - 1], 3), Context(2, [2, 0, BLOCKS - 2, 1], 63)],
    "decoding beside chunks": [
        Context(1, [3, 4, 9, 10, 11], 75),
        Context(2, [80, 30, 31, 32, 50, 51, 5], 100, count=40),
        Context(3, [100], 5, count=5),
        Context(4, [101, 102, 103, 104], 49),
    ],
}


@pytest.mark.usefixtures("small_tiles")
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype).removeprefix("torch."))
def test_a_token_comes_to_the_same_bits(dtype: torch.dtype, kind: Kind) -> None:
    for name, contexts in LAYOUTS.items():
        for context, found in zip(contexts, computed(contexts, kind, dtype), strict=True):
            some = Context(context.seed, context.blocks, context.tokens, min(3, context.count))
            assert torch.equal(found[-some.count :], one_by_one(some, kind, dtype)), (name, context)


@st.composite
def batches(draw: st.DrawFn, longest: int = 260) -> list[Context]:
    """Sequences in blocks as a cache may give them: tiles one behind the other or anywhere, each in one piece
    or in several."""
    free = draw(st.permutations(range(0, BLOCKS, IN_TILE)))
    contexts: list[Context] = []
    for seed in range(draw(st.integers(1, 6))):
        tokens = draw(st.integers(1, longest))
        needed = -(-tokens // BLOCK)
        tiles, free = free[: -(-needed // IN_TILE)], free[-(-needed // IN_TILE) :]
        blocks: list[int] = []
        for first in sorted(tiles) if draw(st.booleans()) else tiles:
            tile = range(first, first + IN_TILE)
            blocks += draw(st.permutations(tile)) if draw(st.booleans()) else tile
        count = draw(st.sampled_from([1, 1, tokens, draw(st.integers(1, tokens))]))
        contexts.append(Context(seed, blocks[:needed], tokens, count))
    return contexts


@pytest.mark.usefixtures("small_tiles")
@settings(max_examples=40, deadline=None)
@given(contexts=batches(), kind=st.sampled_from(list(KINDS.values())), data=st.data())
def test_any_batch_is_as_each_of_its_rows_alone(
    contexts: list[Context], kind: Kind, data: st.DataObject
) -> None:
    dtype = data.draw(st.sampled_from(DTYPES))
    for context, found in zip(contexts, computed(contexts, kind, dtype), strict=True):
        whole = Context(context.seed, list(range(BLOCKS)), context.tokens, context.count)
        assert torch.equal(found, computed([whole], kind, dtype)[0])
        last = Context(context.seed, list(range(BLOCKS)), context.tokens)
        assert torch.equal(found[-1:], computed([last], kind, dtype)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_long_contexts_too(dtype: torch.dtype) -> None:
    near, far = list(range(100)), [*range(140, 110, -1), *range(70)]
    decoded = computed([Context(1, near, 1500)], Kind(), dtype)[0]
    chunk = computed([Context(1, far, 1500, count=130), Context(2, [150], 9)], Kind(), dtype)[0]
    assert torch.equal(decoded, chunk[-1:])
    tile = tiling_of_kind(512, (SIZE, SIZE), dtype, False, torch.get_num_threads())
    assert tile is not None
    assert tile.tile == 512


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("count", [1, 20])
def test_what_is_no_number_is_not_carried_along(kind: Kind, count: int) -> None:
    sound = Context(1, [3, 4], 20, count=count)
    expected = computed([sound], kind, torch.float32)
    assert torch.equal(computed([sound], kind, torch.float32, elsewhere=torch.nan)[0], expected[0])


# -- our kernels, which Triton's interpreter reads slowly ------------------------------------------


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.forward.by_triton.SHARE", 16)
    monkeypatch.setattr("engine.forward.by_triton.KEPT_PARTS", 20)
    add_term_by_term(monkeypatch)


def by_kernels(contexts: list[Context], kind: Kind, dtype: torch.dtype) -> list[Tensor]:
    return computed(contexts, kind, dtype, backend="triton")


NEAR = list(range(BLOCKS))
COMPANY = [Context(2, [100], 7), Context(3, [101, 103, 102], 41), Context(4, [110, 90], 21, count=9)]


@needs_triton
@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize(
    ("dtype", "kind"), [(torch.float32, "plain"), (torch.float32, "all"), (torch.bfloat16, "window")], ids=str
)
def test_by_kernels_too(dtype: torch.dtype, kind: str) -> None:
    """One by one, in chunks, in other blocks, and beside others."""
    tokens = 44
    (whole,) = by_kernels([Context(1, NEAR, tokens, count=tokens)], KINDS[kind], dtype)
    for end in (1, 16, 17, 33, tokens):
        (found,) = by_kernels([Context(1, NEAR, end)], KINDS[kind], dtype)
        assert torch.equal(found, whole[end - 1 : end]), end
    for count in (1, 6):
        found, *_ = by_kernels([Context(1, [7, 3, 12], tokens, count), *COMPANY], KINDS[kind], dtype)
        assert torch.equal(found, whole[-count:]), count


@needs_triton
@pytest.mark.usefixtures("small_parts")
@settings(max_examples=3)
@given(contexts=batches(longest=50), kind=st.sampled_from(list(KINDS.values())))
def test_by_kernels_in_any_batch(contexts: list[Context], kind: Kind) -> None:
    for context, found in zip(contexts, by_kernels(contexts, kind, torch.float32), strict=True):
        last = Context(context.seed, NEAR, context.tokens)
        assert torch.equal(found[-1:], by_kernels([last], kind, torch.float32)[0])
