"""The KV pool in the host's memory: a token takes memory when it is written, and gives it back whole."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch

from engine.build.budgets import shortage
from engine.forward.kv_pool import KvPool

TOKENS, TOKEN_BYTES = 2**17, 2 * 4 * 2 * 64 * 4  # 512 MiB in all
MIB = 2**20
linux = pytest.mark.skipif(sys.platform != "linux", reason="the memory of a process is told by Linux alone")


def pool() -> KvPool:
    return KvPool(4, 2, 64, tokens=TOKENS, dtype=torch.float32, device="cpu")


def fill(made: KvPool, begin: int, end: int) -> None:
    numbers = torch.full((2, end - begin, 64), 7.0)
    for layer in range(4):
        made.write(layer, torch.arange(begin, end), numbers, numbers)


def own_bytes() -> int:
    found = re.search(r"RssAnon:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found
    return int(found[1]) * 1024


@linux
def test_it_takes_memory_as_it_is_written_and_gives_it_back() -> None:
    before = own_bytes()
    made = pool()
    assert not made.keys[3][:, 1000].any(), "to be read takes nothing"
    assert own_bytes() - before < 16 * MIB
    fill(made, 0, TOKENS // 4)
    written = TOKENS // 4 * TOKEN_BYTES
    assert written * 0.9 < own_bytes() - before < written * 1.2
    made.give_back(slice(0, TOKENS // 4))
    assert own_bytes() - before < written * 0.25, "but for what the allocator keeps of the numbers written"


@pytest.mark.parametrize("size", [5, 64, 80])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_what_lies_beside_what_is_given_back_stays(size: int, dtype: torch.dtype) -> None:
    whole = KvPool(1, 1, size, tokens=1, dtype=dtype, device="cpu").tokens_in_pages
    made = KvPool(3, 2, size, tokens=3 * whole - 1, dtype=dtype, device="cpu")
    drawn = [torch.randn(half.shape).to(dtype) for half in (*made.keys, *made.values)]
    for part, (first, end) in enumerate([(0, 1), (1, 2), (2, 3), (0, 3)]):
        for half, numbers in zip((*made.keys, *made.values), drawn, strict=True):
            half.copy_(numbers)
        made.give_back(slice(first * whole, end * whole))
        for half, numbers in zip((*made.keys, *made.values), drawn, strict=True):
            assert torch.equal(half[:, : first * whole], numbers[:, : first * whole]), part
            assert torch.equal(half[:, end * whole :], numbers[:, end * whole :])
            assert half.isfinite().all(), "a masked read finds numbers"


def test_what_was_given_back_is_written_again() -> None:
    made = pool()
    fill(made, 0, 64)
    made.give_back(slice(0, 64))
    fill(made, 16, 32)
    assert (made.values[2][:, 16:32] == 7).all()


def test_more_than_can_be_had_is_a_memory_error() -> None:
    with pytest.raises(MemoryError, match="cannot be had"):
        KvPool(4, 2, 64, tokens=2**50, dtype=torch.float32, device="cpu")


@pytest.mark.parametrize(
    ("needed", "free", "said"),
    [(10**9, 10**9, False), (10**9, None, False), (3 * 10**9, 10**9, True)],
)
def test_what_may_come_to_be_too_much_is_said_at_the_start(needed: int, free: int | None, said: bool) -> None:
    warning = shortage(needed, free)
    assert bool(warning) == said
    assert warning is None or "take 3.00 GB, and 1.00 are free" in warning
