"""The kernel that draws: in Triton's interpreter its tokens are those of the draw by torch, and it compiles
for devices that are not here."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from bench.reliability.draws import FILTERS, asked
from engine.sampling import noise
from engine.sampling.draw import draw
from tests.fakes.absent_devices import AbsentDevices
from tests.fakes.devices import DEVICE
from tests.fakes.triton_kernels import needs_triton

pytestmark = needs_triton
ROWS = 4
KEYS = noise.keys(torch.arange(ROWS), torch.arange(ROWS) * 7)
ASKED = {**FILTERS, "greedy": {"temperature": 0.0}, "as cold as may be": {"temperature": 1e-300}}


def by_kernel(scores: Tensor, **filters: float) -> list[int]:
    from engine.sampling import triton_draw

    wanted = asked(len(scores), KEYS[: len(scores)].to(DEVICE), **filters)
    there = replace(wanted, parameters=wanted.parameters.to(DEVICE))
    return triton_draw.draw(scores.to(DEVICE), there).tolist()


def by_torch(scores: Tensor, **filters: float) -> list[int]:
    return draw(scores, asked(len(scores), KEYS[: len(scores)], **filters)).tolist()


def logits(vocab: int, scale: float) -> Tensor:
    return torch.randn(ROWS, vocab, generator=torch.Generator().manual_seed(vocab)) * scale


@pytest.mark.parametrize("vocab", [5, 2500])
@pytest.mark.parametrize("name", ASKED)
def test_its_tokens_are_those_of_the_cpu(name: str, vocab: int) -> None:
    for scale in (0.0, 3.0):
        scores = logits(vocab, scale)
        assert by_kernel(scores, **ASKED[name]) == by_torch(scores, **ASKED[name])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16])
def test_of_other_number_formats_as_well(dtype: torch.dtype) -> None:
    scores = logits(700, 3.0).to(dtype)
    wide = scores if dtype == torch.float64 else scores.float()
    assert by_kernel(scores, **FILTERS["all"]) == by_torch(wide, **FILTERS["all"])


@pytest.mark.parametrize("broken", [torch.nan, torch.inf, -torch.inf])
def test_a_row_of_no_numbers_has_no_token_and_no_influence(broken: float) -> None:
    scores = logits(300, 3.0)
    expected = by_torch(scores, top_p=0.9)
    scores[2] = broken
    scores[1, 7] = broken
    found = by_kernel(scores, top_p=0.9)
    assert found == by_torch(scores, top_p=0.9)
    assert (found[0], found[2], found[3]) == (expected[0], -1, expected[3])


def test_top_k_lets_nobody_run_who_is_as_far_below_the_best_by_rounding_alone() -> None:
    scores = torch.arange(400, 0, -1).float().mul(1e-30).repeat(ROWS, 1)
    scores[:, 7] = 0.01
    found = by_kernel(scores, top_k=2)
    assert found == by_torch(scores, top_k=2)
    assert set(found) <= {0, 7}


@pytest.mark.parametrize("capability", [80, 89, 90, 120])
def test_one_kernel_serves_all_batches_and_fuses_nothing(
    absent_devices: AbsentDevices, capability: int
) -> None:
    batches = [(1, 1003, "float32"), (32, 128_256, "float32"), (200, 49_152, "float32")]
    (made,) = absent_devices.compiled("draw", capability, batches)
    assert made["kernel"]["stack"] == 0
    assert made["fused"] == 0
    assert made["divisions"] == ["div.rn.f32"]
