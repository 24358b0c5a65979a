"""The Triton kernels compile for devices that are not here, fit into what a program may have of each, and
whatever comes and goes, nothing has to be compiled anew.

What they compute is shown in `test_attention.py`, in Triton's interpreter.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from engine.forward.backends import warm_up_batches
from tests.fakes.absent_devices import AbsentDevices
from tests.fakes.triton_kernels import needs_triton

# Rows of tokens before, and tokens computed.
FIRST: list[list[tuple[int, int]]] = [
    [(0, count) for count in counts] for counts in warm_up_batches(2048, 200)
]
LATER: list[list[tuple[int, int]]] = [
    [(0, 1), (300, 1), (7, 1), (0, 16)],
    [(3000, 1)],
    *([(99, 1)] * rows for rows in (1, 2, 5, 16, 31, 64, 150)),
    *([(16, 1), (33, count)] for count in (2, 16, 100, 333, 1024)),
]
KIB = 1024
AMPERE, ADA, HOPPER, BLACKWELL = 163 * KIB, 99 * KIB, 227 * KIB, 99 * KIB  # the last as made for desks
SPILLED = 512  # bytes, for each of a program's threads


CASES = [
    {"capability": 80, "shared": AMPERE, "dtype": "float16", "size": 128, "groups": 4},
    {"capability": 89, "shared": ADA, "dtype": "bfloat16", "size": 256, "groups": 2, "softcap": 50.0},
    {"capability": 90, "shared": HOPPER, "dtype": "bfloat16", "size": 64, "groups": 8, "sinks": True},
    {"capability": 120, "shared": BLACKWELL, "dtype": "float32", "size": 128, "groups": 1, "window": 64},
]
every_device = pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case['capability']}-{case['dtype']}-{case['size']}"
)


def check(case: dict[str, Any], kernels: list[dict[str, Any]]) -> None:
    assert all(kernel["shared"] <= case["shared"] for kernel in kernels)
    assert all(kernel["stack"] <= SPILLED for kernel in kernels)


@needs_triton
@pytest.mark.parametrize(("exact", "reading"), [(False, 4), (True, 1)], ids=["fast", "exact"])
@every_device
def test_they_fit_and_a_few_serve_all_batches(
    absent_devices: AbsentDevices, case: dict[str, Any], exact: bool, reading: int
) -> None:
    found = absent_devices.compiled("attention", case | {"exact": exact}, FIRST + LATER)
    kernels = [kernel for batch in found for kernel in batch]
    assert sorted(kernel["name"] for kernel in kernels) == ["join"] + ["read"] * reading
    assert not any(found[len(FIRST) :]), "what is compiled when an engine starts serves whatever comes"
    check(case, kernels)


@needs_triton
@every_device
def test_products_means_and_rotations_fit_and_one_of_each_serves_all_rows(
    absent_devices: AbsentDevices, case: dict[str, Any]
) -> None:
    found = absent_devices.compiled("products", case, [1, 2, 7, 64, 2048])
    names = sorted(kernel["name"] for kernel in found[0])
    assert names == ["average", *["multiply"] * 3, "turn"]
    assert not any(found[1:]), "how many rows there are asks for no other kernel"
    check(case, found[0])


@needs_triton
@pytest.mark.parametrize(
    ("shared", "dtype", "size", "rows_and_keys"),
    [
        (HOPPER, torch.bfloat16, 64, (128, 64)),
        (HOPPER, torch.bfloat16, 256, (128, 64)),
        (AMPERE, torch.bfloat16, 128, (128, 64)),
        (AMPERE, torch.bfloat16, 256, (64, 64)),
        (ADA, torch.float16, 96, (128, 64)),
        (ADA, torch.bfloat16, 256, (64, 32)),
        (64 * KIB, torch.float16, 128, (64, 32)),
        (16 * KIB, torch.float16, 256, (16, 16)),
        (HOPPER, torch.float32, 8, (256, 128)),
        (HOPPER, torch.float32, 128, (32, 16)),
        (ADA, torch.float32, 256, (16, 16)),
    ],
)
def test_a_program_is_as_large_as_there_is_room(
    shared: int, dtype: torch.dtype, size: int, rows_and_keys: tuple[int, int]
) -> None:
    from engine.forward.by_triton import largest_tile

    assert largest_tile(shared, dtype, size) == rows_and_keys
