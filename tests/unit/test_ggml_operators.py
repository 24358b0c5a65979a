"""The operators of ours in ggml's graphs: they compute what torch computes, and a row's numbers are the same
bits whatever is computed beside them."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from engine.ggml import attention, panels
from engine.ggml.attention import scratch_bytes
from engine.ggml.kinds import BFLOAT16, MULTIPLIED_BY_US, Q8_0
from engine.ggml.reading import GgmlBackend
from engine.schedule.windows import UNLIMITED

OPERATOR = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int32, ctypes.c_int32, ctypes.c_int64)
BLOCK = 16


def call(address: int, *told: int, threads: int) -> None:
    numbers = torch.tensor(told)
    for thread in range(threads):
        OPERATOR(address)(0, thread, threads, numbers.data_ptr())


# -- products --------------------------------------------------------------------------------------


def laid(kind: int, outs: int, ins: int) -> tuple[Tensor, Tensor]:
    """A matrix in panels of this kind, and what it is in float32."""
    numbers = torch.randn(outs, ins, generator=torch.Generator().manual_seed(1))
    if kind == Q8_0:
        blocks = numbers.view(outs, -1, 32)
        scales = (blocks.abs().amax(2, keepdim=True) / 127).half()
        narrow = (blocks / scales.float()).round().clamp(-127, 127).to(torch.int8)
        data = torch.cat([scales.view(torch.uint8), narrow.view(torch.uint8)], 2)
        numbers = (narrow * scales.float()).view(outs, ins)
    else:
        narrow = numbers.bfloat16() if kind == BFLOAT16 else numbers
        data, numbers = narrow.view(torch.uint8), narrow.float()
    return panels.in_panels(kind, data, outs, ins), numbers


def product(kind: int, x: Tensor, matrix: Tensor, outs: int, threads: int = 1) -> Tensor:
    out = torch.full((len(x), outs), torch.nan)
    scratch = torch.empty(threads, panels.SCRATCH, dtype=torch.uint8)
    places = [one.data_ptr() for one in (out, matrix, x)]
    numbers = (kind, *x.shape, outs, scratch.data_ptr(), panels.SCRATCH)
    call(panels.multiply, *places, *numbers, threads=threads)
    return out


@pytest.mark.parametrize("kind", MULTIPLIED_BY_US)
@pytest.mark.parametrize(("outs", "ins"), [(64, 64), (70, 32), (3, 96)])
def test_a_row_is_the_same_bits_in_any_number_of_rows_and_threads(outs: int, ins: int, kind: int) -> None:
    matrix, numbers = laid(kind, outs, ins)
    x = torch.randn(40, ins, generator=torch.Generator().manual_seed(0))
    alone = torch.cat([product(kind, row[None], matrix, outs) for row in x])
    assert torch.allclose(alone.double(), x.double() @ numbers.double().T, atol=1e-4)
    for rows in range(2, 41):
        some = product(kind, x[:rows], matrix, outs, threads=rows % 3 + 1)
        assert torch.equal(some, alone[:rows]), rows


@pytest.mark.parametrize("kind", MULTIPLIED_BY_US)
def test_rows_are_looked_up_in_panels(kind: int) -> None:
    matrix, numbers = laid(kind, 70, 64)
    wanted, out = torch.tensor([3, 69, 16, 0], dtype=torch.int32), torch.empty(4, 64)
    places = [one.data_ptr() for one in (out, matrix, wanted)]
    call(panels.look_up, *places, kind, 4, 64, threads=3)
    assert torch.equal(out, numbers[wanted.long()])


# -- attention -------------------------------------------------------------------------------------


@dataclass
class Layer:
    """Of a model with so many heads, and a pool in which what nobody wrote is no number."""

    heads: int = 6
    kv_heads: int = 2
    size: int = 24
    window: int = 0
    pool: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.pool = torch.full((2, self.kv_heads, 1024, self.size), torch.nan)

    def attend(self, rows: list[tuple[list[int], int, Tensor]], threads: int = 1) -> list[Tensor]:
        """Of each row its blocks, where it begins, and its queries, keys and values side by side."""
        group = self.heads // self.kv_heads
        asked: Any = [
            SimpleNamespace(start=start, count=len(qkv), sequence=SimpleNamespace(tables=[blocks]))
            for blocks, start, qkv in rows
        ]
        _, reading = GgmlBackend(BLOCK, group).plan(asked)
        qkv = torch.cat([own for *_, own in rows])
        keys, values = self.pool
        step = torch.tensor(
            [keys.data_ptr(), values.data_ptr(), keys.stride(0), reading.of_groups[0].data_ptr()]
        )
        pitch, head = qkv.shape[1] * 4, self.size * 4
        query = qkv.data_ptr()
        key = query + self.heads * head
        where = (step.data_ptr(), 0, pitch)
        kept = (0, key, key + self.kv_heads * head, *where, pitch, self.kv_heads, self.size)
        call(attention.keep, *kept, threads=threads)
        out = torch.full((len(qkv), self.heads * self.size), torch.nan)
        each = scratch_bytes(self.size, group)
        scratch = torch.empty(threads, each, dtype=torch.uint8)
        shape = (self.heads, self.kv_heads, self.size, self.window or UNLIMITED)
        told = (out.data_ptr(), query, 0, *where, *shape, scratch.data_ptr(), each)
        call(attention.attend, *told, threads=threads)
        return list(torch.split(out, [len(own) for *_, own in rows]))

    def expected(self, qkv: Tensor) -> Tensor:
        heads = qkv.view(len(qkv), -1, self.size).transpose(0, 1)
        q, k, v = torch.split(heads, [self.heads, self.kv_heads, self.kv_heads])
        seen = torch.ones(len(qkv), len(qkv), dtype=torch.bool).tril()
        if self.window:
            seen &= ~seen.tril(-self.window)
        found = functional.scaled_dot_product_attention(
            q[None], k[None], v[None], attn_mask=seen, enable_gqa=True
        )
        return found[0].transpose(0, 1).reshape(len(qkv), -1)

    def noise(self, tokens: int, seed: int = 0) -> Tensor:
        width = (self.heads + 2 * self.kv_heads) * self.size
        return 2 * torch.randn(tokens, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("window", [0, 8, 70])
@pytest.mark.parametrize("shape", [(6, 2, 24), (4, 4, 64), (9, 3, 16), (8, 1, 40)])
def test_what_is_attended_to_follows_from_the_context_alone(shape: tuple[int, int, int], window: int) -> None:
    layer = Layer(*shape, window)
    here, there, elsewhere = [5, 2, 7, 1, 0, 9, 8, 20, 21], list(range(30, 39)), list(range(40, 49))
    qkv, other = layer.noise(135), layer.noise(60, seed=1)
    (whole,) = layer.attend([(here, 0, qkv)], threads=2)
    assert torch.allclose(whole, layer.expected(qkv), atol=1e-4)
    for at in range(len(qkv)):
        gone = max(0, at + 1 - window) // BLOCK if window else 0
        table = [-1] * gone + there[gone:]
        (one,) = layer.attend([(table, at, qkv[at : at + 1])], threads=at % 3 + 1)
        assert torch.equal(one[0], whole[at]), at
    layer.pool.fill_(torch.nan)
    layer.attend([(there, 0, qkv[:37])])
    found = layer.attend([(elsewhere, 0, other), (there, 37, qkv[37:]), ([3], 0, other[:1])], threads=3)
    assert torch.equal(found[1], whole[37:])
    assert torch.equal(found[2][0], found[0][0])
