"""Which attention backend is taken, and what is said where one cannot be."""

from __future__ import annotations

import pytest
import torch

from engine.backends import choose
from engine.model_files import ModelError

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


@pytest.mark.parametrize(
    ("device", "dtype", "name"),
    [
        (CPU, torch.float32, "sdpa"),
        (GPU, torch.bfloat16, "triton"),
        (GPU, torch.float32, "triton"),
        (GPU, torch.float64, "sdpa"),
    ],
)
def test_auto_takes_our_kernels_where_they_can_run(
    device: torch.device, dtype: torch.dtype, name: str
) -> None:
    assert choose("auto", device, dtype) == name


@pytest.mark.parametrize("device", [CPU, GPU])
def test_the_reference_runs_anywhere(device: torch.device) -> None:
    assert choose("sdpa", device, torch.float16) == "sdpa"


@pytest.mark.parametrize(
    ("name", "device", "dtype", "why"),
    [
        ("triton", CPU, torch.float32, "it needs a CUDA device, and the model is on cpu; sdpa runs anywhere"),
        ("triton", GPU, torch.float64, "its kernels multiply no float64; sdpa runs anywhere"),
        ("magic", GPU, torch.float32, "no attention backend magic: auto, sdpa and triton are known"),
    ],
)
def test_what_cannot_be_is_refused_with_the_reason(
    name: str, device: torch.device, dtype: torch.dtype, why: str
) -> None:
    with pytest.raises(ModelError, match=why):
        choose(name, device, dtype)
