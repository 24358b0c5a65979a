"""The fingerprint: the same for the same engine, and another for whatever may give other tokens."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from engine import api, toy_model
from engine.build import fingerprint as module
from engine.build.build import build
from engine.build.fingerprint import fingerprint, machine, processor
from engine.model.loading import load
from engine.model.weights_digest import COLUMNS, weights_digest
from tests.fakes.tiny_models import tiny_folder

ENGINE: dict[str, Any] = {
    "weights": "w",
    "folder": toy_model.FOLDER,
    "eos": [2],
    "device": "cpu",
    "dtype": "float32",
    "attention": "sdpa",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folder(tmp_path_factory.mktemp("models"), "llama")


@pytest.fixture
def model(folder: Path) -> PreTrainedModel:
    return load(folder)


# -- the weights -----------------------------------------------------------------------------------


def test_a_model_that_is_loaded_again_or_lies_elsewhere_has_the_same_digest(
    model: PreTrainedModel, folder: Path, tmp_path: Path
) -> None:
    assert weights_digest(model) == weights_digest(load(folder))
    assert weights_digest(model) == weights_digest(load(shutil.copytree(folder, tmp_path / "elsewhere")))


def test_one_bit_of_any_tensor_makes_another(model: PreTrainedModel) -> None:
    before = weights_digest(model)
    for number, weight in enumerate(model.parameters()):
        bits = weight.data.view(-1).view(torch.int32)
        place = (number * 7919) % len(bits)
        bits[place] ^= 1
        assert weights_digest(model) != before
        bits[place] ^= 1
    assert weights_digest(model) == before


def test_so_do_rows_that_changed_places(model: PreTrainedModel) -> None:
    before = weights_digest(model)
    matrix = max(model.parameters(), key=len).data
    assert matrix.shape[1] % COLUMNS
    matrix[[3, 4]] = matrix[[4, 3]]
    assert weights_digest(model) != before


def test_another_number_format_and_another_configuration_are_other_models(
    model: PreTrainedModel, folder: Path
) -> None:
    before = weights_digest(model)
    assert weights_digest(load(folder, dtype="bfloat16")) != before
    model.config.rms_norm_eps *= 2
    assert weights_digest(model) != before


# -- all of it -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "other",
    [
        {"weights": "v"},
        {"eos": [3]},
        {"dtype": "bfloat16"},
        {"attention": "triton"},
        {"devices": 2},
    ],
    ids=str,
)
def test_whatever_may_give_other_tokens_makes_another(other: dict[str, Any]) -> None:
    assert fingerprint(**ENGINE) == fingerprint(**ENGINE)
    assert fingerprint(**ENGINE | other) != fingerprint(**ENGINE)


def test_so_does_another_chat_template(tmp_path: Path) -> None:
    folder = shutil.copytree(toy_model.FOLDER, tmp_path / "toy")
    assert fingerprint(**ENGINE | {"folder": folder}) == fingerprint(**ENGINE)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    assert fingerprint(**ENGINE | {"folder": folder}) != fingerprint(**ENGINE)


def test_so_do_another_release_and_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(**ENGINE)
    with monkeypatch.context() as patch:
        patch.setattr(module, "ARITHMETIC", module.ARITHMETIC + 1)
        assert fingerprint(**ENGINE) != before
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 96)
        assert fingerprint(**ENGINE) != before


def test_a_processor_is_named_once_however_many_cores_it_has(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nmodel name\t: One\n\nprocessor\t: 1\nmodel name\t: One\n")
    assert processor(cpuinfo) == ["One"]
    cpuinfo.write_text("processor\t: 0\nCPU part\t: 0xd0c\n")
    assert processor(cpuinfo) == ["0xd0c"]
    assert processor(tmp_path / "none") == []


def test_a_device_is_named_with_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: f"name of {device}")
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    assert machine("cuda:1") == ["name of cuda:1", "CUDA 13.0"]


# -- of an engine ----------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{"kv_tokens": 512}, {"step_tokens": 32}, {"max_streams": 8}], ids=str)
def test_an_engine_that_is_built_again_has_the_same_whatever_its_size(
    folder: Path, options: dict[str, int]
) -> None:
    for model in ("toy", str(folder)):
        first, second = (
            build(api.EngineOptions(model=model, **{"kv_tokens": 1024} | more))[1]  # type: ignore[arg-type]
            for more in ({}, options)
        )
        assert first.fingerprint == second.fingerprint
        assert first.fingerprint.startswith("fp_")
