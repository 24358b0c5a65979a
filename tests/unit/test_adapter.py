"""LoRA adapters in PEFT's format, merged into tiny random models: W + scale * B @ A, by hand; and what cannot
be merged, as a sentence."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan, sqrt
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from engine import api
from engine.build.build import build
from engine.model import adapter
from engine.model.loading import load
from engine.model.preflight import ModelError
from tests.fakes.adapters import ALPHA, MODULES, RANK, lora
from tests.fakes.tiny_models import tiny_folder


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("base"), "llama")


def merged(base: Path, folder: Path, dtype: str = "float32") -> dict[str, Tensor]:
    model = load(base, dtype=dtype)
    with torch.inference_mode():
        adapter.merge(model, folder)
    return model.state_dict()


@pytest.mark.parametrize(
    ("config", "scales"),
    [
        ({}, [ALPHA / RANK] * 3),
        ({"use_rslora": True}, [ALPHA / sqrt(RANK)] * 3),
        ({"alpha_pattern": {"q_proj": 2}}, [2 / RANK, ALPHA / RANK, ALPHA / RANK]),
        ({"rank_pattern": {"layers.1.mlp.down_proj": 8}}, [ALPHA / RANK, ALPHA / 8, ALPHA / RANK]),
        ({"rank_pattern": {"proj": 8}}, [ALPHA / RANK] * 3),
    ],
)
def test_weights_are_what_they_were_and_the_scaled_product(
    base: Path, tmp_path: Path, config: dict[str, Any], scales: list[float]
) -> None:
    changes = lora(base, tmp_path, **config)
    before, after = load(base, dtype="float32").state_dict(), merged(base, tmp_path)
    for module, scale in zip(MODULES, scales, strict=True):
        wanted = before[f"{module}.weight"] + scale * changes[module]
        torch.testing.assert_close(after[f"{module}.weight"], wanted, rtol=0, atol=1e-6)
    changed = {f"{module}.weight" for module in MODULES}
    assert {name for name in before if not torch.equal(before[name], after[name])} == changed


def test_narrow_floats_are_rounded_once(base: Path, tmp_path: Path) -> None:
    changes = lora(base, tmp_path)
    before, after = load(base, dtype="bfloat16").state_dict(), merged(base, tmp_path, "bfloat16")
    for module, change in changes.items():
        wanted = before[f"{module}.weight"].float() + ALPHA / RANK * change
        assert torch.equal(after[f"{module}.weight"], wanted.to(torch.bfloat16))


def test_it_computes_as_the_base_with_the_product_beside(base: Path, tmp_path: Path) -> None:
    """As PEFT does without merging."""
    changes = lora(base, tmp_path)
    tokens = torch.arange(40)[None]
    model = load(base, dtype="float32")

    def beside(module: str) -> Callable[..., Tensor]:
        return lambda _, given, out: out + ALPHA / RANK * (given[0] @ changes[module].T)

    hooks = [model.get_submodule(module).register_forward_hook(beside(module)) for module in MODULES]
    with torch.inference_mode():
        wanted = model(tokens).logits
        for hook in hooks:
            hook.remove()
        assert not torch.allclose(model(tokens).logits, wanted, atol=1e-2)
        adapter.merge(model, tmp_path)
        torch.testing.assert_close(model(tokens).logits, wanted, rtol=1e-3, atol=1e-3)


def test_an_engine_with_an_adapter_has_a_fingerprint_of_its_own(base: Path, tmp_path: Path) -> None:
    lora(base, tmp_path)
    options: dict[str, Any] = {
        "model": str(base),
        "dtype": "float32",
        "kv_tokens": 512,
        "device": "cpu",
        "exact": "off",
    }
    _, plain = build(api.EngineOptions(**options))
    _, changed = build(api.EngineOptions(**options, adapter=str(tmp_path), name="base:own"))
    assert changed.model == "base:own"
    assert changed.fingerprint != plain.fingerprint


def nothing(folder: Path) -> None:
    (folder / adapter.CONFIG).unlink()


def no_weights(folder: Path) -> None:
    (folder / adapter.WEIGHTS).unlink()


def weights(folder: Path, module: str, **parts: Tensor) -> None:
    named = {f"base_model.model.{module}.lora_{part}.weight": tensor for part, tensor in parts.items()}
    save_file(named, folder / adapter.WEIGHTS)


def half(folder: Path) -> None:
    weights(folder, MODULES[0], A=torch.ones(4, 64))


def another(folder: Path) -> None:
    weights(folder, MODULES[0], A=torch.ones(4, 8), B=torch.ones(8, 4))


def of_two_ranks(folder: Path) -> None:
    weights(folder, MODULES[0], A=torch.ones(4, 64), B=torch.ones(64, 5))


def flat(folder: Path) -> None:
    weights(folder, MODULES[0], A=torch.ones(64), B=torch.ones(64, 4))


def no_numbers(folder: Path) -> None:
    weights(folder, MODULES[0], A=torch.full((4, 64), torch.nan), B=torch.ones(64, 4))


def deep(folder: Path) -> None:
    (folder / adapter.CONFIG).write_text("[" * 99_999)


def unknown(folder: Path) -> None:
    weights(folder, "model.layers.9.nothing", A=torch.ones(4, 8), B=torch.ones(8, 4))


@pytest.mark.parametrize(
    ("spoil", "config", "why"),
    [
        (nothing, {}, "holds no adapter_config.json"),
        (no_weights, {}, "holds no adapter_model.safetensors"),
        (half, {}, "no pairs of lora_A and lora_B"),
        (another, {}, "is another model's: model.layers.0.self_attn.q_proj has another shape"),
        (of_two_ranks, {}, "is another model's: model.layers.0.self_attn.q_proj has another shape"),
        (flat, {}, "is another model's: model.layers.0.self_attn.q_proj has another shape"),
        (deep, {}, "adapter_config.json is broken"),
        (None, {"rank_pattern": {"q_proj": 0}}, "adapter_config.json is broken: Expected `int` >= 1"),
        (
            None,
            {"rank_pattern": {"([": 4}},
            "config.json is broken: '([' in rank_pattern is no regular expression",
        ),
        (
            None,
            {"rank_pattern": {"(?i)Q_PROJ": 4}},
            "config.json is broken: '(?i)Q_PROJ' in rank_pattern is no regular expression",
        ),
        (
            None,
            {"alpha_pattern": {"*": 4}},
            "config.json is broken: '*' in alpha_pattern is no regular expression",
        ),
        (None, {"alpha_pattern": {"a{1,99999999999}": 4}}, "in alpha_pattern is no regular expression"),
        (None, {"lora_alpha": inf}, "makes weights of model.layers.0.self_attn.q_proj that are no numbers"),
        (
            None,
            {"alpha_pattern": {"q_proj": nan}},
            "makes weights of model.layers.0.self_attn.q_proj that are no",
        ),
        (no_numbers, {}, "makes weights of model.layers.0.self_attn.q_proj that are no numbers"),
        (unknown, {}, "changes model.layers.9.nothing, which the model does not have"),
        (None, {"peft_type": "IA3"}, "is IA3; LORA alone can be merged"),
        (None, {"use_dora": True}, "has use_dora = True, which cannot be merged"),
        (None, {"bias": "all"}, "has bias = 'all'"),
        (None, {"modules_to_save": ["lm_head"]}, "has modules_to_save = ['lm_head']"),
        (
            None,
            {"r": 8},
            "layers.0.self_attn.q_proj has rank 4 there, and 8 in its adapter_config.json",
        ),
        (None, {"r": 10**400}, "adapter_config.json is broken: "),
        (None, {"r": 0}, "adapter_config.json is broken: Expected `int` >= 1"),
        (None, {"r": None}, "adapter_config.json is broken: Expected `int`, got `null`"),
    ],
)
def test_what_cannot_be_merged_is_a_sentence(
    base: Path, tmp_path: Path, spoil: Callable[[Path], None] | None, config: dict[str, Any], why: str
) -> None:
    lora(base, tmp_path, **config)
    if spoil is not None:
        spoil(tmp_path)
    with pytest.raises(ModelError) as told:
        merged(base, tmp_path)
    assert why in str(told.value)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"weights": "q8"}, "--weights q8 cannot be had: adapters are merged by torch; f32 can"),
        ({"devices": 2}, "cannot be merged into a model that devices share"),
        ({"model": "toy"}, "the toy has no weights"),
    ],
)
def test_where_it_cannot_be_merged_that_is_said(
    base: Path, tmp_path: Path, options: dict[str, Any], why: str
) -> None:
    lora(base, tmp_path)
    usual = {"model": str(base), "adapter": str(tmp_path), "device": "cpu"}
    with pytest.raises(ModelError, match=why):
        build(api.EngineOptions(**usual | options), join=lambda folder, device: pytest.fail("too late"))
