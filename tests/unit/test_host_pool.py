"""The host pool: blocks are saved and loaded bit by bit, into whatever blocks they get."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from engine.forward.kv_pool import KvPool
from engine.memory.host_pool import HostPool, piece_sizes
from tests.fakes.devices import DEVICE

BLOCK, BLOCKS = 4, 6
BLOCK_BYTES = 2 * 3 * 2 * BLOCK * 5 * 8  # 1920
PIECES = 8192 + 4096 + 2048  # for blocks 0 to 3, 4 and 5, and 6


def pool() -> KvPool:
    made = KvPool(3, 2, 5, tokens=BLOCKS * BLOCK, dtype=torch.float64, device=str(DEVICE))
    for number, tensor in enumerate((*made.keys, *made.values)):
        tensor.copy_(torch.randn(tensor.shape, generator=torch.Generator().manual_seed(number)))
    return made


def tokens_of(made: KvPool, block: int) -> torch.Tensor:
    tokens = slice(block * BLOCK, (block + 1) * BLOCK)
    return torch.stack([tensor[:, tokens] for tensor in (*made.keys, *made.values)]).clone()


class Copies(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.count += func is torch.ops.aten.copy_.default
        return func(*args, **(kwargs or {}))


def test_blocks_come_back_as_they_were_wherever_they_are_put() -> None:
    made = pool()
    host = HostPool(made, BLOCK, 8 * BLOCK_BYTES)
    before = [tokens_of(made, block) for block in range(BLOCKS)]
    assert host.may_save()
    host.save([(4, 0), (1, 3)])
    made.zero(slice(0, BLOCKS * BLOCK))
    arrival = host.load([(3, 5), (0, 2)])
    arrival.wait()
    assert arrival.done()
    assert torch.equal(tokens_of(made, 5), before[1])
    assert torch.equal(tokens_of(made, 2), before[4])
    assert not tokens_of(made, 4).any()


@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4, 5], [5, 3, 1, 0, 2, 4], [6, 5, 4, 3, 2, 1]])
def test_blocks_find_their_places_whatever_the_order(order: list[int]) -> None:
    made = pool()
    host = HostPool(made, BLOCK, PIECES)
    before = [tokens_of(made, block) for block in range(BLOCKS)]
    host.save(list(enumerate(order)))
    made.zero(slice(0, BLOCKS * BLOCK))
    host.load([(here, BLOCKS - 1 - block) for block, here in enumerate(order)]).wait()
    assert all(torch.equal(tokens_of(made, BLOCKS - 1 - block), before[block]) for block in range(BLOCKS))


@pytest.mark.parametrize(
    ("here", "runs"),
    [([0, 1, 2, 3], 1), ([3, 2, 1, 0], 1), ([0, 2], 2), ([2, 3, 4, 5], 2), ([0, 1, 3, 4, 6], 4)],
)
def test_neighbours_of_one_piece_travel_in_one_copy(here: list[int], runs: int) -> None:
    host = HostPool(pool(), BLOCK, PIECES)
    with Copies() as saved:
        host.save([(block, number) for block, number in enumerate(here)])
    with Copies() as loaded:
        host.load([(number, block) for block, number in enumerate(here)])
    assert saved.count == loaded.count == runs


@pytest.mark.parametrize("limit", [0, 1, BLOCK_BYTES - 1, 7 * BLOCK_BYTES, 2**30, 3 * 2**30 + 12345])
def test_it_takes_no_more_than_it_may_in_powers_of_two(limit: int) -> None:
    """torch rounds what is pinned up to one, and would take more than was allowed."""
    pieces = piece_sizes(limit, BLOCK_BYTES)
    assert sum(pieces) <= limit
    assert sum(pieces) > limit - 2 * BLOCK_BYTES
    assert all(piece >= BLOCK_BYTES and piece & (piece - 1) == 0 for piece in pieces)


@pytest.mark.parametrize(("limit", "blocks"), [(0, 0), (2048, 1), (8192 + 4096, 6), (8192 + 512, 4)])
def test_it_holds_as_many_blocks_as_fit_its_pieces(limit: int, blocks: int) -> None:
    assert HostPool(pool(), BLOCK, limit).total_blocks == blocks
