"""The choice of an attention backend, and its error messages where one cannot be used."""

from __future__ import annotations

import pytest
import torch

from engine.forward.backends import Requirements, choose, make
from engine.forward.kv_pool import KvPool
from engine.model.facts import describe
from engine.model.preflight import ModelError
from tests.fakes import attention_packages
from tests.fakes.tiny_models import tiny_model

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)


def need(
    device: torch.device = GPU,
    dtype: torch.dtype = torch.bfloat16,
    head_dim: int = 64,
    block: int = 16,
    *,
    exact: bool = False,
) -> Requirements:
    return Requirements(device, dtype, head_dim, block, exact)


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
    assert choose("auto", need(device, dtype)) == name


@pytest.mark.parametrize("name", ["auto", "triton"])
def test_what_is_to_be_exact_is_read_by_our_kernels(name: str) -> None:
    assert choose(name, need(exact=True)) == "triton"


@pytest.mark.parametrize("device", [CPU, GPU])
def test_the_reference_runs_anywhere(device: torch.device) -> None:
    assert choose("sdpa", need(device, torch.float16)) == "sdpa"


REFUSED = {
    "triton on a CPU": ("triton", need(CPU), "it needs a CUDA device, and the model is on cpu; sdpa runs"),
    "triton in float64": ("triton", need(dtype=torch.float64), "its kernels multiply no float64; sdpa runs"),
    "flash_attn in float32": ("flash_attn", need(dtype=torch.float32), "and the model is in float32; sdpa"),
    "flash_attn in blocks": (
        "flash_attn",
        need(block=16),
        "reads blocks of 256 tokens or a multiple .*not of 16",
    ),
    "flashinfer in heads": (
        "flashinfer",
        need(head_dim=80),
        "reads heads of 64, 128, 256 numbers, not of 80",
    ),
    "sdpa where it is to be exact": (
        "sdpa",
        need(exact=True),
        "sdpa cannot be used: with --exact on triton reads, .*; --exact off",
    ),
    "float64 where it is to be exact": (
        "auto",
        need(dtype=torch.float64, exact=True),
        "triton cannot be used: its kernels multiply no float64; --exact off",
    ),
    "what is no backend": ("magic", need(), "magic: auto, sdpa, triton, flash_attn, flashinfer are known"),
}


@pytest.mark.parametrize(("name", "what", "why"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_be_is_refused_with_the_reason(name: str, what: Requirements, why: str) -> None:
    with pytest.raises(ModelError, match=why):
        choose(name, what)


@pytest.mark.parametrize("name", ["flash_attn", "flashinfer"])
def test_a_package_is_used_where_it_is_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.forward.backends.find_spec", lambda _: None)
    with pytest.raises(ModelError, match=f"the package {name} is not installed"):
        choose(name, need(block=256))
    monkeypatch.setattr("engine.forward.backends.find_spec", lambda _: object())
    assert choose(name, need(block=256)) == name


@pytest.mark.parametrize("name", ["flash_attn", "flashinfer"])
def test_what_was_chosen_is_made(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.forward.backends.import_module", lambda _: attention_packages)
    pool = KvPool(1, 2, 64, tokens=4 * 256, dtype=torch.float16, device="cpu")
    facts = describe(tiny_model("llama").config)
    assert make(name, pool, facts, block_size=256, context=512, slots=2).name == name
